"""The agent's own commands: `call`, a page where one talks to the agent."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

import aiohttp
from aioice.ice import get_host_addresses

from agent.browser import Talker
from agent.config import Settings as AgentSide
from agent.config import load_settings as load_agent_side
from agent.parts import open_parts, who_answers
from agent.serving import serving, until_a_signal
from agent.transports.ice import IceOptions
from agent.web import Converse, Doors, ListVoices, Offered, build_app
from tts_plugin.arguments import Parser, whole_number
from tts_plugin.config import Settings, load_settings
from tts_plugin.errors import ConfigError, EngineUnavailable
from tts_plugin.hosts import is_loopback
from tts_plugin.link import Address
from tts_plugin.listener import listen

PORT = 8080
HTTP_S = 5.0
ANYWHERE = ("0.0.0.0", "::")  # hosts that are every address of the machine


def call(argv: Sequence[str]) -> int | None:
    """Serve the page and the agent behind it until interrupted."""
    parser = Parser("sparkvoice call", description="Talk to the agent in the browser.")
    parser.add_argument("--config", metavar="F.yaml", type=Path)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="any but a loopback address needs SPARKVOICE_TOKEN; browsers give a microphone only to https "
        "pages and to localhost, so it also needs a proxy with https in front",
    )
    parser.add_argument("--port", type=whole_number(0, 65_535), default=PORT, help="0 takes a free one")
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        help="a host name that the page is reached by, besides IP addresses and localhost; repeatable",
    )
    parser.add_argument(
        "--ice", action="append", default=[], metavar="URL", help="a stun: or turn: server; none by default"
    )
    parser.add_argument("--max-calls", type=whole_number(1, 1000), default=8, metavar="N", help="at once")
    args = parser.parse_args(argv)
    engine_side, agent_side = load_settings(args.config), load_agent_side(args.config)
    token = engine_side.server.token
    if is_loopback(args.host):
        token = None
    elif token is None:
        raise ConfigError(f"host {args.host} can be reached from outside: set SPARKVOICE_TOKEN")
    names = tuple(map(str.lower, args.name))
    own = socket.gethostname().lower() if args.host in ANYWHERE else args.host
    doors = Doors(token, (*names, own), args.max_calls, IceOptions(tuple(args.ice)))
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    where = _Entrance(args.host, args.port, names, doors)
    return asyncio.run(until_a_signal(_serve(engine_side, agent_side, args.config, where)))


@dataclass(frozen=True, slots=True)
class _Entrance:
    """Where the page is, the names it is reached by, and who may come in."""

    host: str
    port: int
    names: Sequence[str]
    doors: Doors


async def _serve(
    engine_side: Settings, agent_side: AgentSide, config: Path | None, entrance: _Entrance
) -> None:
    host, doors = entrance.host, entrance.doors
    with listen(host, entrance.port) as listener:  # first: a port in use is said before anything is loaded
        async with (
            agent_behind_the_page(engine_side, agent_side, config) as (converse, voices),
            serving(build_app(files("demo") / "static", converse, voices, doors), listener) as taken,
        ):
            print(
                who_answers(agent_side),
                *way_in(host, entrance.names, taken, doors.token),
                sep="\n",
                flush=True,
            )
            await asyncio.Event().wait()  # until it is cancelled


@asynccontextmanager
async def agent_behind_the_page(
    engine_side: Settings, agent_side: AgentSide, config: Path | None
) -> AsyncIterator[tuple[Converse, ListVoices]]:
    """What talks to callers and what lists its voices; warm, and ended with the block."""
    async with (
        open_parts(engine_side, agent_side, config) as parts,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HTTP_S)) as http,
    ):

        async def voices() -> Sequence[Offered]:
            return await offered_voices(http, await parts.engine(), agent_side.agent.voice)

        yield Talker(agent_side.agent, parts.ears, parts.brain, parts.make_tts, voices), voices


async def offered_voices(
    http: aiohttp.ClientSession, where: Address, chosen: str | None
) -> Sequence[Offered]:
    """The engine server's voices that callers may choose; `chosen`, else its own default, is the default,
    and listed in any case."""
    headers = {"Authorization": f"Bearer {where.token}"} if where.token else {}
    try:
        async with http.get(f"{where.url.rstrip('/')}/v1/voices", headers=headers) as response:
            response.raise_for_status()
            listed = await response.json()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise EngineUnavailable(f"the engine server does not tell its voices: {error}") from error
    default = chosen or listed["default"]
    return [
        Offered(voice["id"], voice["name"], voice["language"], voice["id"] == default)
        for voice in listed["voices"]
        if voice["id"] == default or voice.get("offered", True)
    ]


def way_in(host: str, names: Sequence[str], port: int, token: str | None) -> list[str]:
    """The lines that tell how to reach a page that listens on `host`. names: what --name has given."""
    name = host
    if host in ANYWHERE:
        addresses = get_host_addresses(use_ipv4=host == "0.0.0.0", use_ipv6=host == "::")
        name = [*names, *addresses, socket.gethostname()][0]
    link = f"http://{f'[{name}]' if ':' in name else name}:{port}/"
    if token:
        link += f"#token={quote(token)}"
    lines = [f"Sparkvoice: open {link}, press Call and talk (Ctrl-C ends)"]
    if not is_loopback(host):
        lines.append(
            "Sparkvoice: browsers give a microphone only to https pages and to localhost; elsewhere put a "
            "proxy with https in front and start with --name ITS.NAME"
        )
    return lines

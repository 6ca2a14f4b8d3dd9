"""The agent's own commands: `call`, a page where one talks to the agent."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

import aiohttp

from agent.browser import Talker
from agent.config import Settings as AgentSide
from agent.config import load_settings as load_agent_side
from agent.ears import STT
from agent.session import build_llm
from agent.transports.ice import IceOptions
from agent.web import Converse, Doors, ListVoices, Offered, build_app, listen, serving
from tts_plugin import TTS
from tts_plugin.arguments import Parser, whole_number
from tts_plugin.config import Settings, load_settings
from tts_plugin.errors import ConfigError, EngineUnavailable
from tts_plugin.hosts import is_loopback
from tts_plugin.link import Address
from tts_plugin.server.local import LocalServer

PORT = 8080
HTTP_S = 5.0


def call(argv: Sequence[str]) -> int | None:
    """Serve the page and the agent behind it until interrupted."""
    parser = Parser("sparkvoice call", description="Talk to the agent in the browser.")
    parser.add_argument("--config", metavar="F.yaml", type=Path)
    parser.add_argument(
        "--host", default="127.0.0.1", help="any but a loopback address needs SPARKVOICE_TOKEN"
    )
    parser.add_argument("--port", type=whole_number(0, 65_535), default=PORT, help="0 takes a free one")
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        help="a host name that the page is reached by, e.g. behind a proxy",
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
    doors = Doors(token, (*map(str.lower, args.name), args.host), args.max_calls, IceOptions(tuple(args.ice)))
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    return asyncio.run(_serve(engine_side, agent_side, args.config, doors, args.host, args.port))


async def _serve(
    engine_side: Settings, agent_side: AgentSide, config: Path | None, doors: Doors, host: str, port: int
) -> None:
    """Until a signal comes, also while it still starts."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    stopped = asyncio.create_task(stop.wait(), name="a signal")
    page = asyncio.create_task(_page(engine_side, agent_side, config, doors, host, port), name="page")
    await asyncio.wait([stopped, page], return_when=asyncio.FIRST_COMPLETED)
    for task in (stopped, page):
        task.cancel()
    await asyncio.wait([stopped, page])
    if not page.cancelled():
        page.result()  # why it ended by itself


async def _page(
    engine_side: Settings, agent_side: AgentSide, config: Path | None, doors: Doors, host: str, port: int
) -> None:
    with listen(host, port) as listener:  # first: a port in use is said before anything is loaded
        async with (
            agent_behind_the_page(engine_side, agent_side, config) as (converse, voices),
            serving(build_app(files("demo") / "static", converse, voices, doors), listener) as taken,
        ):
            print(f"Sparkvoice: open {_link(host, taken, doors.token)}, press Call and talk (Ctrl-C ends)")
            sys.stdout.flush()
            await asyncio.Event().wait()  # until it is cancelled


@asynccontextmanager
async def agent_behind_the_page(
    engine_side: Settings, agent_side: AgentSide, config: Path | None
) -> AsyncIterator[tuple[Converse, ListVoices]]:
    """What talks to callers and what lists its voices; warm, and ended with the block."""
    await _engine_server(engine_side, config)  # what does not work is said before anything else is loaded
    brain = build_llm(agent_side)
    async with (
        STT(agent_side.agent.ears_model) as ears,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HTTP_S)) as http,
    ):
        ears.prewarm()

        # asked for anew each time: a child that lost its port when it died has another one now
        async def make_tts(voice: str | None) -> TTS:
            where = await _engine_server(engine_side, config)
            return TTS(voice=voice, url=where.url, token=where.token)

        async def voices() -> Sequence[Offered]:
            where = await _engine_server(engine_side, config)
            return await offered_voices(http, where, agent_side.agent.voice)

        try:
            yield Talker(agent_side.agent, ears, brain, make_tts, voices), voices
        finally:
            await brain.aclose()


async def _engine_server(settings: Settings, config: Path | None) -> Address:
    if settings.url is not None:
        return Address(settings.url, settings.server.token)
    return await LocalServer.shared(config).address()


async def offered_voices(
    http: aiohttp.ClientSession, where: Address, chosen: str | None
) -> Sequence[Offered]:
    """The engine server's voices; `chosen`, else its own default, is marked as the default."""
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
    ]


def _link(host: str, port: int, token: str | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + (f"#token={quote(token)}" if token else "")

"""`sparkvoice phone`: the agent on telephone lines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from agent.calls import Calls
from agent.config import PhoneSettings, load_settings
from agent.config import Settings as AgentSide
from agent.desk.bot import Desk, open_desk
from agent.parts import Parts, open_parts, who_answers
from agent.phone import Receptionist, if_free
from agent.phone_server import PhoneDoors, PhoneServer
from agent.serving import serving, until_a_signal
from agent.transports import audiosocket
from agent.transports.carrier import Carrier
from agent.transports.carriers import carriers
from agent.transports.dialect import Kind
from tts_plugin.arguments import Parser, whole_number
from tts_plugin.config import Settings
from tts_plugin.config import load_settings as load_engine_side
from tts_plugin.errors import ConfigError
from tts_plugin.listener import listen


def main(argv: Sequence[str]) -> int | None:
    """Serve the carriers' webhooks and media until interrupted."""
    parser = Parser("sparkvoice phone", description="Answer the telephone (docs/phone.md).")
    parser.add_argument(
        "--config", metavar="F.yaml", type=Path, help="settings; configs/support-bot.yaml is a customer line"
    )
    parser.add_argument("--host", help="carriers need https: put a proxy in front and set phone.public_url")
    parser.add_argument("--port", type=whole_number(0, 65_535), help="0 takes a free one (default 8090)")
    parser.add_argument(
        "--public-url", metavar="URL", help="where carriers reach this, like https://phone.me"
    )
    parser.add_argument("--max-calls", type=whole_number(1, 1000), metavar="N", help="at once (default 8)")
    parser.add_argument("--audiosocket", type=whole_number(0, 65_535), metavar="PORT", help="for Asterisk")
    parser.add_argument(
        "--unsigned", action="store_true", default=None, help="take any webhook, on loopback: to develop"
    )
    args = parser.parse_args(argv)
    given = {
        key: value
        for key in ("host", "port", "public_url", "max_calls", "audiosocket", "unsigned")
        if (value := getattr(args, key)) is not None
    }
    engine_side, agent_side = load_engine_side(args.config), load_settings(args.config, phone=given)
    phone = agent_side.phone
    served = carriers(phone)
    doors = PhoneDoors(phone.public_url, engine_side.server.token, phone.unsigned)
    doors.require_closed(phone.host, served)
    if phone.audiosocket is None and not doors.unsigned and all(one.missing for one in served.values()):
        raise ConfigError(
            f"nobody can call: set {_secrets_of(served)}, "
            "or give --audiosocket PORT, or --unsigned to develop"
        )
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    asyncio.run(until_a_signal(_serve(engine_side, agent_side, args.config, served, doors)))
    return None


async def _serve(
    engine_side: Settings,
    agent_side: AgentSide,
    config: Path | None,
    served: Mapping[Kind, Carrier],
    doors: PhoneDoors,
) -> None:
    phone = agent_side.phone
    calls = Calls(phone.max_calls)
    async with AsyncExitStack() as stack:
        # first: a port in use is said before anything is loaded
        listener = stack.enter_context(listen(phone.host, phone.port))
        asterisks = audiosocket.Doors(phone.asterisks)
        asterisk = None
        if phone.audiosocket is not None:
            asterisk = stack.enter_context(audiosocket.open_door(phone.host, phone.audiosocket, asterisks))
        parts = await stack.enter_async_context(open_parts(engine_side, agent_side, config))
        desk = await stack.enter_async_context(open_desk(agent_side)) if phone.desk else None
        answer = receptionist(agent_side, parts, calls, desk)
        app = PhoneServer(served, answer, calls, doors).app
        port = await stack.enter_async_context(serving(app, listener))
        asterisk_port = None
        if asterisk is not None:
            answering = audiosocket.answering(asterisk, if_free(calls, answer), asterisks)
            asterisk_port = (await stack.enter_async_context(answering)).port
        ways = ways_in(phone, port, asterisk_port, served, doors)
        print(who_answers(agent_side), *ways, sep="\n", flush=True)
        await asyncio.Event().wait()  # until it is cancelled


def receptionist(agent_side: AgentSide, parts: Parts, calls: Calls, desk: Desk | None = None) -> Receptionist:
    """What answers every line; with a desk, as that."""
    voice = agent_side.agent.voice
    return Receptionist(
        agent_side.agent,
        parts.ears,
        parts.brain,
        lambda: parts.make_tts(voice),
        calls,
        make_bot=desk.bot if desk else None,
    )


def ways_in(
    phone: PhoneSettings,
    port: int,
    asterisk_port: int | None,
    served: Mapping[Kind, Carrier],
    doors: PhoneDoors,
) -> list[str]:
    """The lines that tell how callers get here."""
    host = f"[{phone.host}]" if ":" in phone.host else phone.host
    here = f"http://{host}:{port}"
    lines = [
        f"Sparkvoice: {kind.capitalize()} calls POST {doors.public_url or here}/{kind}/voice"
        for kind, carrier in served.items()
        if carrier.missing is None or doors.unsigned
    ]
    if not lines and phone.public_url is not None:
        lines.append(f"Sparkvoice: no carrier can call: set {_secrets_of(served)}")
    if lines and phone.public_url is not None and phone.public_url.startswith("http:"):
        lines.append(
            "Sparkvoice: carriers call https addresses only: put https in front, and in phone.public_url"
        )
    if phone.desk is not None and phone.desk.hand_over.to is None:
        lines.append("Sparkvoice: nobody is handed over to: set phone.desk.hand_over.to to a number")
    if asterisk_port is not None:
        lines.append(f"Sparkvoice: Asterisk connects to {host}:{asterisk_port} (docs/asterisk.md)")
    return [*lines, f"Sparkvoice: listening at {here}, at most {phone.max_calls} calls (Ctrl-C ends)"]


def _secrets_of(served: Mapping[Kind, Carrier]) -> str:
    """The variables that are not set, in the carriers' order."""
    return " or ".join(str(carrier.missing) for carrier in served.values() if carrier.missing is not None)

"""`sparkvoice bench calls`: many telephone calls at once with the embedded voice, real ears and the engine
server in its child process; how evenly their audio leaves."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from agent.bench.callers import BLOCK_S, Measured, Pace
from agent.calls import Calls
from agent.config import load_settings
from agent.parts import open_parts
from agent.phone import Receptionist
from agent.phone_server import PhoneDoors, PhoneServer
from agent.serving import serving
from agent.transports.dialect import Json
from agent.transports.twilio import Twilio
from tts_plugin.arguments import Parser, whole_number
from tts_plugin.bench.report import Figure, save, show
from tts_plugin.config import load_settings as load_engine_side
from tts_plugin.errors import SynthesisFailed
from tts_plugin.listener import listen

# 6 s of speech: as the calls begin half a second apart, a dozen speak at once
_GREETING = (
    "The ferry to the island leaves at nine every morning, and it takes about two hours to cross the bay."
)


def main(argv: Sequence[str]) -> int:
    parser = Parser("sparkvoice bench calls", description="Many telephone calls at once, each listening.")
    parser.add_argument("--calls", type=whole_number(1, 200), default=20, help="at once (default 20)")
    parser.add_argument("--seconds", type=whole_number(5, 600), default=20, help="of each (default 20)")
    parser.add_argument("--json", metavar="F", type=Path, help="write the figures to F")
    args = parser.parse_args(argv)
    measured, sent_ms, used, late_ms = asyncio.run(_measure(args.calls, args.seconds))
    if not measured.jitter_ms:
        raise SynthesisFailed("no call was spoken to long enough to measure its pace")
    figures = {
        "a beat of 20 ms in the serving process late by, ms": Figure.of(late_ms),
        "time between blocks as they are sent, off 20 ms by, ms": Figure.of(sent_ms),
        "and as they arrive, in the callers' process, ms": Figure.of(measured.jitter_ms),
        "media connected to first sound, ms": Figure.of(measured.first_sound_ms),
    }
    if measured.dry_ms:
        figures["the far buffer empty in speech, ms"] = Figure.of(measured.dry_ms)
    late_p99, sent_p99, p99 = (
        float(np.percentile(values, 99)) for values in (late_ms, sent_ms, measured.jitter_ms)
    )
    notes = [
        f"p99 of the beat {late_p99:.1f} ms, of the blocks sent {sent_p99:.1f} ms, arrived {p99:.1f} ms; "
        f"{measured.calls} calls, {measured.blocks} blocks, "
        f"{measured.dry} times the far buffer ran empty in speech; this process used {used:.2f} cores"
    ]
    show("bench calls", figures, notes)
    if args.json:
        extra = {
            "late_p99_ms": round(late_p99, 2),
            "sent_p99_ms": round(sent_p99, 2),
            "jitter_p99_ms": round(p99, 2),
            "dry": measured.dry,
            "cores": round(used, 2),
        }
        save(args.json, "calls", figures, extra)
    return 0


async def _measure(count: int, seconds: int) -> tuple[Measured, list[float], float, list[float]]:
    """What the callers measured, how unevenly their audio was sent, the cores that this process used, and how
    late its beats were."""
    agent_side = load_settings(arguments={"greeting": _GREETING})
    calls = Calls(count)
    late_ms: list[float] = []
    async with open_parts(load_engine_side(), agent_side, None) as parts:
        voice = agent_side.agent.voice
        answer = Receptionist(agent_side.agent, parts.ears, parts.brain, lambda: parts.make_tts(voice), calls)
        carrier, sent_ms = timed(Twilio(None))
        server = PhoneServer({"twilio": carrier}, answer, calls, PhoneDoors(unsigned=True))
        async with serving(server.app, listen("127.0.0.1", 0)) as port:
            words = (f"http://127.0.0.1:{port}", str(count), str(seconds))
            began_s, began_cpu_s = time.monotonic(), time.process_time()
            callers = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "agent.bench.callers", *words, stdout=asyncio.subprocess.PIPE
            )
            beats = asyncio.create_task(_beat(late_ms), name="beat")
            told, _ = await callers.communicate()
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)
            used = (time.process_time() - began_cpu_s) / (time.monotonic() - began_s)
    if callers.returncode != 0:
        raise SynthesisFailed("the callers' process failed; what it said stands above")
    return Measured(**json.loads(told)), sent_ms, used, late_ms


def timed(carrier: Twilio) -> tuple[Twilio, list[float]]:
    """The carrier, and how far the time between two blocks of a call was from 20 ms when they were sent."""
    paces: defaultdict[str, Pace] = defaultdict(Pace)
    sent_ms: list[float] = []

    def send_media(stream: str, data: str) -> Json:
        off_ms = paces[stream].note(time.monotonic())
        if off_ms is not None:
            sent_ms.append(off_ms)
        return carrier.dialect.send_media(stream, data)

    return replace(carrier, dialect=replace(carrier.dialect, send_media=send_media)), sent_ms


async def _beat(late_ms: list[float]) -> None:
    """Note how late each 20 ms are noticed: every call's player is."""
    due_s = time.monotonic()
    while True:
        due_s += BLOCK_S
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        late_ms.append((time.monotonic() - due_s) * 1000)

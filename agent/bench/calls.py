"""`sparkvoice bench calls`: many telephone calls at once with the embedded voice, real ears and the engine
server in its child process; how evenly their audio leaves."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from agent.bench.callers import Measured
from agent.calls import Calls
from agent.config import load_settings
from agent.parts import open_parts
from agent.phone import Receptionist
from agent.phone_server import PhoneDoors, PhoneServer
from agent.serving import serving
from agent.transports.carriers import carriers
from tts_plugin.arguments import Parser, whole_number
from tts_plugin.bench.report import Figure, save, show
from tts_plugin.config import load_settings as load_engine_side
from tts_plugin.errors import SynthesisFailed
from tts_plugin.listener import listen

_GREETING = (
    "The ferry to the island leaves at nine every morning, and it takes about two hours to cross the bay. "
    "You can buy a ticket at the kiosk by the old lighthouse. Please bring a coat, since it can be windy. "
)


def main(argv: Sequence[str]) -> int:
    parser = Parser("sparkvoice bench calls", description="Many telephone calls at once, each listening.")
    parser.add_argument("--calls", type=whole_number(1, 200), default=20, help="at once (default 20)")
    parser.add_argument("--seconds", type=whole_number(5, 600), default=20, help="of each (default 20)")
    parser.add_argument("--json", metavar="F", type=Path, help="write the figures to F")
    args = parser.parse_args(argv)
    measured, used = asyncio.run(_measure(args.calls, args.seconds))
    if not measured.jitter_ms:
        raise SynthesisFailed("no call was spoken to long enough to measure its pace")
    figures = {
        "time between blocks, off 20 ms by, ms": Figure.of(measured.jitter_ms),
        "media connected to first sound, ms": Figure.of(measured.first_sound_ms),
    }
    if measured.dry_ms:
        figures["the far buffer empty in speech, ms"] = Figure.of(measured.dry_ms)
    p99 = float(np.percentile(measured.jitter_ms, 99))
    notes = [
        f"jitter p99 {p99:.1f} ms; {measured.calls} calls, {measured.blocks} blocks, "
        f"{measured.dry} times the far buffer ran empty in speech; this process used {used:.2f} cores"
    ]
    show("bench calls", figures, notes)
    if args.json:
        extra = {"jitter_p99_ms": round(p99, 2), "dry": measured.dry, "cores": round(used, 2)}
        save(args.json, "calls", figures, extra)
    return 0


async def _measure(count: int, seconds: int) -> tuple[Measured, float]:
    agent_side = load_settings(arguments={"greeting": _GREETING})
    calls = Calls(count)
    async with open_parts(load_engine_side(), agent_side, None) as parts:
        voice = agent_side.agent.voice
        answer = Receptionist(agent_side.agent, parts.ears, parts.brain, lambda: parts.make_tts(voice), calls)
        server = PhoneServer(carriers(agent_side.phone), answer, calls, PhoneDoors(unsigned=True))
        async with serving(server.app, listen("127.0.0.1", 0)) as port:
            words = (f"http://127.0.0.1:{port}", str(count), str(seconds))
            began_s, began_cpu_s = time.monotonic(), time.process_time()
            callers = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "agent.bench.callers", *words, stdout=asyncio.subprocess.PIPE
            )
            told, _ = await callers.communicate()
            used = (time.process_time() - began_cpu_s) / (time.monotonic() - began_s)
    if callers.returncode != 0:
        raise SynthesisFailed("the callers' process failed; what it said stands above")
    return Measured(**json.loads(told)), used

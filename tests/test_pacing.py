"""Many telephone calls at once keep their pace; the figures come from `sparkvoice bench calls`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack

import numpy as np
import pytest

from agent.bench.callers import GAP_S, SETTLED, Pace
from agent.bench.calls import timed
from agent.calls import Calls
from agent.line import MediaLine
from agent.line_ear import LineEar
from agent.transports.twilio import Twilio
from tests.far_carrier import MANNERS, RATE, SECRET, office

CALLS = 20
SPOKEN_S = 4.0
# what a process that has loaded an agent leaves to the garbage collector, before and after it has settled
SETTLING = """
import gc
import agent.phone_command
from agent.serving import settle
before = len(gc.get_objects())
settle()
print(before, len(gc.get_objects()))
"""


def beats(count: int, start_s: float = 0.0) -> Iterator[float]:
    return (start_s + 0.02 * number for number in range(count))


def test_a_pace_is_told_from_an_utterance_s_settled_blocks_and_not_over_a_silence() -> None:
    pace = Pace()
    told = [pace.note(now_s) for now_s in beats(SETTLED + 5)]
    assert told[:SETTLED] == [None] * SETTLED
    assert told[SETTLED:] == pytest.approx([0.0] * 5, abs=1e-6)
    end_s = 0.02 * (SETTLED + 4)
    assert pace.note(end_s + 0.05) == pytest.approx(30.0)
    assert pace.note(end_s + 0.05) == pytest.approx(20.0)
    again_s = end_s + 0.06 + GAP_S
    assert [pace.note(now_s) for now_s in beats(SETTLED, again_s)] == [None] * SETTLED


def test_a_settled_process_has_next_to_nothing_for_the_garbage_collector_to_look_at() -> None:
    """A full collection stops every call; it takes its time for each object it looks at."""
    out = subprocess.run([sys.executable, "-c", SETTLING], capture_output=True, text=True, check=True).stdout
    before, after = map(int, out.split())
    assert before > 50_000
    assert after < before / 20


async def test_twenty_calls_on_media_streams_are_sent_a_block_a_tick() -> None:
    lines: asyncio.Queue[MediaLine] = asyncio.Queue()

    async def answer(line: MediaLine) -> None:
        line.audio.hear_through(LineEar(line.playout).push)
        lines.put_nowait(line)
        await line.ended()

    manners = MANNERS["twilio"]
    carrier, off_ms = timed(Twilio(SECRET))
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(office("twilio", answer, Calls(CALLS), carrier))
        fars = []
        for number in range(CALLS):
            form = manners.form | {"CallSid": f"CA{number}"}
            fars.append(await stack.enter_async_context(place.dialled(form=form)))
        tone = (9000 * np.sin(np.arange(round(SPOKEN_S * RATE)))).astype(np.int16)
        for _ in range(CALLS):
            line = await asyncio.wait_for(lines.get(), 5)
            line.playout.put(tone)
            line.playout.end()
        async with asyncio.timeout(30):
            while sum(len(far.played) for far in fars) < CALLS * SPOKEN_S / 0.02:
                await asyncio.sleep(0.1)
        assert all(far.breaches == [] for far in fars)
    assert len(off_ms) > CALLS * (SPOKEN_S / 0.02 - SETTLED - 5)
    # a machine with other work is late now and then, but no tick sends none and the next one two
    assert np.median(off_ms) < 10

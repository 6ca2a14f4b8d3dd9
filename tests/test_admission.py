"""An engine speaks so many turns at once; a few wait, the rest are told when to come again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.engine_server import ProbedTone, client, running, settings_of
from tests.engines import ProbeEngine, turn
from tests.test_server import LONG, SENTENCE, until
from tts_plugin import wire
from tts_plugin.capacity import Capacity, Machine, save
from tts_plugin.config import EngineSettings, HibariSettings, Settings, ToneSettings
from tts_plugin.engine import Segment
from tts_plugin.errors import Overloaded, SynthesisFailed, retold, told
from tts_plugin.server.admission import Admission, Admitted, Gate, max_streams
from tts_plugin.utterance import Utterance


def gate(streams: int = 1, waiting: int = 2, wait_s: float = 5.0) -> Gate:
    return Gate("tone", streams, waiting, wait_s)


def small(streams: int, **server: object) -> Settings:
    """A server whose tone engine speaks that many turns at once."""
    return settings_of(engine={"voice": "tone", "tone": {"max_streams": streams}}, server=server)


async def entered(gate: Gate, leave: asyncio.Event) -> None:
    async with gate.place():
        await leave.wait()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


# --- the gate


async def test_those_who_wait_come_in_in_their_order_as_others_leave() -> None:
    places, leave = gate(streams=2, waiting=3), [asyncio.Event() for _ in range(5)]
    tasks = [asyncio.create_task(entered(places, each)) for each in leave]
    await settled()
    assert (places.active, places.waiting) == (2, 3)
    for left in range(5):
        leave[left].set()
        await settled()
        assert places.active == min(2, 4 - left)
        assert places.waiting == max(0, 2 - left)
        assert tasks[left].done()
    assert (places.full, places.late) == (0, 0)


async def test_beyond_those_who_may_wait_it_is_overloaded_at_once() -> None:
    places, leave = gate(streams=1, waiting=1), asyncio.Event()
    tasks = [asyncio.create_task(entered(places, leave)) for _ in range(2)]
    await settled()
    with pytest.raises(Overloaded, match=r"engine tone speaks 1 turns.*try again later") as refused:
        await entered(places, leave)
    assert refused.value.retry_after_s is not None
    assert 0.5 <= refused.value.retry_after_s <= 30
    assert (places.full, places.active, places.waiting) == (1, 1, 1)
    leave.set()
    await asyncio.gather(*tasks)
    assert (places.active, places.waiting) == (0, 0)


async def test_who_has_waited_long_enough_is_told_so_and_waits_no_more() -> None:
    places, leave = gate(wait_s=0.02), asyncio.Event()
    inside = asyncio.create_task(entered(places, leave))
    await settled()
    with pytest.raises(Overloaded, match=r"for 0\.02 s none of them ended"):
        await entered(places, leave)
    assert (places.late, places.active, places.waiting) == (1, 1, 0)
    leave.set()
    await inside
    assert places.active == 0


async def test_who_is_cancelled_while_waiting_leaves_the_queue() -> None:
    places, leave = gate(waiting=2), [asyncio.Event() for _ in range(3)]
    tasks = [asyncio.create_task(entered(places, each)) for each in leave]
    await settled()
    tasks[1].cancel()
    await settled()
    assert places.waiting == 1
    leave[0].set()
    await settled()
    assert (places.active, places.waiting) == (1, 0), "and the next is in"
    leave[2].set()
    await tasks[2]
    assert places.active == 0


@pytest.mark.parametrize("cancel_first", [False, True])
async def test_a_place_given_to_one_who_is_cancelled_at_that_moment_is_not_lost(cancel_first: bool) -> None:
    places, leave = gate(waiting=2), [asyncio.Event() for _ in range(3)]
    tasks = [asyncio.create_task(entered(places, each)) for each in leave]
    await settled()
    if cancel_first:
        tasks[1].cancel()
    places._leave()  # as if the first had left, within one step of the event loop
    if not cancel_first:
        tasks[1].cancel()
    await settled()
    assert tasks[1].cancelled()
    assert (places.active, places.waiting) == (1, 0)
    leave[2].set()
    await tasks[2]
    assert places.active == 0
    places.active += 1  # the first's own, given away above
    leave[0].set()
    await tasks[0]


async def test_with_nobody_allowed_to_wait_it_is_full_or_free() -> None:
    places, leave = gate(waiting=0), asyncio.Event()
    inside = asyncio.create_task(entered(places, leave))
    await settled()
    with pytest.raises(Overloaded, match="none may wait"):
        await entered(places, leave)
    leave.set()
    await inside


async def test_the_advice_follows_how_long_turns_last() -> None:
    now_s = 0.0
    places = Gate("tone", 1, 2, 5.0, clock=lambda: now_s)
    for _ in range(60):
        async with places.place():
            now_s += 20.0
    assert places.retry_after_s == pytest.approx(20.0, rel=0.1)
    for _ in range(100):
        async with places.place():
            now_s += 0.1
    assert places.retry_after_s == 0.5


# --- the engine behind it


async def test_a_turn_holds_one_place_however_many_segments_it_has() -> None:
    places = gate(streams=1, waiting=0)
    engine = Admitted(ProbeEngine(), places)
    async with Utterance(engine, turn(), lead_s=None) as utterance:
        for text in ("One. ", "Two. ", "Three. "):
            utterance.push(text)
            utterance.flush()
            await anext(utterance)
            assert places.active == 1
        utterance.end()
        assert {frame.segment async for frame in utterance} >= {2}
        assert utterance.timeline.segments == 3
    assert (places.active, places.full) == (0, 0)


async def test_a_turn_that_says_nothing_needs_no_place() -> None:
    places, leave = gate(streams=1, waiting=0), asyncio.Event()
    inside = asyncio.create_task(entered(places, leave))
    await settled()
    async with Utterance(Admitted(ProbeEngine(), places), turn()) as utterance:
        utterance.push("...")
        utterance.end()
        assert [frame async for frame in utterance] == []
    leave.set()
    await inside


@pytest.mark.parametrize("ending", ["done", "left", "error", "error at once"])
async def test_however_a_turn_ends_its_place_is_free(ending: str) -> None:
    places = gate()
    probe = ProbeEngine(fail_at={"error": 3, "error at once": 0}.get(ending))
    async with Utterance(Admitted(probe, places), turn(), lead_s=None) as utterance:
        utterance.push("Hello there.")
        utterance.end()
        if ending == "left":
            await anext(utterance)
            assert places.active == 1
        elif ending == "done":
            assert len([frame async for frame in utterance]) > 3
        else:
            with pytest.raises(SynthesisFailed):
                async for _ in utterance:
                    pass
    assert (places.active, probe.active) == (0, 0)


async def test_the_wait_for_a_place_is_a_stage_and_only_if_there_was_one() -> None:
    places, leave = gate(), asyncio.Event()
    inside = asyncio.create_task(entered(places, leave))
    await settled()
    async with Utterance(Admitted(ProbeEngine(), places), turn()) as utterance:
        utterance.push("Hello.")
        utterance.end()
        asyncio.get_running_loop().call_later(0.02, leave.set)
        await anext(utterance)
        assert list(utterance.timeline.report()["stages_ms"]) == ["admission", "engine", "resample"]
        assert utterance.timeline.report()["stages_ms"]["admission"] >= 15
    await inside
    async with Utterance(Admitted(ProbeEngine(), places), turn()) as utterance:
        utterance.push("Hello.")
        await anext(utterance)
        assert "admission" not in utterance.timeline.report()["stages_ms"]


async def test_an_engine_loaded_again_has_the_gate_it_had() -> None:
    admission = Admission(small(3))
    first, second = (admission.admitted("tone", ProbedTone()) for _ in range(2))
    assert isinstance(first, Admitted)
    assert isinstance(second, Admitted)
    assert first.gate is second.gate is admission.gates["tone"]
    assert first.gate.streams == 3
    assert (first.rate, first.languages) == (24_000, frozenset())


# --- how many


def test_the_setting_beats_what_was_measured_which_beats_the_guess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for engine in ("hibari", "tone", "spark", "another"):
        assert max_streams(engine, EngineSettings()) >= 1
    guess = max_streams("tone", EngineSettings())
    save("tone", EngineSettings(), Capacity(7))
    assert max_streams("tone", EngineSettings()) == 7 != guess
    assert max_streams("tone", EngineSettings(tone=ToneSettings(max_streams=3))) == 3
    # it was measured with these settings, and chosen with those
    assert max_streams("tone", EngineSettings(tone=ToneSettings(seconds_per_char=0.5))) == guess


def test_cores_that_hibari_does_not_use_carry_no_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    def guess(cpus: int, at_once: int) -> int:
        monkeypatch.setattr(Machine, "this", lambda: Machine(cpus, "some", ()))
        return max_streams("hibari", EngineSettings(hibari=HibariSettings(at_once=at_once)))

    monkeypatch.setattr("tts_plugin.server.admission.load", lambda *_: None)  # nothing was measured
    assert guess(1, 1) < guess(2, 1) == guess(64, 1) < guess(64, 8)


# --- over the wire


async def test_a_turn_too_many_is_overloaded_and_told_when_to_come_again() -> None:
    engine = ProbedTone()
    async with running(small(2, max_waiting=0), build=lambda _: engine) as port, client(port) as caller:
        await caller.say(1, LONG)
        await caller.say(2, LONG)
        await caller.audio(1)
        await caller.audio(2)
        await caller.say(3, SENTENCE)
        refused = (await caller.over(3)).last
        assert isinstance(refused, wire.Error)
        assert (refused.code, refused.retryable) == ("overloaded", True)
        assert refused.retry_after_s is not None
        assert refused.retry_after_s > 0
        assert engine.speaking == 2
        await caller.send(wire.Cancel(context=1))
        await caller.over(1)
        await caller.say(4, "There is room again.")
        assert isinstance((await caller.over(4)).last, wire.Done)


async def test_a_turn_waits_for_a_place_and_one_that_is_cancelled_meanwhile_leaves_the_queue() -> None:
    engine = ProbedTone()
    settings = small(1, max_waiting=2, max_wait_s=30)
    async with running(settings, build=lambda _: engine) as port, client(port) as caller:
        await caller.say(1, LONG)
        await caller.audio(1)
        await caller.say(2, SENTENCE, lead_s=None)
        await caller.say(3, SENTENCE, lead_s=None)
        await caller.until(lambda: len(caller.of(3).messages) == 1)
        await caller.send(wire.Cancel(context=2))
        assert isinstance((await caller.over(2)).last, wire.Cancelled)
        assert caller.of(3).chunks == []
        await caller.send(wire.Cancel(context=1))
        done = (await caller.over(3)).last
        assert isinstance(done, wire.Done)
        assert done.timeline["stages_ms"]["admission"] > 0
        assert caller.of(2).chunks == []


async def test_a_client_that_is_gone_gives_its_places_back_those_it_waited_for_too() -> None:
    engine = ProbedTone()
    async with running(small(2, max_wait_s=30), build=lambda _: engine) as port, client(port) as other:
        async with client(port) as caller:
            for context in range(1, 6):
                await caller.say(context, LONG)
            await caller.audio(1)
            await caller.audio(2)
        await other.say(1, SENTENCE, lead_s=None)
        assert isinstance((await other.over(1)).last, wire.Done)
        await until(lambda: engine.speaking == 0, "all places are free")


async def test_open_contexts_without_text_hold_no_place() -> None:
    async with running(small(1, max_waiting=0)) as port, client(port) as caller:
        await caller.send(*(wire.Start(context=context) for context in range(1, 11)))
        await caller.say(11, SENTENCE, lead_s=None)
        assert isinstance((await caller.over(11)).last, wire.Done)


async def test_a_reader_that_does_not_read_keeps_its_place_and_holds_no_other_back() -> None:
    engine = ProbedTone()
    async with running(small(3), build=lambda _: engine) as port, client(port) as slow:
        await slow.say(1, LONG * 20, lead_s=None)
        await until(lambda: engine.samples > 1_000_000, "it fills its socket")
        async with client(port) as other:
            began_s = time.monotonic()
            for context in (1, 2):
                await other.say(context, LONG, lead_s=None)
            await other.over(1, 2)
            took_s = time.monotonic() - began_s
            audio_s = len(other.of(1).pcm) / 24_000
            assert isinstance(other.of(1).last, wire.Done)
            assert took_s < audio_s / 5, "as fast as if it were alone"
        assert engine.speaking == 1


def test_an_overload_crosses_the_wire_with_its_advice_and_other_errors_look_as_before() -> None:
    there = told(Overloaded("full", 4.5))
    sent = wire.Error.model_validate({"context": 1, **there}).model_dump_json()
    came = wire.parse_server(sent)
    assert isinstance(came, wire.Error)
    back = retold(came.code, came.message, came.retryable, came.retry_after_s)
    assert isinstance(back, Overloaded)
    assert (str(back), back.retry_after_s) == ("full", 4.5)
    for error in (Overloaded("full"), SynthesisFailed("broken")):
        sent = wire.Error.model_validate({"context": 1, **told(error)}).model_dump_json()
        assert "retry_after_s" not in sent


async def test_a_segment_is_not_lost_while_the_place_is_waited_for() -> None:
    async def segments() -> AsyncIterator[Segment]:
        for index, text in enumerate(("One.", "Two.")):
            yield Segment(index, text, 0, 4)

    probe = ProbeEngine()
    engine = Admitted(probe, gate())
    heard = [frame async for frame in engine.speak(turn(), segments())]
    assert probe.texts == ["One.", "Two."]
    assert {frame.segment for frame in heard} == {0, 1}

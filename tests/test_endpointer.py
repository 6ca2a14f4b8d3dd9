"""The endpointer cuts speech where the silence is."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile

from agent.endpointer import RATE, Ended, Endpointer, Event, Paused, Resumed, Silences
from tts_plugin.audio import Pcm, silence

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def speech() -> Pcm:
    """About 2 s of speech that has no silence at either end."""
    pcm, rate = soundfile.read(DATA / "librivox_sense_0890.wav", dtype="int16")
    assert rate == RATE
    return np.asarray(pcm[RATE // 2 : RATE * 5 // 2], dtype=np.int16)


def ended(events: list[Event]) -> list[Ended]:
    return [event for event in events if isinstance(event, Ended)]


def test_the_end_is_the_piece_that_the_pause_announced(speech: Pcm) -> None:
    events = Endpointer().push(np.concatenate((silence(1, RATE), speech, silence(1, RATE))))
    *_, paused, end = events
    assert isinstance(paused, Paused)
    assert isinstance(end, Ended)
    assert end.piece is paused.piece
    assert abs(end.piece.start - RATE) < 0.35 * RATE
    assert abs(end.piece.stop - RATE - len(speech)) < 0.3 * RATE


def test_portions_of_any_size_give_the_same_events(speech: Pcm) -> None:
    whole = np.concatenate((silence(0.5, RATE), speech, silence(0.4, RATE), speech, silence(1, RATE)))
    at_once = Endpointer().push(whole)
    endpointer = Endpointer()
    in_portions = [
        event for cut in range(0, len(whole), 77) for event in endpointer.push(whole[cut : cut + 77])
    ]
    spans = [
        [
            (type(event), event.piece.start, event.piece.stop)
            for event in events
            if not isinstance(event, Resumed)
        ]
        for events in (at_once, in_portions)
    ]
    assert spans[0] == spans[1]
    assert len(ended(at_once)) == 2


def test_speech_that_resumes_before_the_end_is_one_utterance(speech: Pcm) -> None:
    events = Endpointer(Silences(0.15, 0.6)).push(
        np.concatenate((speech, silence(0.3, RATE), speech, silence(1, RATE)))
    )
    assert any(isinstance(event, Resumed) for event in events)
    (end,) = ended(events)
    assert len(end.piece.pcm) > 2 * len(speech)


def test_flush_ends_what_is_open_and_only_that(speech: Pcm) -> None:
    endpointer = Endpointer()
    endpointer.push(speech)
    assert endpointer.open
    (end,) = endpointer.flush()
    assert isinstance(end, Ended)
    assert len(end.piece.pcm) >= len(speech)
    assert endpointer.flush() == []
    assert not endpointer.open


def test_silence_and_clicks_end_nothing() -> None:
    clicks = silence(6, RATE)
    for at in range(RATE // 2, len(clicks), RATE // 2):
        clicks[at : at + 80] = 12_000
    endpointer = Endpointer()
    assert ended(endpointer.push(silence(5, RATE)) + endpointer.push(clicks)) == []


def test_speech_without_end_is_cut_and_no_sample_is_lost(speech: Pcm) -> None:
    endless = np.tile(speech, 35)
    endpointer = Endpointer()
    events = ended(endpointer.push(endless) + endpointer.push(silence(1, RATE)))
    assert len(events) >= 3
    assert max(len(event.piece.pcm) for event in events) <= 25.1 * RATE
    for before, after in pairwise(events):
        assert after.piece.start <= before.piece.stop
    assert events[-1].piece.stop >= len(endless)
    assert [event.piece.number for event in events] == list(range(len(events)))


def test_silences_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="pause_s"):
        Silences(pause_s=0.5, end_s=0.3)
    with pytest.raises(ValueError, match="longest_s"):
        Silences(longest_s=60)

"""What the tests of the plugin do again and again: speak, collect, wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from livekit.agents import APIConnectOptions, APIError, metrics
from livekit.agents import tts as lk
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT

from tts_plugin.audio import Pcm, samples_of
from tts_plugin.spoken import Word

ONCE = APIConnectOptions(max_retry=0, timeout=5.0)
FERRY = "The ferry to the island leaves at nine. It takes two hours to cross the bay."


@dataclass
class Log:
    """What a TTS told its listeners."""

    metrics: list[metrics.TTSMetrics] = field(default_factory=list)
    errors: list[lk.TTSError] = field(default_factory=list)

    @classmethod
    def of(cls, plugin: lk.TTS[Any]) -> Log:
        log = cls()
        plugin.on("metrics_collected", log.metrics.append)
        plugin.on("error", log.errors.append)
        return log


def pcm_of(events: list[lk.SynthesizedAudio]) -> Pcm:
    return np.concatenate([samples_of(bytes(event.frame.data)) for event in events] or [samples_of(b"")])


def seconds_of(events: list[lk.SynthesizedAudio]) -> float:
    return sum(event.frame.duration for event in events)


def words_of(events: list[lk.SynthesizedAudio]) -> list[Word]:
    timed = [word for event in events for word in event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, [])]
    return [Word(str(word), word.start_time, word.end_time) for word in timed]


def text_of(events: list[lk.SynthesizedAudio]) -> str:
    """What the words that came with the audio join to."""
    return "".join(word.text for word in words_of(events))


async def collect(stream: lk.SynthesizeStream | lk.ChunkedStream) -> list[lk.SynthesizedAudio]:
    """Every event of the stream, which is then closed; metrics have arrived."""
    async with stream:
        return [event async for event in stream]


async def say(
    plugin: lk.TTS[Any], *deltas: str, conn_options: APIConnectOptions = ONCE
) -> list[lk.SynthesizedAudio]:
    """Speak the deltas, pushed at once."""
    stream = plugin.stream(conn_options=conn_options)
    for delta in deltas:
        stream.push_text(delta)
    stream.end_input()
    return await collect(stream)


async def until(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it never came true"
        await asyncio.sleep(0.002)


class Stopwatch:
    def __init__(self) -> None:
        self._start_s = time.monotonic()

    @property
    def s(self) -> float:
        return time.monotonic() - self._start_s


async def collect_to_error(
    stream: lk.SynthesizeStream | lk.ChunkedStream,
) -> tuple[list[lk.SynthesizedAudio], APIError]:
    """The events of a stream that fails, and its error; anything but an APIError fails the test."""
    events: list[lk.SynthesizedAudio] = []
    async with stream:
        try:
            async for event in stream:
                events.append(event)
        except APIError as error:
            return events, error
    raise AssertionError("it did not fail")


async def say_to_error(
    plugin: lk.TTS[Any], text: str, conn_options: APIConnectOptions = ONCE
) -> tuple[list[lk.SynthesizedAudio], APIError]:
    stream = plugin.stream(conn_options=conn_options)
    stream.push_text(text)
    stream.end_input()
    return await collect_to_error(stream)

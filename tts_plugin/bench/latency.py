"""`sparkvoice bench latency`: how soon a turn sounds and how soon the engine is free, through a child
engine server and the LiveKit plugin, the way an agent uses them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from tts_plugin import TTS
from tts_plugin.arguments import Parser, whole_number
from tts_plugin.bench.report import Figure, save, show
from tts_plugin.bench.texts import LLM_TOKENS_PER_S, LONG, REPLIES, SHORT, tokens_of
from tts_plugin.config import load_settings
from tts_plugin.remote import Remote, Request
from tts_plugin.server.local import LocalServer


def main(argv: Sequence[str]) -> int:
    parser = Parser("sparkvoice bench latency", description="How soon a turn sounds and can be stopped.")
    parser.add_argument("--config", type=Path, metavar="F", help="settings of the engine server")
    parser.add_argument("--voice", metavar="ID", help="default: the server's own")
    parser.add_argument("--rounds", type=whole_number(1, 1000), default=10, help="passes over the sentences")
    parser.add_argument("--streams", type=whole_number(1, 1000), default=20, help="turns at once, at the end")
    parser.add_argument("--json", type=Path, metavar="F", help="write the figures to F")
    options = parser.parse_args(argv)
    load_settings(options.config)  # what is wrong with them is said here, in one line
    figures, underruns = asyncio.run(_measure(options.config, options.voice, options.rounds, options.streams))
    note = f"streams with an underrun on the playout clock: {underruns} of {options.streams}"
    show("bench latency", figures, [note])
    if options.json:
        save(options.json, "latency", figures, {"underruns": underruns, "streams": options.streams})
    return 0


async def _measure(
    config: Path | None, voice: str | None, rounds: int, streams: int
) -> tuple[dict[str, Figure], int]:
    server = LocalServer.shared(config)
    try:
        where = await server.address()
        async with (
            aclosing(Remote(server.address)) as remote,
            aclosing(TTS(voice=voice, url=where.url, token=where.token)) as tts,
        ):
            await remote.connect()
            await _first_frame_ms(tts, SHORT[0])  # opens the plugin's own connection
            cancels = [await _cancel_ms(remote, voice) for _ in range(rounds * 5)]
            figures = {
                "LiveKit push to first frame, ms": Figure.of(
                    [await _first_frame_ms(tts, text) for _ in range(rounds) for text in SHORT]
                ),
                **_figures([await _stages_ms(remote, voice, text) for _ in range(rounds) for text in SHORT]),
                "LLM's first token to first frame, ms": Figure.of(
                    [
                        await _first_frame_ms(tts, text, LLM_TOKENS_PER_S)
                        for _ in range(max(1, rounds // 3))
                        for text in REPLIES
                    ]
                ),
                "cancel to engine free, ms": Figure.of([waited for waited, _ in cancels]),
                "audio made for nothing, ms": Figure.of([orphan for _, orphan in cancels]),
            }
            crowd = await asyncio.gather(*(_play(remote, voice, 0.05 * index) for index in range(streams)))
            figures[f"{streams} at once: push to first frame, ms"] = Figure.of([first for first, _ in crowd])
            figures[f"{streams} at once: latest frame, ms late"] = Figure.of([late for _, late in crowd])
            underruns = sum(late > 0 for _, late in crowd)
    finally:
        server.close()
    return figures, underruns


async def _stages_ms(remote: Remote, voice: str | None, text: str) -> dict[str, float]:
    """What the time from the first segment to the first frame went into; the text is said to its end."""
    async with remote.utterance(Request(rate=24000, voice=voice, lead_s=None)) as utterance:
        utterance.push(text)
        utterance.end()
        async for _ in utterance:
            pass
    stages: dict[str, float] = utterance.server_timeline["stages_ms"]
    return stages


def _figures(turns: Sequence[dict[str, float]]) -> dict[str, Figure]:
    return {f"- of it {stage}, ms": Figure.of([turn[stage] for turn in turns]) for stage in turns[0]}


async def _first_frame_ms(tts: TTS, text: str, tokens_per_s: float | None = None) -> float:
    """From the first push to the first frame out of the LiveKit stream, pushed whole or token by token."""
    async with tts.stream() as stream:
        begun_s = time.perf_counter()

        async def write() -> None:
            for token in [text] if tokens_per_s is None else tokens_of(text):
                stream.push_text(token)
                if tokens_per_s is not None:
                    await asyncio.sleep(1 / tokens_per_s)
            stream.end_input()

        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(write())
            await anext(stream)
            waited_s = time.perf_counter() - begun_s
            writer.cancel()
        return waited_s * 1000


async def _cancel_ms(remote: Remote, voice: str | None) -> tuple[float, float]:
    """(from cancel to the server's word that the engine is free, audio made for nothing)."""
    async with remote.utterance(Request(rate=24000, voice=voice)) as utterance:
        utterance.push(LONG)
        utterance.end()
        await anext(utterance)
        begun_s = time.perf_counter()
        orphan_ms = await utterance.cancel()
        return (time.perf_counter() - begun_s) * 1000, orphan_ms


async def _play(remote: Remote, voice: str | None, wait_s: float) -> tuple[float, float]:
    """(push to first frame, how late the latest frame came for a listener who starts at the first), in ms.
    At or under zero: it never ran dry."""
    await asyncio.sleep(wait_s)
    latest_s = float("-inf")
    async with remote.utterance(Request(rate=24000, voice=voice)) as utterance:
        begun_s = time.perf_counter()
        utterance.push(LONG)
        utterance.end()
        first_s: float | None = None
        async for frame in utterance:
            now_s = time.perf_counter()
            first_s = now_s if first_s is None else first_s
            if frame.start:
                latest_s = max(latest_s, now_s - first_s - frame.start / frame.rate)
    assert first_s is not None
    return (first_s - begun_s) * 1000, latest_s * 1000

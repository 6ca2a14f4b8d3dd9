"""`sparkvoice bench turn`: from the end of the caller's speech to the agent's first sound, through a real
session with real recognition, answers from the FAQ and the embedded voice in its child process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agent.assistant import Assistant
from agent.bench.caller import spoken
from agent.config import load_settings
from agent.ears import STT
from agent.media_io import PlayoutOutput, QueueInput
from agent.playout import Playout
from agent.role_log import Event, TurnMeasured
from agent.session import build_llm, build_session, build_vad, converse
from tts_plugin import TTS
from tts_plugin.arguments import Parser, whole_number
from tts_plugin.audio import Pcm, level_dbfs, silence
from tts_plugin.bench.report import Figure, save, show
from tts_plugin.server.local import LocalServer

RATE = 16_000  # Hz, of the caller's line
OUT_RATE = 48_000  # Hz, of the agent's, as in a browser call
BLOCK_S = 0.02
QUIET_DBFS = -50.0
ANSWER_S = 10.0  # a turn that takes longer has failed
WORDS_S = 0.8  # of the answer heard before it is cut off
BETWEEN_S = 1.0  # from there to the next question

_QUESTIONS = (
    "What are your opening hours?",
    "How long does delivery take?",
    "Can I send something back?",
    "Do you deliver to other countries?",
    "I would like to speak to a human.",
    "How much does the plan cost?",
    "Are you open on Saturday?",
    "Is shipping free?",
)


def main(argv: Sequence[str]) -> int:
    parser = Parser("sparkvoice bench turn", description="How soon the agent answers a spoken question.")
    parser.add_argument("--rounds", type=whole_number(1, 1000), default=3, help="passes over 8 questions")
    parser.add_argument("--config", metavar="F.yaml", type=Path)
    parser.add_argument("--json", metavar="F", type=Path, help="write the figures to F")
    args = parser.parse_args(argv)
    answers = asyncio.run(_measure(args.rounds, args.config))
    figures = {
        "end of speech to first sound, ms": Figure.of([answer.total_ms for answer in answers]),
        **{
            f"  {name}, ms": Figure.of(values)
            for name in ("recognition", "endpointing", "answer", "speech")
            if (values := [part for answer in answers if (part := answer.part_ms(name)) is not None])
        },
    }
    notes = ["recognition and endpointing run side by side, and the answer may be begun before they end"]
    show("bench turn", figures, notes)
    if args.json:
        save(args.json, "turn", figures, {"questions": len(_QUESTIONS)})
    return 0


@dataclass(frozen=True, slots=True)
class Answer:
    """One question answered. total_ms: on our own clock, from the last loud sample to the first loud one."""

    total_ms: float
    parts: TurnMeasured | None

    def part_ms(self, name: str) -> float | None:
        value: float | None = getattr(self.parts, f"{name}_ms") if self.parts else None
        return value


async def _measure(rounds: int, config: Path | None) -> list[Answer]:
    questions = await spoken(_QUESTIONS, RATE)
    settings = load_settings(config, arguments={"greeting": ""})
    server = LocalServer.shared(config)
    where = await server.address()
    ears, brain = STT(settings.agent.ears_model), build_llm(settings)
    ears.prewarm()
    mouth = TTS(voice=settings.agent.voice, url=where.url, token=where.token)
    line = Line()
    session = build_session(
        tts=mouth, stt=ears, llm=brain, vad=build_vad(settings.agent, line.playout), settings=settings.agent
    )
    running = converse(
        session,
        Assistant(settings.agent),
        audio_in=line.input,
        audio_out=PlayoutOutput(line.playout),
        tell=line.told,
    )
    try:
        async with running as conversation, line.carried():
            await asyncio.sleep(2.0)  # the first second of a call is ignored; the recogniser warms
            answers = []
            for _ in range(rounds):
                for question in questions:
                    total_ms = await line.ask(question)
                    # a turn cut before a whole word was heard is not measured by the session
                    await asyncio.sleep(WORDS_S)
                    await conversation.interrupt()
                    await asyncio.sleep(BETWEEN_S)
                    answers.append(Answer(total_ms, line.measured))
            return answers
    finally:
        await mouth.aclose()
        await ears.aclose()
        await brain.aclose()
        server.close()


class Line:
    """A telephone line in software: carries 20 ms each way every 20 ms, and notes when there is sound."""

    def __init__(self) -> None:
        self.playout = Playout(OUT_RATE)
        self.input = QueueInput(RATE)
        self.measured: TurnMeasured | None = None
        self._to_say: Pcm = silence(0, RATE)
        self._said_s = 0.0  # when the last loud sample of the caller's went out
        self._answered = asyncio.Event()
        self._answered_s = 0.0

    def told(self, event: Event) -> None:
        if isinstance(event, TurnMeasured):
            self.measured = event

    async def ask(self, question: Pcm) -> float:
        """Say it, and wait for the agent's first sound after its end; returns the milliseconds between."""
        self.measured = None
        self._to_say = question
        self._answered.clear()
        async with asyncio.timeout(len(question) / RATE + ANSWER_S):
            await self._answered.wait()
        return (self._answered_s - self._said_s) * 1000

    @asynccontextmanager
    async def carried(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            carrying = tasks.create_task(self._carry())
            yield
            carrying.cancel()
        self.input.close()

    async def _carry(self) -> None:
        due_s = time.perf_counter()
        block, out_block = round(BLOCK_S * RATE), round(BLOCK_S * OUT_RATE)
        while True:
            due_s += BLOCK_S
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            said, self._to_say = self._to_say[:block], self._to_say[block:]
            if level_dbfs(said) > QUIET_DBFS:
                self._said_s = time.perf_counter()
            self.input.push(np.pad(said, (0, block - len(said))))
            heard = self.playout.read(out_block)
            if not len(self._to_say) and not self._answered.is_set() and level_dbfs(heard) > QUIET_DBFS:
                self._answered_s = time.perf_counter()
                self._answered.set()

"""`sparkvoice bench bargein`: a call in a real Chromium with a fake microphone; how soon the agent is heard
there, and how soon it is silent there after an interruption."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from playwright.async_api import Page

from agent.bench.caller import spoken
from agent.bench.chromium import CHROMIUM, MIC_RATE, open_page, write_mic
from agent.brains import FaqBrain
from agent.browser import Talker
from agent.config import load_settings
from agent.ears import STT
from agent.faq import Entry, Faq
from agent.serving import serving
from agent.session import Conversation
from agent.web import Doors, Offered, build_app
from tts_plugin import TTS
from tts_plugin.arguments import Parser, whole_number
from tts_plugin.audio import silence
from tts_plugin.bench.report import Figure, save, show
from tts_plugin.errors import EngineUnavailable
from tts_plugin.listener import listen
from tts_plugin.server.local import LocalServer

_FADE_MS = 5.0  # the page's gain falls to zero within this
_SOUND = 0.01  # RMS at the page's output; the voice is at 0.05 to 0.2
_TRIAL_S = 15.0
_EVERY_S = 6.5  # the caller speaks up

_SHORT = "Hello there, how are you?"
_LONG = (
    "The ferry to the island leaves at nine every morning, and it takes about two hours to cross the bay. "
    "You can buy a ticket at the kiosk by the old lighthouse. Please bring a coat, since it can be windy. "
    "On the way back you will see the seals on the rocks, and with some luck a whale or two in the distance."
)


def main(argv: Sequence[str]) -> int:
    parser = Parser("sparkvoice bench bargein", description="Barge-in as the page hears it, in Chromium.")
    parser.add_argument("--rounds", type=whole_number(2, 200), default=15, help="of each trial (default 15)")
    parser.add_argument("--json", metavar="F", type=Path, help="write the figures to F")
    args = parser.parse_args(argv)
    if not CHROMIUM.exists():
        raise EngineUnavailable(f"no Chromium at {CHROMIUM}: apt-get install chromium")
    with TemporaryDirectory() as folder:
        trials = asyncio.run(_measure(args.rounds, Path(folder)))
    figures = {
        "say to heard at the page, ms": Figure.of(trials.heard_ms),
        "interrupt() to silent at the page's gain, ms": Figure.of(trials.cut_ms),
        "caller's onset to silent at the page's gain, ms": Figure.of(trials.barge_ms),
    }
    triggers = ", ".join(f"{why} {trials.triggers.count(why)}" for why in sorted(set(trials.triggers)))
    notes = [f"what cut the agent off when the caller spoke: {triggers}"]
    show("bench bargein", figures, notes)
    if args.json:
        save(args.json, "bargein", figures, {"triggers": trials.triggers})
    return 0


@dataclass(slots=True)
class Trials:
    heard_ms: list[float] = field(default_factory=list)
    cut_ms: list[float] = field(default_factory=list)
    barge_ms: list[float] = field(default_factory=list)
    triggers: list[str] = field(default_factory=list)  # "pause" or "clear", one a caller's interruption


async def _measure(rounds: int, folder: Path) -> Trials:
    trials = Trials()
    quiet = write_mic(folder / "quiet.wav", silence(5.0, MIC_RATE))
    (hold_on,) = await spoken(("Hold on a second, please.",), MIC_RATE)
    rest = silence(_EVERY_S - len(hold_on) / MIC_RATE, MIC_RATE)
    caller = write_mic(folder / "caller.wav", np.concatenate((rest, hold_on)))
    async with _call(quiet) as bench:
        for _ in range(rounds):
            trials.heard_ms.append(await bench.say_to_heard_ms())
            trials.cut_ms.append(await bench.interrupt_to_silent_ms())
    async with _call(caller) as bench:
        while len(trials.barge_ms) < rounds:
            barge_ms, why = await bench.caller_to_silent_ms()
            trials.barge_ms.append(barge_ms)
            trials.triggers.append(why)
    return trials


@dataclass
class Bench:
    """A running call, seen from both ends: `conversation` here, `page` there. One clock: the page's."""

    page: Page
    conversation: Conversation

    async def say_to_heard_ms(self) -> float:
        """From `say` to the first sounding block at the page's output."""
        await asyncio.sleep(0.8)
        heard = await self._count("heard")
        said_ms = await self._here_ms()
        self.conversation.say(_SHORT)
        mark = await self._mark("heard", heard)
        await asyncio.sleep(0.3)
        await self.conversation.interrupt()
        return float(mark["page_ms"]) - said_ms

    async def interrupt_to_silent_ms(self) -> float:
        """From `interrupt` in the middle of a sentence to the end of the page's fade, checked by ear."""
        await asyncio.sleep(0.8)
        heard = await self._count("heard")
        self.conversation.say(_LONG)
        await self._mark("heard", heard)
        await asyncio.sleep(1.0)
        cuts = await self._count("cut")
        interrupted_ms = await self._here_ms()
        await self.conversation.interrupt()
        mark = await self._mark("cut", cuts)
        await self._check_silent(mark)
        return float(mark["page_ms"]) + _FADE_MS - interrupted_ms

    async def caller_to_silent_ms(self) -> tuple[float, str]:
        """From the caller's first voiced block at the microphone to the end of the page's fade."""
        measured = len(await self._latency("barge_ms"))
        cuts = await self._count("cut")
        async with asyncio.timeout(_TRIAL_S):
            while len(values := await self._latency("barge_ms")) <= measured:
                await asyncio.sleep(0.05)
                # one speech at a time: a second one in the queue would begin the moment the first is cut
                idle = self.conversation.session.current_speech is None
                if idle and await self._count("cut") == cuts:
                    self.conversation.say(_LONG)
        mark = (await self._marks("cut"))[cuts]
        await self._check_silent(mark)
        return float(values[measured]), str(mark["why"])

    async def _check_silent(self, cut: dict[str, Any]) -> None:
        """Raise if the page's output still sounds in the 100 ms after the fade: the figure would be false."""
        await asyncio.sleep(0.2)
        levels = await self.page.evaluate("since => sparkvoice.levels(since)", cut["page_ms"] + 20)
        after = levels["heard"][: round(100 / levels["block_ms"])]
        if max(after, default=0.0) > _SOUND:
            raise RuntimeError(
                f"the page still sounded after its cut ({max(after):.3f}); nothing is reported"
            )

    async def _here_ms(self) -> float:
        """Now, on the page's clock, by the best of the page's own comparisons of the two."""
        clock = await self.page.evaluate("sparkvoice.clock")
        return time.monotonic() * 1000 - float(clock["offset"])

    async def _marks(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self.page.evaluate(
            "name => sparkvoice.marks.filter(mark => mark.name === name)", name
        )
        return found

    async def _count(self, name: str) -> int:
        return len(await self._marks(name))

    async def _mark(self, name: str, after: int) -> dict[str, Any]:
        """The first such mark after the first `after` ones."""
        async with asyncio.timeout(_TRIAL_S):
            while len(found := await self._marks(name)) <= after:
                await asyncio.sleep(0.02)
        return found[after]

    async def _latency(self, name: str) -> list[float]:
        values: list[float] = await self.page.evaluate("name => sparkvoice.latency[name]", name)
        return values


@asynccontextmanager
async def _call(mic: Path) -> AsyncIterator[Bench]:
    """A call between a real page and an agent that answers everything at length."""
    settings = load_settings(arguments={"greeting": ""})
    where = await LocalServer.shared().address()
    met: asyncio.Future[Conversation] = asyncio.get_running_loop().create_future()

    async def voices() -> Sequence[Offered]:
        return [Offered("hibari", "Hibari", "en-US", default=True)]

    ears, brain = STT(settings.agent.ears_model), _talkative()
    ears.prewarm()

    async def make_tts(voice: str | None) -> TTS:
        return TTS(voice=voice, url=where.url, token=where.token)

    talker = Talker(settings.agent, ears, brain, make_tts, voices, met.set_result)
    app = build_app(files("demo") / "static", talker, voices, Doors())
    try:
        async with (
            serving(app, listen("127.0.0.1", 0)) as port,
            open_page(f"http://127.0.0.1:{port}/", mic=mic) as page,
        ):
            await page.get_by_role("button", name="Call", exact=True).click()
            async with asyncio.timeout(_TRIAL_S):
                conversation = await met
            await asyncio.sleep(2.0)  # the clocks are compared, and the first second of a call is ignored
            yield Bench(page, conversation)
            await page.get_by_role("button", name="Hang up", exact=True).click()
    finally:
        await ears.aclose()
        await brain.aclose()
        LocalServer.shared().close()


def _talkative() -> FaqBrain:
    entry = Entry(questions=("what about the ferry",), answer=(_LONG,))
    return FaqBrain(Faq(greeting=_SHORT, fallback=_LONG, again=_LONG, entries=(entry,)))

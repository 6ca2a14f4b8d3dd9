"""ScriptedLM: replays given codes with given delays and faults, and knows what was asked of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal

from tts_plugin.engine import Sampling
from tts_plugin.engines.spark.lm.gate import Gate
from tts_plugin.engines.spark.lm.protocol import unheard
from tts_plugin.engines.spark.sampling import checked
from tts_plugin.engines.spark.voice import GLOBAL_TOKENS
from tts_plugin.errors import EngineUnavailable, SynthesisFailed

# what comes after the codes: end-of-speech, the codes again for ever, silence for ever, an error
Then = Literal["end", "again", "hang", "fail"]


@dataclass(frozen=True, slots=True)
class Script:
    """What one request gets: `codes`, `group` at a time (as backends may), one every `delay_s`.

    prefill_s: before the first. `Script(())` ends at once, `Script((7,), then="again")` is one code
    for ever.
    """

    codes: tuple[int, ...]
    then: Then = "end"
    delay_s: float = 0.0
    prefill_s: float = 0.0
    group: int = 1

    def __post_init__(self) -> None:
        if self.then == "again" and not self.codes:
            raise ValueError("nothing to say again: give codes")


@dataclass(slots=True)
class Request:
    """One `generate` call as it went. steps: begun for it. closed: its generator has ended or was closed."""

    prompt: tuple[int, ...]
    sampling: Sampling
    seed: int | None
    steps: int = 0
    closed: bool = False


@dataclass
class ScriptedLM:
    """The n-th request gets the n-th script, later ones the last. requests: all so far, in order."""

    scripts: Sequence[Script]
    speaker: tuple[int, ...] = tuple(range(GLOBAL_TOKENS))
    requests: list[Request] = field(default_factory=list)
    steps: int = 0

    def __post_init__(self) -> None:
        self._end = asyncio.Event()  # set by aclose
        self._gate = Gate()

    @property
    def live(self) -> int:
        """Requests that began and are not closed."""
        return sum(not request.closed for request in self.requests)

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        seed: int | None,
        begun: Callable[[], None] = unheard,
    ) -> AsyncGenerator[list[int]]:
        request = Request(tuple(prompt), checked(sampling), seed)
        script = self.scripts[min(len(self.requests), len(self.scripts) - 1)]
        self.requests.append(request)
        try:
            self._require_open()
            begun()
            await self._step(request, script.prefill_s)
            while True:
                for at in range(0, len(script.codes), script.group):
                    codes = list(script.codes[at : at + script.group])
                    await self._step(request, script.delay_s * len(codes))
                    yield codes
                if script.then != "again":
                    break
            if script.then == "hang":
                await self._step(request, None)
            if script.then == "fail":
                raise SynthesisFailed("the scripted model failed, as its script says")
        finally:
            request.closed = True

    async def create_globals(
        self, prompt: Sequence[int], sampling: Sampling, seed: int | None
    ) -> tuple[int, ...]:
        checked(sampling)
        self._require_open()
        return self.speaker

    def hold(self) -> AbstractContextManager[None]:
        return self._gate.hold()

    async def warm_up(self) -> None:
        self._require_open()

    async def aclose(self) -> None:
        self._end.set()

    async def _step(self, request: Request, delay_s: float | None) -> None:
        """One step of `delay_s` (None: it never returns), cut short when the LM is closed."""
        await self._gate.opened()
        self._require_open()
        request.steps += 1
        self.steps += 1
        if delay_s == 0:
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(delay_s):
                await self._end.wait()
        except TimeoutError:
            return
        self._require_open()

    def _require_open(self) -> None:
        if self._end.is_set():
            raise EngineUnavailable("this language model is closed: open another engine")

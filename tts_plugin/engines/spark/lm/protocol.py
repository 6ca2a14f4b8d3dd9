"""The seam of a language model: prompt ids in, semantic codes out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from tts_plugin.engine import Sampling


def unheard() -> None:
    """Nobody wants to know that a request has begun."""


class SemanticLM(Protocol):
    """Writes the semantic codes of speech. One object serves many requests at once, in fair turns."""

    @property
    def steps(self) -> int:
        """How often it ran the model for a request, over all requests so far."""
        ...

    def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        seed: int | None,
        begun: Callable[[], None] = unheard,
    ) -> AsyncGenerator[list[int]]:
        """The codes (0 .. semantic_count-1) that follow `prompt` (token ids), as they are drawn.

        Ends at end-of-speech. Nothing but semantic codes and end-of-speech is ever drawn.
        `<|start_semantic_token|>` is added where the prompt has none. seed: equal seeds give equal
        codes whatever else runs; None draws a new one. begun: called once, from any thread, when the wait
        for others is over and the first step begins. `aclose()`, or cancelling the reader, stops it:
        no step begins after the one that runs. BadRequest for sampling out of range, SynthesisFailed
        for an error of the model, EngineUnavailable after `aclose()` of the LM.
        """
        ...

    async def create_globals(
        self, prompt: Sequence[int], sampling: Sampling, seed: int | None
    ) -> tuple[int, ...]:
        """The GLOBAL_TOKENS global codes of a new voice, for a voice-creation prompt (token ids).

        The model draws pitch, speed and the codes, each from its own family; errors as `generate`.
        """
        ...

    def hold(self) -> AbstractContextManager[None]:
        """No step that is asked for in the block begins before its end, so that something more urgent has the
        cores; the step that runs goes on. Several may hold it at once. Of blocks that follow one another
        without a break each keeps back one step of a request, so that steps go on. Entered on the event loop
        that the requests run on. A backend whose steps run in another process, on a device of its own, keeps
        none back."""
        ...

    async def warm_up(self) -> None:
        """Load and run once, so that the first request is as fast as the second."""
        ...

    async def aclose(self) -> None:
        """Free everything; requests that still run end with EngineUnavailable. Twice is fine."""
        ...

"""HeardAgent: a LiveKit Agent whose words enter the captions and the history as the caller hears them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable

from livekit.agents import Agent, ModelSettings
from livekit.agents.types import TimedString
from livekit.agents.utils import is_given
from livekit.agents.voice import io

from agent.media_io import PlayoutOutput


class HeardAgent(Agent):
    """Where the session speaks through a PlayoutOutput, each word is passed on in the middle of its own time,
    by the position that has been handed out; so a turn that is cut stands in the history as far as it was
    heard, to half a word. LiveKit's synchronizer, which knows the clock alone, is up to two words behind.

    Words without times (of an answer that was not spoken) are passed on at once.
    """

    def transcription_node(
        self, text: AsyncIterable[str | TimedString], model_settings: ModelSettings
    ) -> AsyncIterable[str | TimedString]:
        output = _playout_of(self.session.output.audio)
        # asked for now: the segment's first frame is captured after this returns
        return text if output is None else _as_heard(text, output, output.captured_playout_segments)


async def _as_heard(
    text: AsyncIterable[str | TimedString], output: PlayoutOutput, segment: int
) -> AsyncGenerator[str | TimedString]:
    words = text.__aiter__()
    try:
        async for word in words:
            middle_s = _middle_s(word)
            if middle_s is not None and not await output.heard(segment, middle_s):
                return
            yield word
    finally:
        if isinstance(words, AsyncGenerator):
            await words.aclose()


def _middle_s(word: str | TimedString) -> float | None:
    if not isinstance(word, TimedString) or not (is_given(word.start_time) and is_given(word.end_time)):
        return None
    return (word.start_time + word.end_time) / 2


def _playout_of(output: io.AudioOutput | None) -> PlayoutOutput | None:
    """The end of an output's chain, if it is one of ours."""
    while output is not None and not isinstance(output, PlayoutOutput):
        output = output.next_in_chain
    return output

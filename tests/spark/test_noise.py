"""What a model of random weights says has the length that its text would have."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import count

import pytest

from tts_plugin.engines.spark.duration import duration_of
from tts_plugin.engines.spark.noise import of_likely_length


class Endless:
    """0, 1, 2 ... in groups, until closed."""

    def __init__(self, group: int = 1, most: int | None = None) -> None:
        self._group = group
        self._most = most
        self.made = 0
        self.closed = False

    async def codes(self) -> AsyncGenerator[list[int]]:
        try:
            for at in count(0, self._group):
                if self._most is not None and at >= self._most:
                    return
                self.made += self._group
                yield list(range(at, at + self._group))
        finally:
            self.closed = True


async def said(text: str, source: Endless) -> list[int]:
    async with aclosing(of_likely_length(text, source.codes())) as groups:
        return [code async for group in groups for code in group]


@pytest.mark.parametrize(
    "text", ["Good morning.", "你好，请稍等。", "A far longer text, which is said in a while."]
)
@pytest.mark.parametrize("group", [1, 7])
async def test_it_has_the_likely_length_to_the_code_and_takes_no_more(text: str, group: int) -> None:
    source = Endless(group)
    likely = round(duration_of(text).likely_s * 50)
    assert await said(text, source) == list(range(likely))
    assert likely <= source.made < likely + group
    assert source.closed


async def test_what_ends_sooner_is_shorter() -> None:
    source = Endless(most=3)
    assert await said("Good morning.", source) == [0, 1, 2]
    assert source.closed


async def test_no_text_is_a_sound_too() -> None:
    assert await said("", Endless())


async def test_closing_early_closes_the_source() -> None:
    source = Endless()
    groups = of_likely_length("Good morning.", source.codes())
    await anext(groups)
    await groups.aclose()
    assert (source.made, source.closed) == (1, True)

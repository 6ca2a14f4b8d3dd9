"""A real Chromium for the tests of the page: its microphone is a file, and it talks to nobody but us."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aioice.ice import get_host_addresses
from playwright.async_api import Page, ViewportSize

from agent.bench.chromium import CHROMIUM, MIC_RATE, open_page, write_mic

__all__ = ["MIC_RATE", "write_mic"]

needs_chromium = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not CHROMIUM.exists(), reason="no Chromium at /usr/bin/chromium: apt-get install chromium"
    ),
]

# on a box with nothing but `lo` Chromium cannot hide its address behind an mDNS name, and without a
# microphone it would tell none
UNHIDDEN = (
    ()
    if get_host_addresses(use_ipv4=True, use_ipv6=True)
    else ("--disable-features=WebRtcHideLocalIpsWithMdns",)
)


@asynccontextmanager
async def chromium_page(
    url: str,
    *,
    mic: Path | None = None,
    allowed: bool = True,
    flags: Sequence[str] = (),
    viewport: ViewportSize | None = None,
) -> AsyncIterator[Page]:
    """The page at `url`, open in a browser of its own; a script error on it fails the test.

    mic: what the caller says (None: Chromium's own beeps). allowed: whether the microphone is let in.
    """
    flags = (*UNHIDDEN, *flags)
    async with open_page("about:blank", mic=mic, allowed=allowed, flags=flags, viewport=viewport) as page:
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "console",
            lambda line: errors.append(line.text) if "Content Security Policy" in line.text else None,
        )
        await page.goto(url)  # now that somebody listens
        yield page
        assert errors == []


@dataclass(frozen=True, slots=True)
class Heard:
    """What the page measured of its own sound since a moment, RMS per 128 samples."""

    from_ms: float
    block_ms: float
    mic: list[float]
    arrived: list[float]
    heard: list[float]

    def loudest(self, side: list[float], begin_ms: float, end_ms: float) -> float:
        """The loudest block of `side` between two page times."""
        at = [self.from_ms + n * self.block_ms for n in range(len(side))]
        return max(
            (level for level, ms in zip(side, at, strict=True) if begin_ms <= ms < end_ms), default=0.0
        )


async def heard(page: Page, since_ms: float) -> Heard:
    return Heard(**await page.evaluate("since => sparkvoice.levels(since)", since_ms))


async def marks(page: Page, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = await page.evaluate(
        "name => sparkvoice.marks.filter(mark => mark.name === name)", name
    )
    return found


async def until(page: Page, script: str, wanted: Callable[[Any], bool] = bool, within_s: float = 10.0) -> Any:
    """The value of `script` in the page as soon as it is `wanted`; the page's policy forbids it to eval."""
    began_s = time.monotonic()
    while not wanted(value := await page.evaluate(script)):
        state = await page.evaluate("[sparkvoice.state, sparkvoice.marks.slice(-5)]")
        assert time.monotonic() - began_s < within_s, f"{script} is {value!r} after {within_s} s; {state}"
        await asyncio.sleep(0.03)
    return value

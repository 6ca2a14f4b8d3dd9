"""A real Chromium for benches and tests: its microphone is a file, and it talks to this machine alone."""

from __future__ import annotations

import wave
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Page, ViewportSize, async_playwright

from tts_plugin.audio import Pcm, bytes_of

CHROMIUM = Path("/usr/bin/chromium")
MIC_RATE = 48_000  # Hz

QUIET = (
    "--no-sandbox",  # a root user has none
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    # on a box with nothing but `lo` a browser has no other address
    "--allow-loopback-in-peer-connection",
)


def write_mic(path: Path, pcm: Pcm) -> Path:
    """A file for the fake microphone, mono at MIC_RATE; Chromium plays it over and over."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(MIC_RATE)
        file.writeframes(bytes_of(pcm))
    return path


@asynccontextmanager
async def open_page(
    url: str,
    *,
    mic: Path | None = None,
    allowed: bool = True,
    flags: Sequence[str] = (),
    viewport: ViewportSize | None = None,
) -> AsyncIterator[Page]:
    """The page at `url` in a browser of its own, which leaving the block ends.

    mic: what the caller says (None: Chromium's own beeps). allowed: whether the microphone is let in.
    viewport: of the page, CSS pixels (None: 1280 by 720).
    """
    args = [*QUIET, "--use-fake-device-for-media-stream", *flags]
    if allowed:
        args.append("--use-fake-ui-for-media-stream")
    if mic is not None:
        args.append(f"--use-file-for-fake-audio-capture={mic}")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=str(CHROMIUM), args=args)
        try:
            page = await (await browser.new_context(viewport=viewport)).new_page()
            await page.goto(url)
            yield page
        finally:
            await browser.close()

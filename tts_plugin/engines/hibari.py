"""HibariEngine: the embedded American English voice, so that everything speaks with no download and no GPU.

hibari-tts (Apache-2.0) carries its 7.9 MB of weights in its wheel. It makes a whole segment at once, in
about 0.012 of the time that it sounds on one core of its own, so a segment is one frame.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator
from importlib.metadata import version
from pathlib import Path

import numpy as np

from tts_plugin.audio import AudioFrame, Pcm, Wave, limited, to_int16
from tts_plugin.config import EngineSettings, prepare_for_onnxruntime
from tts_plugin.crew import Crew
from tts_plugin.engine import Engine, Segment, Turn
from tts_plugin.errors import NotInstalled
from tts_plugin.playing import Playing

prepare_for_onnxruntime()
from hibari import Hibari  # noqa: E402  # it imports onnxruntime

# the release that was measured; another one may read or sound differently
PINNED_VERSION = "0.2.1"
PINNED_SHA256 = "5f70741d4e900f4e85d0037498736cc1b3e1b9a63a13546a5da1e63abf4fccd8"  # assets/hibari.onnx

# It leads in with 0.23-0.33 s and trails off with 0.25-0.5 s of digital silence (< -100 dBFS), which would
# be most of the time to first sound. Speech begins where 10 ms first exceed this level.
_AUDIBLE_DBFS = -66.0
_WINDOW_S = 0.01
# the pause after a segment, by how it ends
_PAUSE_S = {".": 0.3, "!": 0.3, "?": 0.3, "…": 0.3, ":": 0.2, ";": 0.2, ",": 0.12}
_NO_STOP_PAUSE_S = 0.02
_CLOSERS = "\"'”’)]»"


class HibariEngine:
    """24 kHz, American English, one female voice; `seed` fixes its noise component.

    It follows `speed` roughly, because it rounds each sound's length: 1.2 comes out as 1.1, 2.0 as 1.6.
    """

    rate = 24000
    languages = frozenset({"en"})

    def __init__(
        self, gain_db: float = 7.0, ceiling_dbfs: float = -1.5, threads: int = 1, at_once: int = 1
    ) -> None:
        self._gain_db = gain_db
        self._ceiling_dbfs = ceiling_dbfs
        self._threads = threads
        self._crew = Crew("hibari", at_once)
        self._loading = threading.Lock()
        self._model: Hibari | None = None  # may run beside itself: nothing in it changes while it speaks

    async def speak(self, turn: Turn, segments: AsyncIterator[Segment]) -> AsyncGenerator[AudioFrame]:
        seed = secrets.randbits(32) if turn.seed is None else turn.seed
        at = 0
        playing = Playing()
        async for segment in segments:
            playing.asked()
            # whose listener runs out of audio first comes first; the first segment of a turn is due now
            due_s = time.monotonic() if playing.dry_at_s is None else playing.dry_at_s
            pcm = await self._crew.run(
                due_s, self._synthesise, segment.text, turn.pace, (seed, segment.index)
            )
            if len(pcm):
                playing.add(len(pcm) / self.rate)
                yield AudioFrame(pcm, self.rate, at, segment.index, ends_segment=True)
                at += len(pcm)

    async def warm_up(self) -> None:
        await self._crew.run(time.monotonic(), self._synthesise, "Ready when you are.", 1.0, (0, 0))

    async def aclose(self) -> None:
        self._crew.close()

    def _synthesise(self, text: str, speed: float, seed: tuple[int, int]) -> Pcm:
        """On a thread of the crew: the segment's samples, none if it has no sound for any of the text."""
        with self._loading:
            if self._model is None:
                self._model = _load(self._threads)
        wave = _trimmed(self._model(text, speed=speed, seed=seed), text, self.rate)
        return to_int16(limited(wave, gain_db=self._gain_db, ceiling_dbfs=self._ceiling_dbfs, rate=self.rate))


def _load(threads: int) -> Hibari:
    installed = version("hibari-tts")
    if installed != PINNED_VERSION:
        raise NotInstalled(
            f'engine "hibari" is tested with hibari-tts {PINNED_VERSION}, installed is {installed}: '
            f"pip install hibari-tts=={PINNED_VERSION}"
        )
    model = Hibari(threads=threads)
    found = hashlib.sha256(Path(model.model_path).read_bytes()).hexdigest()
    if found != PINNED_SHA256:
        raise NotInstalled(
            f"{model.model_path} is not the file that hibari-tts {PINNED_VERSION} ships (sha256 {found}): "
            f"pip install --force-reinstall hibari-tts=={PINNED_VERSION}"
        )
    return model


def _trimmed(wave: Wave, text: str, rate: int) -> Wave:
    """Without the lead-in, and with the pause that the text's last mark asks for."""
    window = round(_WINDOW_S * rate)
    whole = len(wave) - len(wave) % window
    power = np.square(wave[:whole]).reshape(-1, window).mean(axis=1)
    audible = np.flatnonzero(power > 10 ** (_AUDIBLE_DBFS / 10))
    if audible.size == 0:
        return wave[:0]
    first, last = int(audible[0]) * window, (int(audible[-1]) + 1) * window
    pause = round(_PAUSE_S.get(text.rstrip(_CLOSERS)[-1:], _NO_STOP_PAUSE_S) * rate)
    return np.concatenate((wave[first:last], np.zeros(pause, dtype=np.float32)))


def build(settings: EngineSettings) -> Engine:
    own = settings.hibari
    return HibariEngine(own.gain_db, own.ceiling_dbfs, own.threads, own.at_once)

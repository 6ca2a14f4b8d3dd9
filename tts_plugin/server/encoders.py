"""Encoders: one turn's samples as the bytes of a file format, given out as they are ready."""

from __future__ import annotations

import io
import struct
from typing import Literal, Protocol, get_args

from tts_plugin.audio import Pcm, bytes_of
from tts_plugin.errors import NotInstalled

Format = Literal["mp3", "opus", "flac", "wav", "pcm"]
FORMATS: tuple[Format, ...] = get_args(Format)
MEDIA_TYPES: dict[Format, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}

_UNKNOWN = 0xFFFF_FFFF  # of a length that the header cannot know: to the end of the stream
_SAMPLE_BYTES = 2
_SET_OGG_PAGE_LATENCY_MS = 0x1302  # SFC_SET_OGG_PAGE_LATENCY_MS in sndfile.h
_OGG_PAGE_MS = 40.0  # what a page holds back; libsndfile's own is a second

# libsndfile's name, its subtype, and its compression level from 0 to 1 (None: its own)
_FILES: dict[Format, tuple[str, str, float | None]] = {
    # a constant rate (80 kbit/s at 24 kHz): players tell the length by it, a stream has no table to look at
    "mp3": ("MP3", "MPEG_LAYER_III", 0.5),
    "opus": ("OGG", "OPUS", None),
    "flac": ("FLAC", "PCM_16", 0.25),  # blocks of 48 ms; of 170 ms from 0.4 on
}


class Encoder(Protocol):
    """One turn, mono. media_type: for a Content-Type. heavy: its calls belong on a worker.

    `push` and `finish` give the bytes that are ready, possibly none; joined they are the whole file.
    """

    media_type: str
    heavy: bool

    def push(self, pcm: Pcm) -> bytes: ...

    def finish(self) -> bytes:
        """The rest; push no more."""
        ...

    def close(self) -> None:
        """Free it, finished or not; twice is fine."""
        ...


def encoder(form: Format, rate: int) -> Encoder:
    """The encoder of so many Hz; NotInstalled without the package that does all but wav and pcm."""
    if form in ("wav", "pcm"):
        return _Plain(form, rate)
    try:
        return _Compressed(form, rate)
    except ImportError as missing:
        raise NotInstalled(
            f'response_format "{form}" needs the package {missing.name}: pip install "sparkvoice[server]", '
            "or ask for wav or pcm"
        ) from missing


class _Plain:
    """Little-endian 16-bit samples, for wav behind a header whose lengths say "until the end"."""

    heavy = False

    def __init__(self, form: Format, rate: int) -> None:
        self.media_type = MEDIA_TYPES[form]
        self._head = _wav_header(rate) if form == "wav" else b""

    def push(self, pcm: Pcm) -> bytes:
        head, self._head = self._head, b""
        return head + bytes_of(pcm)

    def finish(self) -> bytes:
        return b""

    def close(self) -> None:
        """Nothing to free."""


class _Compressed:
    """libsndfile, which writes into a sink that is emptied after every push."""

    heavy = True

    def __init__(self, form: Format, rate: int) -> None:
        import soundfile  # only where it is asked for: raw samples need none

        self.media_type = MEDIA_TYPES[form]
        self._sink = _Sink()
        container, subtype, level = _FILES[form]
        self._file = soundfile.SoundFile(
            self._sink,
            "w",
            samplerate=rate,
            channels=1,
            format=container,
            subtype=subtype,
            compression_level=level,
            bitrate_mode="CONSTANT" if form == "mp3" else None,
        )
        if form == "opus":
            page_ms = soundfile._ffi.new("double*", _OGG_PAGE_MS)  # it has no public way to say so
            size = soundfile._ffi.sizeof("double")
            soundfile._snd.sf_command(self._file._file, _SET_OGG_PAGE_LATENCY_MS, page_ms, size)

    def push(self, pcm: Pcm) -> bytes:
        self._file.write(pcm)
        return self._sink.take()

    def finish(self) -> bytes:
        self._file.close()
        return self._sink.take()

    def close(self) -> None:
        self._file.close()


class _Sink(io.RawIOBase):
    """A file that only grows at its end; what is written elsewhere mends a header that has left already."""

    def __init__(self) -> None:
        super().__init__()
        self._ready = bytearray()
        self._at = 0
        self._length = 0

    def take(self) -> bytes:
        ready = bytes(self._ready)
        self._ready.clear()
        return ready

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]  # of bytes alone
        count = len(data)
        if self._at == self._length:
            self._ready += data
            self._length += count
        self._at += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True


def _wav_header(rate: int) -> bytes:
    form = struct.pack("<HHIIHH", 1, 1, rate, rate * _SAMPLE_BYTES, _SAMPLE_BYTES, 8 * _SAMPLE_BYTES)
    riff = b"RIFF" + struct.pack("<I", _UNKNOWN) + b"WAVE"
    return riff + b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", _UNKNOWN)

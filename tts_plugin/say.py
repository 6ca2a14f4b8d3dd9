"""`sparkvoice say`: a text into a WAV file, by an engine in this process."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import sys
import tempfile
import wave
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tts_plugin import interrupt
from tts_plugin.arguments import Parser, number, whole_number
from tts_plugin.audio import AudioFrame, bytes_of
from tts_plugin.config import EngineSettings, load_settings
from tts_plugin.engine import ENGINES, Turn, open_engine
from tts_plugin.errors import BadRequest
from tts_plugin.limits import MAX_SEED, RATES, SPEEDS
from tts_plugin.utterance import Utterance
from tts_plugin.voices import open_registry

STDIO = "-"


def main(argv: list[str]) -> None:
    """Speak a text with an engine in this process; the timeline is warm, the file whole or not there."""
    parser = Parser("sparkvoice say", description="Speak a text into a WAV file (mono, 16 bit).")
    parser.add_argument("text", metavar="TEXT", help='what to say; "-" reads standard input')
    parser.add_argument("--voice", metavar="ID", help="see: sparkvoice voices list")
    parser.add_argument(
        "--out",
        metavar="F.wav",
        type=_out,
        default="out.wav",
        help='an existing file is replaced; "-" is standard output (default: out.wav)',
    )
    parser.add_argument("--rate", metavar="HZ", type=whole_number(*RATES), help="default: the engine's")
    parser.add_argument("--seed", metavar="N", type=whole_number(0, MAX_SEED), help="same seed, same samples")
    parser.add_argument(
        "--speed",
        metavar="X",
        type=number(*SPEEDS),
        help="1.0 is the pace the voice was made with; followed roughly",
    )
    parser.add_argument("--json", action="store_true", help="print the timeline as one JSON object")
    parser.add_argument("--config", metavar="F.yaml", type=Path)
    args = parser.parse_args(argv)

    settings = load_settings(args.config).engine
    text = _text(args.text, settings.max_text_chars)
    registry = open_registry(settings, ENGINES)
    voice = registry.default if args.voice is None else registry.get(args.voice)
    turn = Turn(voice, seed=args.seed, speed=args.speed)
    with _target(args.out) as file:
        spoken = interrupt.run(lambda: _speak(turn, text, args.rate, settings, file))
    report = {
        "voice": voice.id,
        "engine": voice.engine,
        "rate": spoken.rate,
        "out": args.out,
        **spoken.report,
    }
    told = sys.stderr if args.out == STDIO else sys.stdout
    if spoken.foreign:
        print(f'sparkvoice: left out what {voice.id} cannot read: "{spoken.foreign}"', file=sys.stderr)
    if args.json:
        print(json.dumps(report, ensure_ascii=False), file=told)
    else:
        first_ms, audio_s = report["first_frame_ms"], report["audio_s"]
        print(f"{args.out}: {audio_s:.2f} s by {voice.id}, first frame after {first_ms:.0f} ms", file=told)


@dataclass(frozen=True, slots=True)
class _Spoken:
    rate: int
    report: dict[str, Any]
    foreign: str


async def _speak(
    turn: Turn, text: str, rate: int | None, settings: EngineSettings, file: BinaryIO
) -> _Spoken:
    """The whole turn as WAV into `file`, as fast as the engine goes."""
    async with (
        open_engine(turn.voice.engine, settings) as engine,
        Utterance(engine, turn, rate=rate, lead_s=None) as utterance,
    ):
        utterance.push(text)
        utterance.end()
        with _wav(file, utterance.rate) as write:
            async for frame in utterance:
                write(frame)
        report = utterance.timeline.report()
        if not report["audio_s"]:
            raise BadRequest("nothing to speak: the text has no word that can be said")
        return _Spoken(utterance.rate, report, utterance.foreign)


@contextmanager
def _wav(file: BinaryIO, rate: int) -> Iterator[Callable[[AudioFrame], None]]:
    with wave.open(file, "wb") as wav:
        wav.setnchannels(1)
        wav.setsampwidth(2)
        wav.setframerate(rate)
        yield lambda frame: wav.writeframesraw(bytes_of(frame.pcm))


def _out(given: str) -> str:
    # a device has no ending
    if given != STDIO and Path(given).suffix.lower() not in ("", ".wav"):
        raise ArgumentTypeError(f'"{given}" should end in .wav, or be "-" for standard output')
    return given


@contextmanager
def _target(out: str) -> Iterator[BinaryIO]:
    """A seekable file that becomes `out` when the block ends well, and leaves no trace when not."""
    if out == STDIO and sys.stdout is None:
        raise BadRequest("standard output is closed")
    if out == STDIO and sys.stdout.isatty():
        raise BadRequest("will not write a WAV file to a terminal: give --out a file, or pipe it on")
    try:
        path = Path(os.path.realpath(out))  # unlike resolve() it leaves a loop of links as a link
        if path.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        # renaming onto a device or a pipe would replace it, so those are written to
        direct = out == STDIO or (path.exists() and not path.is_file() and not path.is_dir())
        if direct:
            with tempfile.TemporaryFile() as file:
                yield file
                file.seek(0)
                with nullcontext(sys.stdout.buffer) if out == STDIO else path.open("wb") as end:
                    shutil.copyfileobj(file, end)
            return
        if path.is_dir():
            raise BadRequest(f"cannot write {out}: it is a folder")
        part = path.with_name(f".{path.name[:48]}.{secrets.token_hex(4)}.part")
        try:
            with part.open("xb") as file:
                yield file
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise BadRequest(f"cannot write {out}: {error.strerror or error}") from error


def _text(given: str, max_chars: int) -> str:
    if given == STDIO:
        if sys.stdin is None:
            raise BadRequest("standard input is closed")
        raw = sys.stdin.buffer.read(4 * max_chars + 1)  # a character is at most 4 bytes
        given = raw.decode(errors="surrogateescape")
    if len(given) > max_chars:
        raise BadRequest(f"the text is longer than {max_chars} characters (engine.max_text_chars)")
    if any("\ud800" <= char <= "\udfff" for char in given):
        raise BadRequest("the text is not UTF-8")
    if not given.strip():
        raise BadRequest("nothing to speak: the text is empty")
    return given

"""`sparkvoice model fetch`: the published model from the Hugging Face hub, once its licence is accepted."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tts_plugin.arguments import Parser
from tts_plugin.config import load_settings
from tts_plugin.engines.spark.checkpoint import examine
from tts_plugin.engines.spark.download import DownloadFailed, Hub, NotThere, bring, matching
from tts_plugin.errors import BadRequest
from tts_plugin.strict_yaml import shown
from tts_plugin.timing import Clock

REPOSITORY = "SparkAudio/Spark-TTS-0.5B"
REVISION = "642071559bfc6346c2359d19dcb6be3f9dd8a05d"  # the one that this loader is written for
ENDPOINT = "https://huggingface.co"

_NOTICE = f"""\
The weights of {REPOSITORY} are not part of Sparkvoice. Their licence is CC BY-NC-SA 4.0
(https://creativecommons.org/licenses/by-nc-sa/4.0/): name the authors, do not use them commercially,
share what you make of them under the same licence. Clone a voice only with its speaker's consent."""

_MODEL = ("config.yaml", "README.md", "BiCodec/*", "LLM/*")
_TRANSCRIPTS = ("wav2vec2-large-xlsr-53/*",)
_DEFAULT_DIR = Path("models") / "Spark-TTS-0.5B"


def main(argv: list[str]) -> int:
    """Fetch, or go on where the last try stopped, and check; 1 if that fails."""
    parser = Parser("sparkvoice model fetch", description="Download the published Spark-TTS model, 2.7 GB.")
    parser.add_argument(
        "dir", metavar="DIR", type=Path, nargs="?", help=f"default: SPARK_TTS_MODEL, or {_DEFAULT_DIR}"
    )
    parser.add_argument("--revision", metavar="REV", default=REVISION, help="default: the one that is tested")
    parser.add_argument(
        "--transcripts", action="store_true", help="also wav2vec2, to clone with a transcript: 1.3 GB more"
    )
    parser.add_argument("--accept-licence", action="store_true", help="do not ask")
    parser.add_argument("--endpoint", metavar="URL", default=ENDPOINT, help="a mirror of the hub")
    parser.add_argument("--config", metavar="F.yaml", type=Path)
    args = parser.parse_args(argv)
    folder: Path = args.dir or load_settings(args.config).engine.spark.model or _DEFAULT_DIR
    if folder.exists() and not folder.is_dir():
        raise BadRequest(f"{shown(folder)} is a file, not a folder")
    if not args.endpoint.startswith(("https://", "http://")):
        raise BadRequest(f'--endpoint "{args.endpoint}" should start with https:// or http://')
    _require_consent(args.accept_licence)
    hub = Hub(args.endpoint.rstrip("/"), REPOSITORY, args.revision)
    bar = Bar()
    try:
        files = matching(hub.list(), (*_MODEL, *(_TRANSCRIPTS if args.transcripts else ())))
        bring(files, folder, bar.show)
    except NotThere as error:
        return _failed(f'no revision "{args.revision}" there ({error}); tested is {REVISION}')
    except (DownloadFailed, OSError) as error:
        return _failed(f"{error}; the same command goes on from here")
    finally:
        bar.end()
    _, wrong = examine(folder)
    for problem in wrong:
        _failed(problem)
    if wrong:
        return 1
    print(f"{shown(folder)}: whole and checked; use it: export SPARK_TTS_MODEL={folder.resolve()}")
    return 0


class Bar:
    """Progress on stderr: one line that moves at a terminal, elsewhere one line a file."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._moves = sys.stderr.isatty()
        self._file = ""
        self._started = (0.0, 0)  # when, at which byte
        self._shown_s = 0.0
        self._width = 0

    def show(self, file: str, here: int, whole: int) -> None:
        """`here` of `whole` bytes have come."""
        now = self._clock()
        if file != self._file:
            self.end()
            self._file, self._started, self._shown_s = file, (now, here), 0.0
        if self._moves and (now - self._shown_s >= 0.2 or here == whole):
            self._shown_s = now
            since, first = self._started
            speed = (here - first) / max(now - since, 0.001) / 1e6
            filled = 30 * here // max(whole, 1)
            line = f"{file} [{'=' * filled:<30}] {here / 1e6:,.1f} of {whole / 1e6:,.1f} MB, {speed:.1f} MB/s"
            sys.stderr.write(f"\r{line:<{self._width}}")
            self._width = len(line)
        elif not self._moves and here == whole:
            sys.stderr.write(f"{file}: {whole:,} bytes\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Leave the line."""
        if self._moves and self._file:
            sys.stderr.write("\n")
        self._file, self._width = "", 0


def _require_consent(given: bool) -> None:
    print(_NOTICE, file=sys.stderr)
    if given:
        return
    if not sys.stdin.isatty():
        raise BadRequest("nothing is fetched until the licence is accepted: --accept-licence")
    print("Accept? Type yes: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() != "yes":
        raise BadRequest("the licence was not accepted, nothing is fetched")


def _failed(problem: str) -> int:
    print(f"sparkvoice: {problem}", file=sys.stderr)
    return 1

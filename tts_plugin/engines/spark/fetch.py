"""`sparkvoice model fetch`: the published model from the Hugging Face hub, once its licence is accepted."""

from __future__ import annotations

import sys
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

from tts_plugin.arguments import Parser
from tts_plugin.config import load_settings
from tts_plugin.engines.spark.checkpoint import examine
from tts_plugin.errors import BadRequest
from tts_plugin.strict_yaml import shown

REPOSITORY = "SparkAudio/Spark-TTS-0.5B"
REVISION = "642071559bfc6346c2359d19dcb6be3f9dd8a05d"  # of March 2025, the one this loader is written for
LICENCE = "CC BY-NC-SA 4.0"

_NOTICE = f"""\
The weights of {REPOSITORY} are not part of Sparkvoice. Their licence is {LICENCE}
(https://creativecommons.org/licenses/by-nc-sa/4.0/): name the authors, do not use them commercially,
share what you make of them under the same licence. Clone a voice only with its speaker's consent."""

_MODEL = ("config.yaml", "BiCodec/*", "LLM/*")
_TRANSCRIPTS = ("wav2vec2-large-xlsr-53/*",)
_DEFAULT_DIR = Path("models") / "Spark-TTS-0.5B"


def main(argv: list[str], endpoint: str | None = None) -> int:
    """Fetch, or go on where the last try stopped, and check; 1 if that fails. endpoint: of the hub."""
    parser = Parser("sparkvoice model fetch", description="Download the published Spark-TTS model, 2.7 GB.")
    parser.add_argument(
        "dir", metavar="DIR", type=Path, nargs="?", help=f"default: SPARK_TTS_MODEL, or {_DEFAULT_DIR}"
    )
    parser.add_argument("--revision", metavar="REV", default=REVISION, help="default: the one that is tested")
    parser.add_argument(
        "--transcripts", action="store_true", help="also wav2vec2, to clone with a transcript: 1.3 GB more"
    )
    parser.add_argument("--accept-licence", action="store_true", help="do not ask")
    parser.add_argument("--config", metavar="F.yaml", type=Path)
    args = parser.parse_args(argv)
    folder: Path = args.dir or load_settings(args.config).engine.spark.model or _DEFAULT_DIR
    if folder.exists() and not folder.is_dir():
        raise BadRequest(f"{shown(folder)} is a file, not a folder")
    _require_consent(args.accept_licence)
    try:
        changed = _download(folder, args.revision, args.transcripts, endpoint)
    except (RevisionNotFoundError, RepositoryNotFoundError):
        print(
            f'sparkvoice: {REPOSITORY} has no revision "{args.revision}"; tested is {REVISION}',
            file=sys.stderr,
        )
        return 1
    except Exception as error:  # of a stack of libraries: network, disk, hub
        reason = str(error).strip().splitlines() or [type(error).__name__]
        print(
            f"sparkvoice: the download stopped: {reason[0]}; the same command goes on from here",
            file=sys.stderr,
        )
        return 1
    _, wrong = examine(folder)
    for problem in [
        *(f"{path} is not what was published: delete it, fetch again" for path in changed),
        *wrong,
    ]:
        print(f"sparkvoice: {problem}", file=sys.stderr)
    if changed or wrong:
        return 1
    print(f"{shown(folder)}: whole and checked; use it: export SPARK_TTS_MODEL={folder.resolve()}")
    return 0


def _require_consent(given: bool) -> None:
    print(_NOTICE, file=sys.stderr)
    if given:
        return
    if not sys.stdin.isatty():
        raise BadRequest("nothing is fetched until the licence is accepted: --accept-licence")
    print("Accept? Type yes: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() != "yes":
        raise BadRequest("the licence was not accepted, nothing is fetched")


def _download(folder: Path, revision: str, transcripts: bool, endpoint: str | None) -> list[str]:
    """Bring the files; the names of those whose hash is not the hub's."""
    hub = HfApi(endpoint=endpoint, library_name="sparkvoice")
    wanted = [*_MODEL, *(_TRANSCRIPTS if transcripts else ())]
    hub.snapshot_download(REPOSITORY, revision=revision, local_dir=folder, allow_patterns=wanted)
    verified = hub.verify_repo_checksums(REPOSITORY, revision=revision, local_dir=folder)
    return [mismatch["path"] for mismatch in verified.mismatches]

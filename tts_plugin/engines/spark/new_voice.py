"""`sparkvoice voices enroll`: a recording of a speaker to the YAML file of a cloned voice."""

from __future__ import annotations

import argparse
import json
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tts_plugin.arguments import Parser
from tts_plugin.config import SparkSettings, load_settings
from tts_plugin.engine import ENGINES
from tts_plugin.engines.spark.bicodec import load_bicodec
from tts_plugin.engines.spark.checkpoint import Checkpoint
from tts_plugin.engines.spark.clip import Clip, examine_clip
from tts_plugin.engines.spark.clip_features import clip_features, require_features
from tts_plugin.engines.spark.enroll import enrolled
from tts_plugin.engines.spark.model_files import configured
from tts_plugin.engines.spark.token_file import Origin, Tokens, stored_text
from tts_plugin.engines.spark.voice import SparkVoice, parse
from tts_plugin.errors import BadRequest
from tts_plugin.strict_yaml import (
    MAX_FILE_BYTES,
    BadYaml,
    Document,
    Json,
    parse_yaml,
    shown,
    validated,
)
from tts_plugin.voices import VoiceRegistry

PRIVATE = "LicenseRef-private"  # SPDX's way of naming a licence that is not in its list
_ENDINGS = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff")


def main(argv: list[str]) -> int:
    """Write the voice; all of it is there afterwards or nothing."""
    args = _arguments(argv)
    settings = load_settings(args.config).engine
    folder: Path = args.folder or next(iter(settings.voices), Path("voices"))
    file = folder / f"{args.id}.yaml"
    facts = _facts(args)
    _require_free(file, args.id, args.force)

    checkpoint = Checkpoint.open(configured(settings.spark))
    ref_s = checkpoint.sizes.ref_s if settings.spark.ref_s is None else settings.spark.ref_s
    transcribed = "transcript" in facts
    if transcribed:
        require_features(checkpoint)
    clip = examine_clip(args.clip, rate=checkpoint.sizes.rate, used_s=ref_s, transcribed=transcribed)
    clip.require()
    for finding in clip.findings:
        print(f"{finding.message} ({finding.level})")
    if "consent" not in facts:
        print("nothing says that the speaker agreed: --consent-by NAME --consent-date YYYY-MM-DD (warning)")

    tokens, took_s = _tokens(clip, checkpoint, settings.spark, ref_s, transcribed)
    files: dict[Path, bytes] = {}
    if args.inline:
        facts["global_tokens"] = list(tokens.global_tokens)
        if tokens.semantic_tokens:
            facts["semantic_tokens"] = list(tokens.semantic_tokens)
    else:
        facts["clip"] = _placed(clip, file, args.force, files)
        origin = Origin(clip.digest, checkpoint.revision, ref_s, transcribed)
        files[file.with_suffix(".tokens.json")] = stored_text(origin, tokens).encode()
    files[file] = _yaml(facts, file)
    _write(files, claim=None if args.force else file)
    print(
        f"{shown(file)}: voice {args.id} from {clip.seconds:.1f} s in {took_s:.2f} s; "
        f'hear it: sparkvoice say "Hello." --voice {args.id}'
    )
    return 0


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        "sparkvoice voices enroll",
        description="Clone a voice: write its YAML file, with the tokens of the speaker in the recording. "
        "Clone nobody who has not agreed.",
    )
    parser.add_argument(
        "clip", metavar="CLIP", type=Path, help="wav, flac, ogg or mp3; 6 s of clean speech are best"
    )
    parser.add_argument("--id", required=True, help="of the voice: a-z, 0-9, _ and -")
    parser.add_argument(
        "--transcript",
        metavar="TEXT",
        help="what is said in CLIP, word for word: closer to "
        "the speaker in the same language; needs sparkvoice model fetch --transcripts",
    )
    parser.add_argument("--language", default="und", metavar="TAG", help="default: und, any")
    parser.add_argument(
        "--licence", default=PRIVATE, metavar="SPDX", help=f"of the voice (default: {PRIVATE})"
    )
    parser.add_argument("--name", help="for people; default: the id")
    parser.add_argument("--consent-by", metavar="NAME", help="who agreed to be cloned")
    parser.add_argument("--consent-date", metavar="YYYY-MM-DD", help="when")
    parser.add_argument(
        "--inline", action="store_true", help="put the tokens into the YAML, without the clip"
    )
    parser.add_argument("--folder", type=Path, metavar="DIR", help="default: the first voices folder")
    parser.add_argument("--force", action="store_true", help="replace a voice that is there")
    parser.add_argument("--config", metavar="F.yaml", type=Path)
    return parser.parse_args(argv)


def _facts(args: argparse.Namespace) -> dict[str, Json]:
    """The YAML but for what the clip gives, checked as far as that goes."""
    if args.transcript is not None and not args.transcript.strip():
        raise BadRequest("the transcript is empty: say what is spoken in the clip, or leave it out")
    if (args.consent_by is None) != (args.consent_date is None):
        raise BadRequest("--consent-by and --consent-date belong together: give both")
    facts = {
        "id": args.id,
        "name": args.name,
        "engine": "spark",
        "language": args.language,
        "licence": args.licence,
        "transcript": args.transcript and " ".join(args.transcript.split()),
        "consent": args.consent_by and {"by": args.consent_by, "date": args.consent_date},
    }
    given = {key: value for key, value in facts.items() if value is not None}
    validated(SparkVoice, Document(f"voice {args.id}", given))
    return given


def _require_free(file: Path, voice_id: str, force: bool) -> None:
    if file.exists():
        if not file.is_file():
            raise BadRequest(f"cannot write {shown(file)}: it is no file")
        if not force:
            raise BadRequest(f"{shown(file)} is there already: --force replaces it")
    elif file.parent.is_dir():
        if any(voice.id == voice_id for voice in VoiceRegistry([file.parent], ENGINES).list()):
            raise BadRequest(
                f'another file in {shown(file.parent)} has a voice "{voice_id}": choose another id'
            )
    elif file.parent.exists():
        raise BadRequest(f"{shown(file.parent)} is not a folder")


def _tokens(
    clip: Clip, checkpoint: Checkpoint, settings: SparkSettings, ref_s: float, transcribed: bool
) -> tuple[Tokens, float]:
    """The tokens, and how long they took once the codec was loaded, seconds."""
    codec = load_bicodec(checkpoint.path, dtype="float32", device=settings.device)
    begun_s = time.perf_counter()
    features = clip_features(clip.wave, checkpoint, codec) if transcribed else None
    tokens = enrolled(clip.wave, codec, ref_s, features)
    return tokens, time.perf_counter() - begun_s


def _placed(clip: Clip, file: Path, force: bool, files: dict[Path, bytes]) -> str:
    """The clip as the YAML names it; if it stands outside the folder a copy is added to `files`."""
    home, at = file.parent.resolve(), clip.path.resolve()
    if at.is_relative_to(home):
        return at.relative_to(home).as_posix()
    ending = clip.path.suffix.lower()
    copy = file.with_suffix(ending if ending in _ENDINGS else ".clip")
    try:
        data = at.read_bytes()
        if copy.exists() and copy.read_bytes() != data and not force:
            raise BadRequest(f"{shown(copy)} is there already and another clip: --force replaces it")
    except OSError as error:
        raise BadRequest(f"cannot copy {shown(at)}: {error.strerror or error}") from error
    files[copy] = data
    return copy.name


def _yaml(facts: Mapping[str, Json], file: Path) -> bytes:
    """The file's text, proved to read back as the voice."""
    text = "".join(f"{key}: {_shown_value(value)}\n" for key, value in facts.items())
    document = parse_yaml(text, shown(file), file)
    parse(document)
    data = text.encode()
    if document.data != facts or len(data) > MAX_FILE_BYTES:
        raise BadRequest("name, licence, transcript or consent hold what a voice file cannot: shorten them")
    return data


def _shown_value(value: Json) -> str:
    """One value on one line; quoted, as JSON quotes it, only where plain text would be misread."""
    if isinstance(value, str):
        try:
            if parse_yaml(f"x: {value}\n", "").data == {"x": value}:
                return value
        except BadYaml:
            pass
    separators = (",", ":") if isinstance(value, list) else None
    text = json.dumps(value, ensure_ascii=False, separators=separators)
    # what YAML wants escaped and JSON does not
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in text)


def _write(files: Mapping[Path, bytes], claim: Path | None) -> None:
    """Every file whole, or none. claim: one of them that must not be there yet; it goes first, so that of
    two who enrol one id at once the second finds it taken and changes nothing."""
    parts = {path: path.with_name(f".{path.name}.{secrets.token_hex(4)}.part") for path in files}
    claimed: Path | None = None
    try:
        for path, part in parts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("xb") as file:
                file.write(files[path])
        if claim is not None:
            claim.touch(exist_ok=False)
            claimed = claim
        for path, part in parts.items():
            part.replace(path)
        claimed = None
    except FileExistsError as error:
        raise BadRequest(f"{shown(claim or path)} is there already: --force replaces it") from error
    except OSError as error:
        raise BadRequest(f"cannot write {shown(path)}: {error.strerror or error}") from error
    finally:
        for part in parts.values():
            with suppress(OSError):
                part.unlink()
        if claimed is not None:
            claimed.unlink(missing_ok=True)

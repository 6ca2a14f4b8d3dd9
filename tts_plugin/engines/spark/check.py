"""`sparkvoice model check`: what is wrong with a model directory, without loading its weights."""

from __future__ import annotations

import json
from pathlib import Path

from tts_plugin.arguments import Parser
from tts_plugin.config import load_settings
from tts_plugin.engines.spark.checkpoint import Checkpoint, examine
from tts_plugin.engines.spark.model_files import ModelFiles, configured
from tts_plugin.errors import ConfigError
from tts_plugin.strict_yaml import shown


def main(argv: list[str]) -> int:
    """Print what is wrong, or what is there; 1 if anything is wrong."""
    parser = Parser(
        "sparkvoice model check",
        description="What is wrong with a Spark-TTS model directory; 1 if anything is.",
    )
    parser.add_argument("dir", metavar="DIR", type=Path, nargs="?", help="default: SPARK_TTS_MODEL")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--config", metavar="F.yaml", type=Path)
    args = parser.parse_args(argv)
    folder: Path = args.dir or configured(load_settings(args.config).engine.spark)
    try:
        checkpoint, problems = examine(folder)
    except ConfigError as error:
        checkpoint, problems = None, [str(error)]
    told = _told(checkpoint) if checkpoint else {}
    if args.json:
        print(json.dumps({"path": str(folder), "problems": problems, "model": told}, ensure_ascii=False))
    else:
        for problem in problems:
            print(problem)
        if told:
            print(f"{shown(folder)}: nothing wrong")
            for what, value in told.items():
                print(f"  {what:<18} {value}")
    return 1 if problems else 0


def _told(checkpoint: Checkpoint) -> dict[str, str]:
    v, sizes = checkpoint.vocabulary, checkpoint.sizes
    with_transcript = checkpoint.features == "mel" or ModelFiles(checkpoint.path).wav2vec2.is_dir()
    return {
        "language model": checkpoint.lm.summary(),
        "codec": checkpoint.codec.summary(),
        "codec revision": checkpoint.revision,
        "sound": f"{sizes.rate} Hz, {sizes.rate / sizes.hop:g} tokens a second",
        "text tokens": _span(0, v.text_count),
        "global tokens": f"{_span(v.global_first, v.global_count)}, {sizes.globals_} a voice",
        "semantic tokens": f"{_span(v.semantic_first, v.semantic_count)}, end is {v.eos}",
        "rows without token": str(sizes.rows - v.id_count),
        "transcripts": "yes" if with_transcript else "no wav2vec2 here, which is needed to clone with one",
    }


def _span(first: int, count: int) -> str:
    return f"{first} to {first + count - 1}"

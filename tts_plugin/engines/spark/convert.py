"""`sparkvoice model convert`: the language model made ready for OpenVINO ahead of its first use."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from tts_plugin.arguments import Parser
from tts_plugin.config import cache_folder, load_settings
from tts_plugin.engines.spark.checkpoint import Checkpoint
from tts_plugin.engines.spark.lm.openvino_weights import Source, Weights, compressed
from tts_plugin.engines.spark.lm_config import LmConfig
from tts_plugin.engines.spark.model_files import ModelFiles, configured
from tts_plugin.strict_yaml import shown


def main(argv: list[str]) -> int:
    """Compress the weights unless they are there, and print where they lie."""
    parser = Parser(
        "sparkvoice model convert",
        description="Compress a Spark-TTS language model for OpenVINO; without this its first load does.",
    )
    parser.add_argument("dir", metavar="DIR", type=Path, nargs="?", help="default: SPARK_TTS_MODEL")
    parser.add_argument("--weights", choices=get_args(Weights), help="default: engine.spark.openvino.weights")
    parser.add_argument("--config", metavar="F.yaml", type=Path)
    args = parser.parse_args(argv)
    spark = load_settings(args.config).engine.spark
    folder: Path = args.dir or configured(spark)
    checkpoint = Checkpoint.open(folder)
    files = ModelFiles(folder)
    weights: Weights = args.weights or spark.openvino.weights
    source = Source(files, LmConfig.read(files.lm_config), checkpoint.vocabulary, weights)
    place = compressed(source, cache_folder())
    print(f"{shown(place)}: {place.stat().st_size:,} bytes, {weights}")
    return 0

"""BiCodec, the codec of Spark-TTS: semantic tokens (50 a second) and 32 global tokens to 16 kHz, and back.

Inference only; this package and the language model's backend are where torch is imported.
"""

from tts_plugin.engines.spark.bicodec.config import PUBLISHED, TINY, CodecSizes, read_sizes
from tts_plugin.engines.spark.bicodec.load import Runtime, layout, load_bicodec
from tts_plugin.engines.spark.bicodec.model import BiCodec, CodecWindow
from tts_plugin.engines.spark.bicodec.random_weights import random_bicodec, write_random

__all__ = [
    "PUBLISHED",
    "TINY",
    "BiCodec",
    "CodecSizes",
    "CodecWindow",
    "Runtime",
    "layout",
    "load_bicodec",
    "random_bicodec",
    "read_sizes",
    "write_random",
]

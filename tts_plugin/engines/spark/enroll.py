"""Enrolment: a reference clip to the tokens that make its voice."""

from __future__ import annotations

import torch
from torch import Tensor

from tts_plugin.engines.spark.bicodec import BiCodec
from tts_plugin.engines.spark.reference import Samples, ref_clip, volume_normalise
from tts_plugin.engines.spark.token_file import Bounds, Tokens
from tts_plugin.errors import BadRequest, ConfigError


def enrolled(wave: Samples, codec: BiCodec, ref_s: float, features: Tensor | None = None) -> Tokens:
    """The tokens of a clip at the codec's rate. Blocks while the codec computes.

    The global ones come from the mel of the first `ref_s` seconds of the clip, whose volume is normalised
    first, and from nothing else. features: of the whole clip, `speech_features`, if a transcript goes with
    it; without them there are no semantic tokens. ConfigError for features of another model.
    """
    samples = round(codec.rate * ref_s) // codec.hop * codec.hop
    heard = ref_clip(volume_normalise(wave), samples)
    globals_ = codec.encode_global(torch.from_numpy(heard).float()[None])[0]
    if features is None:
        return Tokens(tuple(globals_.tolist()))
    try:
        semantic = codec.encode_semantic(features)[0]
    except BadRequest as error:
        raise ConfigError(f"wav2vec2 does not fit the codec, they are not of one model: {error}") from error
    return Tokens(tuple(globals_.tolist()), tuple(semantic.tolist()))


def bounds_of(codec: BiCodec) -> Bounds:
    """What tokens this codec can use."""
    return Bounds(codec.global_count, codec.global_codes, codec.semantic_codes)

"""The codec computes what the reference computes: tokens exactly, waves to float32's rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.spark.codecs import TINY_DIR, full_recipe, golden, tiny, worst
from tests.spark.recipe import recipe_wave
from tts_plugin.engines.spark.bicodec import PUBLISHED
from tts_plugin.engines.spark.bicodec.backbone import Prenet
from tts_plugin.engines.spark.bicodec.ecapa import Ecapa
from tts_plugin.engines.spark.bicodec.encoder import SemanticEncoder
from tts_plugin.engines.spark.bicodec.generator import Generator
from tts_plugin.engines.spark.bicodec.mel import Mel, mel_bands
from tts_plugin.engines.spark.bicodec.quantizers import Codebook
from tts_plugin.engines.spark.bicodec.speaker import SpeakerEncoder
from tts_plugin.engines.spark.bicodec.weights import WEIGHTS_FILE, CheckpointFile, Weights

IO = golden("tiny/io.npz")
CPU = torch.device("cpu")
# float32 against float64 differ by 4e-7 in the long wave
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def weights() -> Weights:
    return Weights(CheckpointFile(TINY_DIR / WEIGHTS_FILE))


def test_semantic_tokens_are_the_references() -> None:
    assert torch.equal(tiny().encode_semantic(IO["feat"]), IO["semantic_tokens"])


def test_global_tokens_are_the_references() -> None:
    assert torch.equal(tiny().encode_global(IO["ref_wav"]), IO["global_tokens"].squeeze(1).long())


def test_a_voices_vector_is_the_references() -> None:
    found = tiny().speaker(IO["global_tokens"].squeeze(1))
    assert worst(found, IO["d_vector_from_tokens"]) < TOLERANCE
    assert worst(found, IO["d_vector_forward"]) < TOLERANCE


@pytest.mark.parametrize(
    ("semantic", "voice", "wave"),
    [("semantic_tokens", "global_tokens", "wave"), ("long_semantic", "long_global", "long_wave")],
)
def test_waves_are_the_references(semantic: str, voice: str, wave: str) -> None:
    found = tiny().decode(IO[semantic], IO[voice].squeeze(1))
    assert found.dtype == torch.float32
    assert worst(found, IO[wave].squeeze(1)) < TOLERANCE


def test_the_way_to_semantic_tokens(weights: Weights) -> None:
    sizes = tiny().sizes
    encoder = SemanticEncoder(weights.at("encoder"), sizes.encoder)
    assert worst(encoder(IO["feat"]), IO["encoder_out"]) < TOLERANCE


def test_the_way_to_global_tokens(weights: Weights) -> None:
    sizes = tiny().sizes
    at = weights.at("speaker_encoder")
    assert worst(Mel(sizes.mel_params, CPU)(IO["ref_wav"]), IO["mel"]) < TOLERANCE
    ecapa = Ecapa(at.at("speaker_encoder"), sizes.speaker_encoder)
    assert worst(ecapa(IO["mel"]), IO["ecapa_features"]) < TOLERANCE
    speaker = SpeakerEncoder(at, sizes.speaker_encoder)
    assert worst(speaker.latents(IO["mel"]), IO["perceiver_out"]) < TOLERANCE


def test_the_way_to_sound(weights: Weights) -> None:
    sizes = tiny().sizes
    quantizer = sizes.quantizer
    codebook = Codebook(
        weights.at("quantizer"), quantizer.input_dim, quantizer.codebook_size, quantizer.codebook_dim
    )
    assert worst(codebook.look_up(IO["semantic_tokens"]), IO["vq_detokenized"]) < TOLERANCE
    prenet = Prenet(weights.at("prenet"), sizes.prenet)
    found = prenet(IO["vq_detokenized"], IO["d_vector_from_tokens"])
    assert worst(found, IO["prenet_out"]) < TOLERANCE
    generator = Generator(weights.at("decoder"), sizes.decoder)
    assert worst(generator(IO["decoder_in"]), IO["wave"].squeeze(1)) < TOLERANCE


def test_a_prenet_without_a_condition_is_the_references_postnet(weights: Weights) -> None:
    postnet = Prenet(weights.at("postnet"), tiny().sizes.postnet)
    assert worst(postnet(IO["prenet_out"], None), IO["postnet_out"]) < TOLERANCE


def test_the_published_mel_is_the_references() -> None:
    audio = golden("audio.npz")
    found = Mel(PUBLISHED.mel_params, CPU)(audio["mel_wav"][None])[0]
    assert worst(found, audio["mel128"]) < TOLERANCE


def test_mel_bands_are_the_references() -> None:
    bins = [0, 1, 2, 10, 100, 511, 512]
    rows = torch.from_numpy(mel_bands(PUBLISHED.mel_params)[bins]).float()
    assert worst(rows, golden("audio.npz")["mel_fb_rows"]) < 1e-7


def test_a_codec_of_published_size_is_the_references() -> None:
    """One test, so that 626 MB of weights are made once and let go."""
    codec, wanted, seed = full_recipe(150), golden("full_recipe_io.npz"), 150
    draws = np.random.RandomState(seed + 1)
    features = torch.from_numpy(draws.standard_normal((1, 12, 1024)).astype(np.float32))
    semantic = torch.from_numpy(draws.randint(0, 8192, (1, 10)))
    voice = torch.from_numpy(draws.randint(0, 4096, (1, 1, 32)))
    assert torch.equal(semantic, wanted["long_semantic"])
    assert torch.equal(voice, wanted["long_global"])

    clip = torch.from_numpy(recipe_wave(96000, seed + 2).astype(np.float32)[None])
    tokens = codec.encode_global(clip)
    assert torch.equal(tokens, wanted["global_tokens"].squeeze(1).long())
    codes = codec.encode_semantic(features)
    assert torch.equal(codes, wanted["semantic_tokens"])
    assert worst(codec.speaker(tokens), wanted["d_vector_from_tokens"]) < TOLERANCE
    assert worst(codec.decode(codes, tokens), wanted["wave"].squeeze(1)) < 2 * TOLERANCE
    assert worst(codec.decode(semantic, voice.squeeze(1)), wanted["long_wave"].squeeze(1)) < 2 * TOLERANCE
    assert (codec.prenet_reach, codec.generator_reach, codec.reach) == (57, 10, 67)
    assert (codec.rate, codec.hop, codec.global_count) == (16000, 320, 32)
    assert (codec.semantic_codes, codec.global_codes) == (8192, 4096)

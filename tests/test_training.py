"""The networks that are trained are the ones that are served."""

from __future__ import annotations

import torch

from training.nets import Learnt, Nets
from training.sizes import CODEC
from tts_plugin.engines.spark.bicodec.model import BiCodec
from tts_plugin.engines.spark.bicodec.weights import Stored, Weights

CPU = torch.device("cpu")


def test_what_is_trained_decodes_as_what_is_served() -> None:
    source = Learnt(CODEC, 0, CPU)
    nets = Nets.over(source, CODEC, CPU)
    served = BiCodec(Weights(Stored(source.state())), CODEC)
    codes = torch.randint(CODEC.quantizer.codebook_size, (1, 40), generator=torch.Generator().manual_seed(1))
    wave = 0.1 * torch.randn(1, 48_000, generator=torch.Generator().manual_seed(2))
    tokens = served.encode_global(wave)
    with torch.no_grad():
        steering = nets.steering(served._mel(wave))
        made = nets.generator(nets.frames(nets.codebook.look_up(codes), steering))
    assert torch.allclose(steering, served.speaker(tokens), atol=1e-5)
    assert torch.allclose(made, served.decode(codes, tokens), atol=1e-5)


def test_every_weight_that_is_served_is_learnt() -> None:
    source = Learnt(CODEC, 0, CPU)
    nets = Nets.over(source, CODEC, CPU)
    features = torch.randn(2, 20, CODEC.encoder.input_channels)
    mel = torch.rand(2, CODEC.mel_params.num_mels, 60)
    vectors, _, drawn, _ = nets.quantised(features)
    made = nets.generator(nets.frames(vectors, nets.steering(mel)))
    torch.autograd.backward(made.square().mean() + drawn)
    idle = [key for key, value in source.parameters.items() if value.grad is None]
    assert idle == []

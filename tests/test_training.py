"""The networks that are trained are the ones that are served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training import codes
from training.budget import Budget
from training.deck import bent
from training.export import export
from training.hearing import HearingTraining, middles
from training.judges import errors, words
from training.lm import LmTraining
from training.nets import Learnt, Nets
from training.shards import Part, Shards
from training.sizes import CODEC
from training.speech import HOP, Speech, Utterance
from training.wave import WaveTraining
from tts_plugin.engines.spark.bicodec import load_bicodec
from tts_plugin.engines.spark.bicodec.layers import Snake
from tts_plugin.engines.spark.bicodec.model import BiCodec
from tts_plugin.engines.spark.bicodec.weights import Init, Spec, Stored, Weights

CPU = torch.device("cpu")


def test_what_is_trained_decodes_as_what_is_served() -> None:
    source = Learnt(CODEC, 0, CPU)
    nets = Nets(source, CODEC, CPU)
    served = BiCodec(Weights(Stored(source.state())), CODEC)
    semantic = torch.randint(
        CODEC.quantizer.codebook_size, (1, 40), generator=torch.Generator().manual_seed(1)
    )
    wave = 0.1 * torch.randn(1, 48_000, generator=torch.Generator().manual_seed(2))
    tokens = served.encode_global(wave)
    with torch.no_grad():
        steering = nets.steering(served._mel(wave))
        made = nets.generator(nets.frames(nets.codebook.look_up(semantic), steering))
    assert torch.allclose(steering, served.speaker(tokens), atol=1e-5)
    assert torch.allclose(made, served.decode(semantic, tokens), atol=1e-5)


def test_every_weight_that_is_served_is_learnt() -> None:
    source = Learnt(CODEC, 0, CPU)
    nets = Nets(source, CODEC, CPU)
    features = torch.randn(2, 20, CODEC.encoder.input_channels)
    mel = torch.rand(2, CODEC.mel_params.num_mels, 60)
    heard = nets.quantised(features)
    made = nets.generator(nets.frames(heard.vectors, nets.steering(mel)))
    torch.autograd.backward(made.square().mean() + heard.loss)
    idle = [key for key, value in source.parameters.items() if value.grad is None]
    assert idle == []


def test_the_snake_of_training_has_the_gradient_of_its_formula() -> None:
    alpha = nn.Parameter(torch.rand(1, 3, 1, dtype=torch.float64) + 0.5)
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    snake = Snake(Weights(Given(alpha), torch.float64), 3)
    y = snake(x)
    plain = x + (alpha * x).sin().square() / alpha
    torch.testing.assert_close(y, plain)
    weights = torch.randn_like(y)
    found = torch.autograd.grad((y * weights).sum(), (x, alpha))
    torch.testing.assert_close(found, torch.autograd.grad((plain * weights).sum(), (x, alpha)))


class Given:
    """A source of one parameter."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self._parameter = parameter

    def tensor(self, key: str, spec: Spec, init: Init, *, used: bool) -> Tensor:
        return self._parameter


def test_shards_leave_the_gradient_of_the_whole_batch() -> None:
    weight = nn.Parameter(torch.tensor([2.0, -1.0]))
    batch = torch.arange(8.0).view(4, 2)

    def part_of(count: int) -> Callable[[int], Part]:
        def part(shard: int) -> Part:
            loss = (batch[shard::count] * weight).sum(1).square().mean()
            return Part(loss, {"loss": loss.item()}, (batch[shard::count],))

        return part

    whole, _ = Shards(1).gradients([weight], part_of(1))
    expected = weight.grad
    told, kept = Shards(2).gradients([weight], part_of(2))
    torch.testing.assert_close(weight.grad, expected)
    assert told == pytest.approx(whole)
    assert [len(rows) for (rows,) in kept] == [2, 2]


def test_a_budget_counts_what_was_computed_and_not_what_was_waited() -> None:
    budget = Budget(1.0, cores=2, spent_s=30.0)
    assert budget.done == pytest.approx(0.5, abs=0.01)
    assert Budget(1.0, spent_s=61.0).done > 1


def test_every_step_goes_on_from_what_it_saved_and_the_last_leaves_a_model(tmp_path: Path) -> None:
    speech = some_speech()
    assert HearingTraining(tmp_path, speech, device=CPU, shards=2).step == 0
    HearingTraining(tmp_path, speech, device=CPU, shards=2).run(0.001, decay=True)
    hearing = HearingTraining(tmp_path, speech, device=CPU)
    assert (hearing.step, hearing.spent_s > 0.06) == (1, True)
    hearing.run(0.001, decay=True)
    assert hearing.step == 1, "its time was up already"

    codes.encode(hearing.source, speech, tmp_path / "codes.npz", CPU, threads=2)
    heard = codes.read(tmp_path / "codes.npz", speech)
    assert [len(one.semantic) for one in heard] == [one.length // HOP for one in speech.utterances]
    wave = WaveTraining(tmp_path, speech, heard, device=CPU)
    wave.run(0.001, adversarial_from=0.0, decay=True)
    assert WaveTraining(tmp_path, speech, heard, device=CPU).step == 1
    lm = LmTraining(tmp_path, heard, device=CPU)
    lm.run(0.001, cores=1, decay=True)
    assert LmTraining(tmp_path, heard, device=CPU).step == 1

    checkpoint = export(wave.source, lm, tmp_path / "model")
    assert (checkpoint.features, checkpoint.is_noise) == ("mel", False)
    assert sum(path.stat().st_size for path in checkpoint.path.rglob("*")) < 25e6
    # what the hearing decided, the product decides too
    codec = load_bicodec(checkpoint.path, dtype="float32", device="cpu")
    clip = torch.from_numpy(speech.of(speech.utterances[0]))[None]
    served = codec.encode_semantic(codec.mel_features(clip))[0]
    assert (served.numpy() == heard[0].semantic).mean() > 0.9  # the file holds bfloat16


def some_speech() -> Speech:
    """Noise of several lengths by two speakers."""
    dice = np.random.default_rng(0)
    lengths = [HOP * tokens for tokens in (60, 75, 90, 120) * 6]
    samples = (dice.standard_normal(sum(lengths)) * 2000).astype(np.int16)
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    utterances = tuple(
        Utterance(start, length, at % 2, f"number {at}")
        for at, (start, length) in enumerate(zip(starts, lengths, strict=True))
    )
    return Speech(samples, utterances, ())


def test_errors_are_the_fewest_words_that_must_change() -> None:
    said = words("He's read it, twice; so far.")
    assert said == ["hes", "read", "it", "twice", "so", "far"]
    assert errors(said, said) == 0
    assert errors(said, ["hes", "red", "it", "so", "far", "away"]) == 3
    assert errors([], ["what"]) == 1


def test_middles_lie_among_the_directions_that_are_near_them() -> None:
    dice = torch.Generator().manual_seed(3)
    centres = F.normalize(torch.eye(4) + 0.1)
    points = F.normalize(centres.repeat(50, 1) + 0.05 * torch.randn(200, 4, generator=dice))
    found = middles(points, 40)
    assert torch.allclose(found.norm(dim=1), torch.ones(40), atol=1e-5)
    assert (found @ centres.T).max(1).values.min() > 0.97


def test_a_bent_piece_is_a_higher_or_lower_voice_of_the_same_length() -> None:
    tone = np.sin(2 * np.pi * 500 * np.arange(8000) / 16000).astype(np.float32)
    higher = bent(tone, 1.16, 6000)
    assert len(higher) == 6000
    assert np.argmax(np.abs(np.fft.rfft(higher))) * 16000 / 6000 == pytest.approx(580, abs=3)
    assert bent(tone, 1.0, 8000) is tone

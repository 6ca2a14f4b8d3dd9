"""Drawing the next code: what each knob keeps, that draws follow the probabilities, and bad numbers."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tts_plugin.engine import Sampling
from tts_plugin.engines.spark.sampling import draw, generator
from tts_plugin.errors import SynthesisFailed

OFF = Sampling(temperature=1.0, top_k=0, top_p=1.0)
DRAWS = 4000


def logits(*probabilities: float) -> NDArray[np.float32]:
    with np.errstate(divide="ignore"):
        values: NDArray[np.float32] = np.log(np.array(probabilities)).astype(np.float32)
    return values


def shares(
    values: NDArray[np.float32], sampling: Sampling, seen: tuple[int, ...] = ()
) -> NDArray[np.float64]:
    """How often each index is drawn."""
    numbers = generator(1)
    drawn = [draw(values, sampling, seen, numbers) for _ in range(DRAWS)]
    return np.bincount(drawn, minlength=len(values)) / DRAWS


def test_draws_follow_the_probabilities() -> None:
    assert shares(logits(0.1, 0.6, 0.3), OFF) == pytest.approx([0.1, 0.6, 0.3], abs=0.03)


def test_temperature_sharpens_and_flattens() -> None:
    # p ** (1 / temperature), made to sum to 1
    assert shares(logits(0.2, 0.8), Sampling(0.5, 0, 1.0)) == pytest.approx([1 / 17, 16 / 17], abs=0.02)
    assert shares(logits(0.2, 0.8), Sampling(2.0, 0, 1.0)) == pytest.approx([1 / 3, 2 / 3], abs=0.03)


def test_temperature_0_takes_the_likeliest_and_no_random_number() -> None:
    numbers = generator(1)
    before = numbers.bit_generator.state
    assert draw(logits(0.3, 0.4, 0.3), Sampling(temperature=0), (), numbers) == 1
    assert numbers.bit_generator.state == before


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e-3])
def test_a_temperature_next_to_0_is_greedy_and_overflows_nothing(temperature: float) -> None:
    values = np.array([-1e30, 3.0, 2.9, -np.inf], dtype=np.float32)
    assert draw(values, Sampling(temperature, 0, 1.0), (), generator(1)) == 1


def test_top_k_keeps_the_k_likeliest_in_their_proportion() -> None:
    drawn = shares(logits(0.1, 0.4, 0.05, 0.25, 0.2), Sampling(1.0, 2, 1.0))
    assert drawn == pytest.approx([0, 0.4 / 0.65, 0, 0.25 / 0.65, 0], abs=0.03)
    assert (drawn[[0, 2, 4]] == 0).all()


def test_top_k_larger_than_the_head_keeps_all() -> None:
    assert shares(logits(0.5, 0.5), Sampling(1.0, 50, 1.0)) == pytest.approx([0.5, 0.5], abs=0.03)


def test_top_p_keeps_the_fewest_that_hold_it() -> None:
    values = logits(0.1, 0.5, 0.3, 0.1)
    drawn = shares(values, Sampling(1.0, 0, 0.79))
    assert (drawn[[0, 3]] == 0).all()
    assert drawn[[1, 2]] == pytest.approx([0.625, 0.375], abs=0.03)
    assert (shares(values, Sampling(1.0, 0, 0.81)) > 0).sum() == 3, "the one that crosses it stays"
    assert shares(values, Sampling(1.0, 0, 1e-9))[1] == 1, "one always stays"


def test_top_p_counts_what_top_k_and_temperature_left() -> None:
    # the two likeliest are 0.4 and 0.4 of 1, half each of what top-k leaves
    values = logits(0.4, 0.4, 0.1, 0.1)
    assert (shares(values, Sampling(1.0, 2, 0.6)) > 0).tolist() == [True, True, False, False]
    assert (shares(values, Sampling(0.1, 0, 0.9)) > 0).tolist() == [True, True, False, False]


def test_the_repetition_penalty_makes_what_was_drawn_less_likely_whatever_its_sign() -> None:
    for values in ([2.0, 2.0], [-2.0, -2.0]):
        first, second = shares(np.array(values, np.float32), Sampling(1.0, 0, 1.0, 1.5), seen=(0,))
        assert first < second
    expected = 1 / (1 + np.exp(2 - 2 / 1.5))
    assert shares(np.array([2.0, 2.0], np.float32), Sampling(1.0, 0, 1.0, 1.5), (0,))[0] == pytest.approx(
        expected, abs=0.03
    )


def test_the_penalty_reaches_greedy_choice_too() -> None:
    assert draw(np.array([1.0, 0.9], np.float32), Sampling(0, 0, 1.0, 1.5), {0}, generator(1)) == 1


def test_a_forbidden_index_is_never_drawn() -> None:
    assert shares(logits(0.5, 0.0, 0.5, 0.0), Sampling(5.0, 0, 1.0))[[1, 3]].sum() == 0


def test_equal_seeds_draw_alike_and_the_logits_stay_as_they_were() -> None:
    values = np.random.default_rng(0).standard_normal(8193).astype(np.float32)
    kept = values.copy()
    one, other = generator(5), generator(5)
    sampling = Sampling(repetition_penalty=1.2)
    assert [draw(values, sampling, {1, 2}, one) for _ in range(50)] == [
        draw(values, sampling, {1, 2}, other) for _ in range(50)
    ]
    np.testing.assert_array_equal(values, kept)


def test_without_a_seed_each_request_has_other_numbers() -> None:
    assert generator(None).random() != generator(None).random()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logits_that_are_no_numbers_are_an_error_and_not_a_code(bad: float, temperature: float) -> None:
    with pytest.raises(SynthesisFailed, match="float32 or bfloat16"):
        draw(np.array([0.0, bad, 1.0], np.float32), Sampling(temperature), (), generator(1))


def test_nothing_left_to_draw_is_an_error() -> None:
    with pytest.raises(SynthesisFailed):
        draw(np.full(3, -np.inf, np.float32), OFF, (), generator(1))

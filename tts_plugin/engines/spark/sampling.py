"""How the next code is drawn from a model's logits: penalty, temperature, top-k, top-p, one uniform number.

numpy only, so that every LM backend draws alike: equal logits and an equal seed give equal codes.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from tts_plugin.engine import Sampling
from tts_plugin.errors import BadRequest, SynthesisFailed

Logits = NDArray[np.float32]


def checked(sampling: Sampling) -> Sampling:
    """`sampling` itself, or BadRequest that names the value out of range."""
    penalty = sampling.repetition_penalty
    values = (
        ("temperature", sampling.temperature, "0 (greedy) or more", sampling.temperature >= 0),
        ("top_k", sampling.top_k, "0 (off) or more", sampling.top_k >= 0),
        ("top_p", sampling.top_p, "above 0, at most 1 (off)", 0 < sampling.top_p <= 1),
        ("repetition_penalty", penalty, "above 0, 1 is off", penalty > 0),
    )
    for name, value, due, fits in values:
        if not fits or not math.isfinite(value):
            raise BadRequest(f"sampling.{name} is {value}; it should be {due}")
    return sampling


def generator(seed: int | None) -> np.random.Generator:
    """The random numbers of one request, its own, so that nothing else that runs can disturb them."""
    return np.random.default_rng(secrets.randbits(64) if seed is None else abs(seed))


def draw(logits: Logits, sampling: Sampling, seen: Collection[int], generator: np.random.Generator) -> int:
    """The index of the next token.

    logits: float32, 1-D, over the tokens that may be drawn; -inf forbids one. seen: the indices drawn
    so far, which the repetition penalty makes less likely. temperature 0 takes the likeliest and no
    random number; otherwise exactly one is taken. Raises SynthesisFailed for logits that are no numbers.
    """
    peak = float(logits.max())  # a NaN anywhere makes this NaN
    if not math.isfinite(peak):
        raise SynthesisFailed(
            "the language model gave no usable numbers (NaN or infinity): check the model "
            "with sparkvoice model check, and that it runs in float32 or bfloat16"
        )
    scores = logits.astype(np.float64)
    if seen and sampling.repetition_penalty != 1:
        at = np.fromiter(seen, dtype=np.intp, count=len(seen))
        penalised = scores[at]
        grown = penalised * sampling.repetition_penalty
        scores[at] = np.where(penalised > 0, penalised / sampling.repetition_penalty, grown)
    if sampling.temperature == 0:
        return int(scores.argmax())
    kept = _top_k(scores, sampling.top_k)
    weights = _weights(scores[kept], sampling.temperature)
    if sampling.top_p < 1:
        kept, weights = _top_p(kept, weights, sampling.top_p)
    heap = np.cumsum(weights)
    return int(kept[np.searchsorted(heap, generator.random() * heap[-1], side="right")])


def _top_k(scores: NDArray[np.float64], top_k: int) -> NDArray[np.intp]:
    """Indices of the `top_k` likeliest (0: of all), in index order; what ties with the last stays."""
    if not 0 < top_k < len(scores):
        return np.arange(len(scores))
    least = np.partition(scores, -top_k)[-top_k]
    return np.flatnonzero(scores >= least)


def _weights(scores: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Unnormalised probabilities; the likeliest has weight 1, so nothing overflows however cold it is."""
    with np.errstate(over="ignore"):  # a tiny temperature: exp(-inf) is the 0 that is meant
        weights: NDArray[np.float64] = np.exp((scores - scores.max()) / temperature)
    return weights


def _top_p(
    kept: NDArray[np.intp], weights: NDArray[np.float64], top_p: float
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The fewest likeliest tokens that hold at least `top_p` of the probability."""
    order = np.argsort(-weights, kind="stable")
    heap = np.cumsum(weights[order])
    count = int(np.searchsorted(heap, top_p * heap[-1], side="left")) + 1
    nucleus = order[:count]
    return kept[nucleus], weights[nucleus]

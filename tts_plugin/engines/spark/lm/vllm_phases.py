"""Phases: what may come after which token, as numbers that travel in a model's config (no torch, no vLLM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from tts_plugin.engines.spark.vocabulary import Vocabulary

SPEECH, PITCH, SPEED, GLOBAL = range(4)  # SPEECH unless the token before says otherwise


@dataclass(frozen=True, slots=True)
class Phases:
    """The token before decides: speech is codes and their end, a new voice is one pitch, one speed, then
    global codes. first ids and counts as in Vocabulary."""

    eos: int
    semantic: tuple[int, int]
    pitch: tuple[int, int]
    speed: tuple[int, int]
    globals_: tuple[int, int]
    start_acoustic: int
    start_global: int

    @classmethod
    def of(cls, ids: Vocabulary) -> Self:
        return cls(
            ids.eos,
            (ids.semantic_first, ids.semantic_count),
            (ids.pitch_value_first, ids.pitch_value_count),
            (ids.speed_value_first, ids.speed_value_count),
            (ids.global_first, ids.global_count),
            ids.start_acoustic,
            ids.start_global,
        )

    @property
    def rows(self) -> list[int]:
        """Ids that may come at all, phase by phase."""
        return [token for phase in self._families() for token in phase]

    @property
    def closed(self) -> list[list[float]]:
        """By phase: 1 for each of `rows` that must not come, 0 for the others."""
        sizes = [len(phase) for phase in self._families()]
        return [
            [float(phase != other) for other, size in enumerate(sizes) for _ in range(size)]
            for phase in range(len(sizes))
        ]

    def after(self, vocabulary: int) -> list[int]:
        """By token id, of `vocabulary` many: the phase of the position after it."""
        phases = [SPEECH] * vocabulary
        phases[self.start_acoustic] = PITCH
        for token in _ids(self.pitch):
            phases[token] = SPEED
        phases[self.start_global] = GLOBAL
        for token in _ids(self.globals_):
            phases[token] = GLOBAL
        return phases

    def _families(self) -> list[list[int]]:
        return [[*_ids(self.semantic), self.eos], *map(_ids, (self.pitch, self.speed, self.globals_))]


def _ids(family: tuple[int, int]) -> list[int]:
    first, count = family
    return list(range(first, first + count))

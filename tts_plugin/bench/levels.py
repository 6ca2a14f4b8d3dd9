"""Level: what a crowd of one size came to, in one row of figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tts_plugin.bench.crowd import Take
from tts_plugin.bench.process import Spent

_PATIENCE_S = 1.0  # a turn that was still silent after that counts with its wait so far


@dataclass(frozen=True, slots=True)
class Level:
    """Milliseconds from a turn's first text, seconds of audio, shares. made: from the moment when there was
    enough text to speak to the first frame, where it is made. rtf: of a whole turn; it waits for text and
    for its listener, too. dry: turns with an underrun; dry_ms: the longest silence of a turn. step_ms: of a
    language model, a token of one turn. cores: kept busy by who speaks. None: there was none of it."""

    name: str
    streams: int
    turns: int
    first_p50: float | None
    first_p95: float | None
    made_p50: float | None
    made_p95: float | None
    onset_p50: float | None
    onset_p95: float | None
    rtf_p50: float | None
    dry: int
    dry_ms: float
    audio_per_s: float
    step_ms: float | None
    free_p95: float | None
    orphan_p50: float | None
    errors: int
    cores: float | None
    resident_mb: float | None

    @property
    def holds(self) -> bool:
        """Nobody ran dry and nobody was refused."""
        return self.dry == 0 and self.errors == 0 and self.first_p50 is not None


def level(
    name: str, streams: int, takes: Sequence[Take], seconds: float, spent: Spent | None, first_tokens: int
) -> Level:
    """first_tokens: that a first window waits for after its first one, where there are tokens."""
    first = [take.first_s for take in takes if take.first_s is not None]
    first += [take.silent_s for take in takes if take.silent_s is not None and take.silent_s > _PATIENCE_S]
    cut = [take for take in takes if take.free_s is not None]
    reports = [take.report for take in takes if take.report.get("first_frame_ms") is not None]
    made = [report["first_frame_ms"] - report["first_segment_ms"] for report in reports]
    steps = [
        report["stages_ms"]["tokens"] / first_tokens for report in reports if "tokens" in report["stages_ms"]
    ]
    return Level(
        name=name,
        streams=streams,
        turns=len(takes),
        first_p50=_ms(first, 50),
        first_p95=_ms(first, 95),
        made_p50=_quantile(made, 50),
        made_p95=_quantile(made, 95),
        onset_p50=_ms([take.onset_s for take in takes if take.onset_s is not None], 50),
        onset_p95=_ms([take.onset_s for take in takes if take.onset_s is not None], 95),
        rtf_p50=_quantile([report["rtf"] for report in reports if report["rtf"] is not None], 50, 3),
        dry=sum(take.underruns > 0 for take in takes),
        dry_ms=round(max((take.dry_s for take in takes), default=0.0) * 1000, 1),
        audio_per_s=round(sum(take.audio_s for take in takes) / seconds, 2),
        step_ms=_quantile(steps, 50),
        free_p95=_ms([take.free_s for take in cut if take.free_s is not None], 95),
        orphan_p50=_quantile([take.orphan_ms for take in cut if take.orphan_ms is not None], 50),
        errors=sum(take.error is not None for take in takes),
        cores=None if spent is None else round(spent.cpu_s / seconds, 2),
        resident_mb=None if spent is None else round(spent.resident_mb),
    )


def _ms(values_s: Sequence[float], q: float) -> float | None:
    return _quantile([value * 1000 for value in values_s], q)


def _quantile(values: Sequence[float], q: float, digits: int = 1) -> float | None:
    if not values:
        return None
    found = float(np.percentile(values, q))
    return round(found, digits) if math.isfinite(found) else None

"""Ledger: what each turn came to, a line in the log and in the metrics; never its text."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Literal

from tts_plugin.server.metrics import Metrics
from tts_plugin.utterance import Utterance
from tts_plugin.voices import Voice

log = logging.getLogger(__name__)

Outcome = Literal["done", "cancelled", "error", "disconnected"]


class Ledger:
    """Every way to a turn writes here when the turn is over, once. docs/metrics.md explains both."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def close(
        self,
        outcome: Outcome,
        voice: Voice | None,
        utterance: Utterance | None,
        facts: Mapping[str, Any],
        *,
        code: str | None = None,
        orphan_s: float = 0.0,
    ) -> None:
        """voice, utterance: None for a turn that did not come so far. facts: how it was asked for. code: of
        the error that ended it. orphan_s: audio made and not heard when it was cut off."""
        line: dict[str, Any] = {"outcome": outcome}
        if code is not None:
            line["code"] = code
        if voice is not None:
            line |= {"voice": voice.id, "engine": voice.engine}
        line |= facts
        if outcome in ("cancelled", "disconnected"):
            line["orphan_ms"] = round(orphan_s * 1000, 1)
        timeline = None
        if utterance is not None:
            timeline = utterance.timeline
            line |= {"rate": utterance.rate, **timeline.report()}
        log.info("utterance %s", json.dumps(line))
        self._metrics.over(
            None if voice is None else voice.engine,
            None if voice is None else voice.id,
            outcome,
            code=code,
            timeline=timeline,
            orphan_s=orphan_s,
        )

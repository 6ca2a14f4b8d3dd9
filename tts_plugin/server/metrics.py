"""The metrics of one engine server, in a registry of its own, as Prometheus reads them at /metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tts_plugin.server.admission import Gate
from tts_plugin.timing import Timeline

CONTENT_TYPE = CONTENT_TYPE_LATEST
OTHER = "other"  # voices beyond the first few, and what failed before its voice was known

_VOICES = 50  # that have labels of their own: a label costs memory here and in Prometheus for good
_FIRST_S = (0.02, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
_STAGE_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
_WATCHDOG = "watchdog_"  # begins the names of what an engine's watchdog counts


class Metrics:
    """What `/metrics` tells. gates: of the engines, by name; they are asked at each scrape, as is
    connections."""

    def __init__(self, gates: Mapping[str, Gate], connections: Callable[[], float]) -> None:
        self._registry = registry = CollectorRegistry()
        self._voices: set[str] = set()
        registry.register(_Gates(gates))
        ProcessCollector(registry=registry)  # memory, CPU time, open files; nothing where there is no /proc
        Gauge("sparkvoice_connections", "Websockets that are open.", registry=registry).set_function(
            connections
        )

        both = ("engine", "voice")
        self._utterances = Counter(
            "sparkvoice_utterances", "Turns that are over.", (*both, "outcome"), registry=registry
        )
        self._errors = Counter("sparkvoice_errors", "Errors told to clients.", ("code",), registry=registry)
        self._first_frame_s = Histogram(
            "sparkvoice_first_frame_seconds",
            "From a turn's first text to its first audio.",
            both,
            registry=registry,
            buckets=_FIRST_S,
        )
        self._onset_s = Histogram(
            "sparkvoice_audible_onset_seconds",
            "From a turn's first text to the first sound that can be heard.",
            both,
            registry=registry,
            buckets=_FIRST_S,
        )
        self._stage_s = Histogram(
            "sparkvoice_stage_seconds",
            "What the time from the first segment to the first audio went into.",
            ("engine", "stage"),
            registry=registry,
            buckets=_STAGE_S,
        )
        self._audio_s = Counter("sparkvoice_audio_seconds", "Audio made.", both, registry=registry)
        self._underruns = Counter(
            "sparkvoice_underruns",
            "Times that a listener ran out of audio while there was text to speak.",
            both,
            registry=registry,
        )
        self._dry_s = Counter(
            "sparkvoice_underrun_seconds", "Silence that listeners heard for it.", both, registry=registry
        )
        self._wasted_s = Counter(
            "sparkvoice_wasted_audio_seconds",
            "Audio made that nobody heard, because the turn was cut off.",
            ("engine",),
            registry=registry,
        )
        self._wasted_tokens = Counter(
            "sparkvoice_wasted_tokens",
            "Tokens drawn that never became sound, because the turn was cut off.",
            ("engine",),
            registry=registry,
        )
        self._watchdog = Counter(
            "sparkvoice_watchdog_events",
            "Speech that went wrong and was noticed.",
            ("engine", "event"),
            registry=registry,
        )

    def exposition(self) -> bytes:
        """All of it, in the text format that CONTENT_TYPE names."""
        return generate_latest(self._registry)

    def over(
        self,
        engine: str | None,
        voice: str | None,
        outcome: str,
        *,
        code: str | None,
        timeline: Timeline | None,
        orphan_s: float,
    ) -> None:
        """A turn is over. outcome: done, cancelled, error, disconnected. code: of its error. orphan_s: audio
        made and not heard when it was cut off. engine, voice: None if it failed before they were known."""
        engine = engine or OTHER
        both = (engine, self._voice(voice))
        self._utterances.labels(*both, outcome).inc()
        if code is not None:
            self._errors.labels(code).inc()
        if timeline is None:
            return
        for histogram, at_s in (
            (self._first_frame_s, timeline.first_frame_s),
            (self._onset_s, timeline.onset_s),
        ):
            took_s = timeline.since_text_s(at_s)
            if took_s is not None:
                histogram.labels(*both).observe(took_s)
        if timeline.first_frame_s is not None:  # else what is noted is not all
            for stage, took_s in timeline.took_s().items():
                self._stage_s.labels(engine, stage).observe(took_s)
        self._audio_s.labels(*both).inc(timeline.audio_s)
        self._underruns.labels(*both).inc(timeline.underruns or 0)
        self._dry_s.labels(*both).inc(timeline.dry_s)
        if outcome in ("cancelled", "disconnected"):
            drawn, spoken = timeline.counts.get("tokens", 0), timeline.counts.get("tokens_spoken", 0)
            self._wasted_s.labels(engine).inc(orphan_s)
            self._wasted_tokens.labels(engine).inc(max(0, drawn - spoken))
        for what, count in timeline.counts.items():
            if what.startswith(_WATCHDOG):
                self._watchdog.labels(engine, what.removeprefix(_WATCHDOG)).inc(count)

    def _voice(self, voice: str | None) -> str:
        if voice is None or (voice not in self._voices and len(self._voices) >= _VOICES):
            return OTHER
        self._voices.add(voice)
        return voice


class _Gates(Collector):
    """What the gates say at the moment of a scrape."""

    def __init__(self, gates: Mapping[str, Gate]) -> None:
        self._gates = gates

    def collect(self) -> Iterable[Metric]:
        active = GaugeMetricFamily(
            "sparkvoice_streams_active", "Turns that are spoken now.", labels=["engine"]
        )
        waiting = GaugeMetricFamily("sparkvoice_streams_waiting", "Turns that wait.", labels=["engine"])
        most = GaugeMetricFamily("sparkvoice_streams_max", "Turns spoken at once at most.", labels=["engine"])
        rejected = CounterMetricFamily(
            "sparkvoice_rejected", "Turns refused as overloaded.", labels=["engine", "reason"]
        )
        for name, gate in list(self._gates.items()):
            active.add_metric([name], gate.active)
            waiting.add_metric([name], gate.waiting)
            most.add_metric([name], gate.streams)
            rejected.add_metric([name, "full"], gate.full)
            rejected.add_metric([name, "waited"], gate.late)
        return (active, waiting, most, rejected)

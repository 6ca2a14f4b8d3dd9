"""Patience: when a desk says something because nobody else does, and when it ends a call. Sans-IO."""

from __future__ import annotations

from dataclasses import dataclass

from agent.desk.settings import LimitSettings, SilenceSettings
from agent.role_log import AgentSaid, Event, StateChanged, UserSaid


@dataclass(frozen=True, slots=True)
class Say:
    """The caller should hear `text`; with `then_hang_up` the call is over after it."""

    text: str
    then_hang_up: bool = False


class Patience:
    """Follows one call; told of its events and asked several times a second what is due."""

    def __init__(self, silence: SilenceSettings | None, limit: LimitSettings | None, now_s: float) -> None:
        self._silence = silence
        self._limit = limit
        self._began_s = now_s
        self._quiet_since_s = now_s
        self._states = {"agent": "initializing", "user": "listening"}
        self._prompted = 0
        self._warned = False
        self._over = False

    def note(self, event: Event, now_s: float) -> None:
        """Something happened in the call."""
        match event:
            case StateChanged(who, state):
                self._states[who] = state
                self._quiet_since_s = now_s
            case UserSaid(text, _) if text.strip():
                self._prompted = 0
                self._quiet_since_s = now_s
            case AgentSaid():
                self._quiet_since_s = now_s

    def speak(self, silence: SilenceSettings | None, limit: LimitSettings | None) -> None:
        """Say what is due from now on in these words."""
        self._silence = silence
        self._limit = limit

    def alive(self, now_s: float) -> None:
        """The caller did something else, like pressing a key."""
        self._prompted = 0
        self._quiet_since_s = now_s

    def due(self, now_s: float) -> Say | None:
        """What is to be said now, once; None for nothing."""
        if self._over:
            return None
        return self._limit_due(now_s) or self._silence_due(now_s)

    def _limit_due(self, now_s: float) -> Say | None:
        if self._limit is None:
            return None
        lasted_s = now_s - self._began_s
        if lasted_s >= self._limit.call_s:
            self._over = True
            return Say(self._limit.goodbye, then_hang_up=True)
        if (
            not self._warned
            and self._limit.warning_s
            and lasted_s >= self._limit.call_s - self._limit.warning_s
        ):
            self._warned = True
            return Say(self._limit.warning)
        return None

    def _silence_due(self, now_s: float) -> Say | None:
        if self._silence is None or set(self._states.values()) != {"listening"}:
            return None
        if now_s - self._quiet_since_s < self._silence.after_s:
            return None
        self._quiet_since_s = now_s
        if self._prompted < len(self._silence.prompts):
            self._prompted += 1
            return Say(self._silence.prompts[self._prompted - 1])
        self._over = True
        return Say(self._silence.goodbye, then_hang_up=True)

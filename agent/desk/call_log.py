"""CallLog: one call's conversation as JSON lines, telephone numbers masked."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

from agent.desk.hours import Now
from agent.desk.masking import masked, masked_number
from agent.desk.scribe import Scribe
from agent.line import CallInfo
from agent.role_log import AgentSaid, Event, Failed, FalseInterruption, TurnMeasured, UserSaid


def file_name(call: CallInfo, moment: datetime) -> str:
    """Without its ending: when, and which call; nothing of it is a telephone number."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", masked(call.id)).strip("-")[:40]
    return f"{moment:%Y%m%dT%H%M%S}-{name or 'call'}"


class CallLog:
    """Appends to `path`, a line at a time, so that nothing is lost with a process.

    The lines are in the order of the conversation. The agent's own is known only when it has been said or
    cut: what happens meanwhile waits for it, and it stands at the time when its first word was heard.
    """

    def __init__(self, path: Path, scribe: Scribe, now: Now) -> None:
        self._path = path
        self._scribe = scribe
        self._now = now
        self._speaking_since: str | None = None
        self._waiting: list[str] = []
        self._over = False

    def began(self, call: CallInfo) -> None:
        self._write(
            "began",
            id=masked(call.id),
            caller=masked_number(call.caller),
            called=masked_number(call.called),
            outbound=call.outbound,
        )

    def show(self, event: Event) -> None:
        """What of a call's events is worth reading later."""
        match event:
            case UserSaid(text, True) if text.strip():
                self._write("caller", text=masked(text))
            case AgentSaid(final=False):
                self._speaking_since = self._speaking_since or self._moment()
            case AgentSaid(_, text, True, interrupted):
                self._agent_said(text, interrupted=interrupted)
            case TurnMeasured(total_ms=total_ms) if total_ms is not None:
                self._write("turn", total_ms=total_ms)
            case FalseInterruption(resumed):
                self._write("false_interruption", resumed=resumed)
            case Failed(source, message, recoverable):
                self._write("failed", source=source, message=masked(message), recoverable=recoverable)

    def note(self, what: str, **facts: str | bool | float) -> None:
        """Something that the desk did: a key, a handover."""
        hidden: dict[str, Any] = {
            key: masked(fact) if isinstance(fact, str) else fact for key, fact in facts.items()
        }
        self._write(what, **hidden)

    def ended(self, why: str, seconds: float) -> None:
        """The last line; what is told after it is not written."""
        self._speaking_since = None
        self._let_go()
        self.note("ended", why=why, seconds=round(seconds, 1))
        self._over = True

    def _agent_said(self, text: str, *, interrupted: bool) -> None:
        since, self._speaking_since = self._speaking_since, None
        self._write("agent", at=since, text=masked(text), interrupted=interrupted)
        self._let_go()

    def _let_go(self) -> None:
        for line in self._waiting:
            self._append(line)
        self._waiting = []

    def _write(self, event: str, *, at: str | None = None, **facts: Any) -> None:
        line = json.dumps({"at": at or self._moment(), "event": event, **facts})
        if self._speaking_since is None:
            self._append(line)
        else:
            self._waiting.append(line)

    def _append(self, line: str) -> None:
        if not self._over:
            self._scribe.write(_append, self._path, line)

    def _moment(self) -> str:
        return self._now().isoformat(timespec="milliseconds")


def _append(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")

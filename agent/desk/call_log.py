"""CallLog: one call's conversation as JSON lines, telephone numbers masked."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class CallLog:
    """Appends to `path`, a line at a time, so that nothing is lost with a process."""

    path: Path
    scribe: Scribe
    now: Now

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
            case AgentSaid(_, text, True, interrupted):
                self._write("agent", text=masked(text), interrupted=interrupted)
            case TurnMeasured(total_ms=total_ms) if total_ms is not None:
                self._write("turn", total_ms=total_ms)
            case FalseInterruption(resumed):
                self._write("false_interruption", resumed=resumed)
            case Failed(source, message, recoverable):
                self._write("failed", source=source, message=masked(message), recoverable=recoverable)

    def note(self, what: str, **facts: str | bool | float) -> None:
        """Something that the desk did: a key, a handover."""
        self._write(
            what, **{key: masked(fact) if isinstance(fact, str) else fact for key, fact in facts.items()}
        )

    def _write(self, event: str, **facts: Any) -> None:
        line = json.dumps({"at": self.now().isoformat(timespec="milliseconds"), "event": event, **facts})
        self.scribe.write(_append, self.path, line)


def _append(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")

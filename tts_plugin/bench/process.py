"""What a process has used: processor time and memory, as Linux tells it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Spent:
    """cpu_s: of all its threads, so far. resident_mb: now."""

    cpu_s: float
    resident_mb: float

    def since(self, before: Spent) -> Spent:
        return Spent(self.cpu_s - before.cpu_s, self.resident_mb)


def spent_by(pid: int) -> Spent | None:
    """None where the system does not tell, or there is no such process."""
    try:
        # behind the command's name, which may hold anything
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return None
    ticks = int(fields[11]) + int(fields[12])  # utime, stime
    return Spent(ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE") / 2**20)

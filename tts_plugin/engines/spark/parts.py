"""Parts: what is being written into a cache, by names that say who writes, and the sweep of what was left."""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path

_UNTOUCHED_S = 3600.0  # then nobody writes it any more; converting takes seconds, and writes all the time


def part_of(place: Path) -> Path:
    """A name beside `place` for a file or folder that is renamed to `place` when it is whole."""
    return place.with_name(f".{place.stem}.{_home()}.{os.getpid()}.{secrets.token_hex(4)}.part")


def sweep(folder: Path) -> None:
    """Remove the parts in `folder` that killed writers left there.

    What a live process of this machine writes stays. Of one that cannot be seen, on another machine or in
    another container, what was written to within the hour stays, too.
    """
    for part in folder.glob(".*.part"):
        with suppress(OSError):
            if _is_left(part):
                if part.is_dir() and not part.is_symlink():
                    shutil.rmtree(part, ignore_errors=True)
                else:
                    part.unlink()


def _is_left(part: Path) -> bool:
    *_, home, pid, _number, _end = ["", "", *part.name.split(".")]
    if home == _home() and pid.isdecimal() and not _lives(int(pid)):
        return True
    touched_s = max(one.lstat().st_mtime for one in (part, *part.glob("*")))
    return time.time() - touched_s > _UNTOUCHED_S


def _home() -> str:
    """Where a process's number means something: this machine, or this container."""
    numbers = ""
    with suppress(OSError):
        numbers = os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(f"{platform.node()} {numbers}".encode()).hexdigest()[:8]


def _lives(pid: int) -> bool:
    if os.name == "nt":
        return True  # there, to ask is to interrupt it
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True

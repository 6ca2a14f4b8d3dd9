"""What this process holds at a moment, so that a test can show that nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import threading
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Held:
    """Counts of what would leak. Made by `held_now`."""

    tasks: int
    threads: int
    files: int
    children: int

    def more_than(self, before: Held) -> dict[str, int]:
        """What has grown since `before`, and by how much; what has shrunk was never ours."""
        grown = {
            "tasks": self.tasks - before.tasks,
            "threads": self.threads - before.threads,
            "files": self.files - before.files,
            "children": self.children - before.children,
        }
        return {kind: count for kind, count in grown.items() if count > 0}


def held_now() -> Held:
    """Counted after a collection: what an earlier test let go of is not closed while this one counts."""
    gc.collect()
    process = psutil.Process()
    # the default executor's threads stay by design, and come one by one
    threads = [thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")]
    return Held(len(asyncio.all_tasks()), len(threads), process.num_fds(), len(process.children()))

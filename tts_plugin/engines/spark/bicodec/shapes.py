"""The few shapes that batches are padded to where every new shape costs time: on a GPU, which looks for the
fastest kernels once a shape."""

from __future__ import annotations

# tokens of a window (67 of context, 50 emitted, 16 of look-ahead at most), or of what the generator reads
TOKENS = (16, 24, 32, 40, 48, 64, 80, 112, 144)
ROWS = (1, 2, 4, 8)


def rounded(count: int, sizes: tuple[int, ...]) -> int:
    """The least of `sizes` that holds `count`; beyond the last one a multiple of it."""
    if count > sizes[-1]:
        return -(-count // sizes[-1]) * sizes[-1]
    return next(size for size in sizes if size >= count)

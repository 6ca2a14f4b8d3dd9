"""How a command reads its arguments: a Parser whose complaints are one line, and numbers with bounds."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn, TypeVar

BAD_INPUT = 2  # the exit code
N = TypeVar("N", int, float)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that reports a mistake in one line and exits with BAD_INPUT."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """An argparse `type`: a whole number from `low` to `high`."""
    return _within(int, low, high, "a whole number")


def number(low: float, high: float) -> Callable[[str], float]:
    """An argparse `type`: a number from `low` to `high`."""
    return _within(float, low, high, "a number")


def _within(read: Callable[[str], N], low: N, high: N, what: str) -> Callable[[str], N]:
    def parse(text: str) -> N:
        try:
            found = read(text)
        except ValueError:
            found = None
        if found is None or not low <= found <= high:
            raise argparse.ArgumentTypeError(f'"{text}" should be {what} from {low} to {high}')
        return found

    return parse

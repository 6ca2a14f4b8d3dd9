"""How a command reads its arguments: a Parser whose complaints are one line, and numbers with bounds."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn

BAD_INPUT = 2  # the exit code


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that reports a mistake in one line and exits with BAD_INPUT."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """An argparse `type`: a whole number from `low` to `high`."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f'"{text}" should be a whole number from {low} to {high}')
        return number

    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    """An argparse `type`: a number from `low` to `high`."""

    def parse(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = low - 1
        if not low <= found <= high:
            raise argparse.ArgumentTypeError(f'"{text}" should be a number from {low} to {high}')
        return found

    return parse

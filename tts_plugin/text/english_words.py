"""English words for bare numbers: cardinals, decimals, ordinals, years, single digits."""

from __future__ import annotations

from tts_plugin.text.reading import read

# A number as people write it: commas between thousands, a decimal point.
NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?"
TO = r" ?[-–~] ?"

_SCALES = ["", " thousand", " million", " billion", " trillion"]
_SUFFIXES = {"1": "st", "2": "nd", "3": "rd"}
_MOST_DIGITS = 3 * len(_SCALES)  # a longer number is read digit by digit


def digits(run: str) -> str:
    """One by one: 007 -> zero zero seven."""
    return " ".join(read(digit, "en") for digit in run)


def cardinal(run: str) -> str:
    """A whole number; one that begins with a zero or has more than 15 digits digit by digit.

    In groups of three, because wetext reads "1000" as the year "ten hundred" and "1,000" as "thousand".
    """
    if len(run) > _MOST_DIGITS or (run[0] == "0" and run != "0"):
        return digits(run)
    if len(run) <= 3:
        return read(run, "en")
    first = len(run) % 3 or 3
    groups = [run[:first], *(run[at : at + 3] for at in range(first, len(run), 3))]
    scales = reversed(_SCALES[: len(groups)])
    return " ".join(
        read(str(int(group)), "en") + scale for group, scale in zip(groups, scales, strict=True) if int(group)
    )


def number(run: str) -> str:
    """What NUMBER matches: 1,234.50 -> one thousand two hundred and thirty four point five zero."""
    whole, point, part = run.replace(",", "").partition(".")
    return f"{cardinal(whole)} point {digits(part)}" if point else cardinal(whole)


def ordinal(run: str) -> str:
    """21 -> twenty first."""
    if len(run) > _MOST_DIGITS:
        return f"{digits(run)}th"
    run = str(int(run))
    if len(run) > 3 and int(run[-3:]):
        return f"{cardinal(run[:-3] + '000')} {ordinal(run[-3:])}"
    suffix = "th" if run[-2:-1] == "1" else _SUFFIXES.get(run[-1], "th")
    return read(run + suffix, "en")


def year(run: str) -> str:
    """Four digits: 1984 -> nineteen eighty four, 1905 -> nineteen oh five (wetext: "nineteen zero five")."""
    return read(run, "en").replace(" zero ", " oh ")


def plain(run: str) -> str:
    """A number with no hint around it: 1100 to 2099 as a year (fifteen hundred men)."""
    return year(run) if len(run) == 4 and run.isdecimal() and 1100 <= int(run) < 2100 else number(run)


def label(run: str) -> str:
    """The number of a room, a flight or a model: 305 -> three oh five, 4090 -> forty ninety, 12 -> twelve."""
    if len(run) > 4 or run[0] == "0":
        return digits(run)
    if len(run) < 3 or run[1:] == "0" * (len(run) - 1):
        return cardinal(run)
    head, tail = run[:-2], run[-2:]
    if tail == "00":
        return f"{cardinal(head)} hundred"
    return f"{cardinal(head)} {'oh ' + cardinal(tail[1]) if tail[0] == '0' else cardinal(tail)}"

"""English text without digits: abbreviations, dates, times and every kind of number in words."""

from __future__ import annotations

import re
from collections.abc import Callable

from tts_plugin.text import english_abbreviations, english_amounts
from tts_plugin.text.english_abbreviations import MONTH_OF, MONTHS, Rule
from tts_plugin.text.english_words import NUMBER, TO, cardinal, digits, label, number, ordinal, plain, year
from tts_plugin.text.reading import read


def spell_out(text: str) -> str:
    """`text` with the usual abbreviations and every number in words; plain prose comes back as it is."""
    for pattern, say in english_abbreviations.RULES:
        text = pattern.sub(say, text)
    if not _DIGIT.search(text):
        return text
    for pattern, say in _RULES:
        text = pattern.sub(_spaced(say), text)
    return text


_DIGIT = re.compile(r"\d")


def _spaced(say: Callable[[re.Match[str]], str]) -> Callable[[re.Match[str]], str]:
    """Words where digits were are not glued to a letter or a digit on either side."""

    def spaced(found: re.Match[str]) -> str:
        said = say(found)
        if said == found[0]:
            return said
        text, start, end = found.string, found.start(), found.end()
        before = " " if said[0].isalnum() and start and text[start - 1].isalnum() else ""
        after = " " if said[-1].isalnum() and text[end : end + 1].isalnum() else ""
        return before + said + after

    return spaced


# --- dates and times ---------------------------------------------------------------------------------------

_MONTH = rf"({'|'.join(MONTHS)}|(?:{'|'.join(MONTH_OF)}|Sept)\b\.?)"


def _date(day: str, month: str, years: str) -> str | None:
    """Month, day, year, with no word between that was not there; None if there is no such day."""
    if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return None
    said = year(years) if len(years) == 4 else label(years)
    return f"{MONTHS[int(month) - 1]} {ordinal(day)} {said}"


def _year_first(found: re.Match[str]) -> str:
    said = _date(found[4], found[3], found[1])
    if said is None:
        return found[0]
    return f"{said} at " if found[0][-1] == "T" else said


def _year_last(found: re.Match[str]) -> str:
    """3/4/2024 is the fourth of March, 13/4/2024 can only be in April; with full stops the day is first."""
    one, mark, two, years = found.groups()
    said = _date(one, two, years) if mark == "." else _date(two, one, years) or _date(one, two, years)
    return said or found[0]


def _month_day(found: re.Match[str]) -> str:
    month, day, until = MONTH_OF[found[1][:3]], found[2], found[3]
    if not 1 <= int(day) <= 31:
        return f"{month} {day}"
    return f"{month} {ordinal(day)}" + (f" to {ordinal(until)}" if until else "")


def _day_month(found: re.Match[str]) -> str:
    article, day, until, month = found.groups()
    if not 1 <= int(day) <= 31:
        return found[0]
    until = f" to the {ordinal(until)}" if until else ""
    return f"{article or 'the '}{ordinal(day)}{until} of {MONTH_OF[month[:3]]}"


def _time(found: re.Match[str]) -> str:
    hour, minute, second, half = str(int(found[1])), found[2], found[3], found[4]
    if int(hour) > 24:
        return found[0]
    after = f" {half.upper()}M" if half else ""
    if second and second != "00":
        after = f" and {cardinal(str(int(second)))} seconds{after}"
    if minute == "00":
        if half or 1 <= int(hour) <= 12:
            return cardinal(hour) + (after or " o'clock")
        return (
            "midnight" if hour in ("0", "24") else f"{cardinal(hour)} hundred"
        )  # wetext: "fourteen o'clock"
    return read(f"{hour}:{minute}", "en").replace(" o ", " oh ") + after


# --- everything else ---------------------------------------------------------------------------------------

_SAID_AS = {
    "24/7": "twenty four seven",
    "9/11": "nine eleven",
    "50/50": "fifty fifty",
    "20/20": "twenty twenty",
}


def _day(found: re.Match[str]) -> str:
    """on 12/1 -> on December first."""
    month, day = int(found[2]), int(found[3])
    if found[0][-4:] == "9/11" or not (1 <= month <= 12 and 1 <= day <= 31):
        return found[0]
    return f"{found[1]}{MONTHS[month - 1]} {ordinal(found[3])}"


def _fraction(found: re.Match[str]) -> str:
    whole, over, under = found.groups()
    if found[0] in _SAID_AS:
        return _SAID_AS[found[0]]
    if over == under and not whole:
        return f"{number(over)} out of {number(under)}"
    if 2 <= int(under) <= 100 and 1 <= int(over) <= 999 and over[0] != "0" != under[0]:
        said = read(f"1/{under}", "en") if over == "1" else _times(over, read(f"2/{under}", "en"))
        return f"{cardinal(whole)} and {said.replace('one half', 'a half')}" if whole else said
    return (f"{cardinal(whole)} and " if whole else "") + f"{cardinal(over)} over {cardinal(under)}"


def _times(count: str, two: str) -> str:
    """two thirds -> five thirds."""
    return f"{cardinal(count)} {two.removeprefix('two ')}"


def _decade(century: str, tens: str) -> str:
    """1990s -> nineteen nineties (wetext: "one thousand nine hundred and ninety seconds")."""
    if tens == "00":
        return f"{year(century + tens)}s"
    word = "tens" if tens == "10" else f"{cardinal(tens)[:-1]}ies"
    return f"{cardinal(century)} {word}" if century else word


def _dotted(found: re.Match[str]) -> str:
    """An IP address (one ninety two dot one sixty eight ...) or a version (two point zero point one)."""
    parts = found[2].split(".")
    if len(parts) == 4 and not found[1] and all(int(part) <= 255 for part in parts):
        return " dot ".join(label(part) for part in parts)
    return ("version " if found[1] else "") + " point ".join(cardinal(part) for part in parts)


_FREE = r"(?<![\w.,:/-])"  # nothing of a larger number before it
_PLACES = (
    "rooms?|suite|apt|apartment|flight|gate|platform|bus|route|highway|interstate|channel|model|boeing|airbus"
)
_SECRETS = "ending in|ends in|pin|code|passcode|extension|order|ticket|invoice|case|account|reference|booking"

_RULES: list[Rule] = [
    (
        re.compile(rf"{_FREE}(\d{{4}})([-/.])(\d{{1,2}})\2(\d{{1,2}})(?:T(?=\d\d:)|(?![\w/-]|\.\d))"),
        _year_first,
    ),
    (re.compile(rf"{_FREE}(\d{{1,2}})([/.-])(\d{{1,2}})\2(\d{{4}})(?![\w/-]|\.\d)"), _year_last),
    (re.compile(rf"{_FREE}(\d{{1,2}})(/)(\d{{1,2}})/(\d\d)(?![\w/-]|\.\d)"), _year_last),
    (
        re.compile(
            rf"(\b[Tt]he )?{_FREE}(\d{{1,2}})(?:st|nd|rd|th)?(?:{TO}(\d{{1,2}})(?:st|nd|rd|th)?)?"
            rf" (?:of )?{_MONTH}(?!\w)"
        ),
        _day_month,
    ),
    (
        re.compile(
            rf"\b{_MONTH} (\d{{1,2}})(?:st|nd|rd|th)?(?:{TO}(\d{{1,2}})(?:st|nd|rd|th)?)?"
            r"(?![\w:%/]|[.,]\d| ?[AaPp]M\b| ?[-–]\d)"
        ),
        _month_day,
    ),
    (
        re.compile(
            r"(?<=:\d\d) ?[-–~] ?(?=\d)|(?<=[\d ][\dAaPp][\dMm]) ?[-–~] ?(?=\d{1,2}(?::\d\d| ?[AaPp][Mm]))"
        ),
        lambda _: " to ",
    ),
    (re.compile(r"(?<![\w:.,])(\d{1,2}):([0-5]\d)(?::([0-5]\d))?(?: ?([AaPp])[Mm]\b)?(?![\w:]|\.\d)"), _time),
    (
        re.compile(r"(?<![\w:.,])(\d{1,2}) ?([AaPp])[Mm]\b"),
        lambda found: f"{cardinal(found[1])} {found[2].upper()}M",
    ),
    (
        re.compile(rf"{_FREE}(\d{{1,6}}):(\d{{1,6}})(?![\w:]|\.\d)"),
        lambda found: f"{cardinal(found[1])} to {cardinal(found[2])}",
    ),
    # decades before measures: 80s is also eighty seconds
    (re.compile(r"(?<![\w.,])(1\d|20)(\d0)s\b"), lambda found: _decade(found[1], found[2])),
    (re.compile(r"(?<![\w.,])'([1-9]0)s\b"), lambda found: _decade("", found[1])),
    (
        re.compile(
            r"\b(the|their|his|her|my|our|your|mid|early|late|and|or|to)([ -])([1-9]0)s\b", re.IGNORECASE
        ),
        lambda found: f"{found[1]}{found[2]}{_decade('', found[3])}",
    ),
    (
        re.compile(r"(?<![\w.,])(\d{1,2}) ?ft ?(\d{1,2}) ?in(?!\w)"),
        lambda found: f"{cardinal(found[1])} feet {cardinal(found[2])} inches",
    ),
    *english_amounts.RULES,
    (
        re.compile(r"(?<![\w.,])(\d)'(\d{1,2})(?:\"|'')?(?!\w)"),
        lambda found: f"{cardinal(found[1])} foot {cardinal(found[2])}",
    ),
    (re.compile(rf"(?<![\d.,])({NUMBER}) ?[x×] ?(?=\d)"), lambda found: f"{plain(found[1])} by "),
    (re.compile(rf"(?<![\d.,])({NUMBER}) ?[x×](?!\w)"), lambda found: f"{number(found[1])} times"),
    (re.compile(r"(\b(?:\w{3,6}day,?|[Oo]n) )(\d{1,2})/(\d{1,2})(?![\w/]|[.,]\d)"), _day),
    (re.compile(rf"{_FREE}(?:(\d{{1,3}}) )?(\d{{1,6}})/(\d{{1,6}})(?![\w/]|[.,]\d)"), _fraction),
    (
        re.compile(rf"{_FREE}(\d{{1,4}}\.\d{{1,3}})/(\d{{1,4}})(?![\w/]|[.,]\d)"),  # 4.8/5 stars
        lambda found: f"{number(found[1])} out of {number(found[2])}",
    ),
    (
        re.compile(r"(?<![\w.,])((?:\d{1,3},)*\d{1,15})(?:st|nd|rd|th)\b"),
        lambda found: ordinal(found[1].replace(",", "")),
    ),
    (re.compile(r"(?<![\w.])([vV])?(\d{1,6}(?:\.\d{1,6}){2,7})(?!\.?\d)"), _dotted),
    (re.compile(rf"(?<![\w.])[vV]({NUMBER})\b"), lambda found: f"version {number(found[1])}"),
    (
        re.compile(rf"\b({_PLACES})( (?:number )?)(\d{{3,4}})(?!\w|[.,:/-]\d)", re.IGNORECASE),
        lambda found: found[1] + found[2] + label(found[3]),
    ),
    (
        re.compile(rf"\b({_SECRETS})( (?:number |code |is )*)(\d{{3,}})(?!\w|[.,:/-]\d)", re.IGNORECASE),
        lambda found: found[1] + found[2] + digits(found[3]),
    ),
    (re.compile(r"(?<=\b[A-Z]{2} )\d{5}(?!\w|[.,-]\d)"), lambda found: digits(found[0])),  # a ZIP code
    (re.compile(r"(?<=[A-Za-z])-?(\d+)(?!\d*[.,]\d)"), lambda found: label(found[1])),
    (re.compile(r"#(\d{1,15})\b"), lambda found: f"number {cardinal(found[1])}"),
    (re.compile(rf"(?<![\w.,])({NUMBER})k\b"), lambda found: f"{number(found[1])} thousand"),
    (
        re.compile(r"(?<![\w.,])(\d{1,6}\.\d{1,3})([MB])\b"),
        lambda found: f"{number(found[1])} {'million' if found[2] == 'M' else 'billion'}",
    ),
    (
        re.compile(rf"{_FREE}({NUMBER})[-–~]({NUMBER})(?!\w|[-.,:/]\d)"),
        lambda found: f"{plain(found[1])} {'' if found[1] == found[2] else 'to '}{plain(found[2])}",  # 50-50
    ),
    (re.compile(rf"(?<![\w)])-(?=(?:{NUMBER}|\.\d))"), lambda _: "minus "),
    (re.compile(r"(?<!\w)\+(?=\d)"), lambda _: "plus "),
    (
        re.compile(r"\b(in|since|until|till|from|year|circa) (10(?!00)\d\d)\b(?![.,]\d)", re.IGNORECASE),
        lambda found: f"{found[1]} {year(found[2])}",
    ),
    (re.compile(r"(?<!\w)'(\d\d)\b"), lambda found: label(found[1])),
    (re.compile(r"(?<!\d)\.(\d+)"), lambda found: f"point {digits(found[1])}"),
    (re.compile(r"(?<=\d),(?=\d)(?!\d{3}(?!\d))"), lambda _: ", "),
    (re.compile(NUMBER), lambda found: plain(found[0])),
]

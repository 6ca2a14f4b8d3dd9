"""English money, percentages and measures in words."""

# ruff: noqa: SIM905 - word lists read better as text

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from tts_plugin.text.english_abbreviations import Rule
from tts_plugin.text.english_words import NUMBER, TO, cardinal, number
from tts_plugin.text.reading import read


def _any(words: Iterable[str]) -> str:
    return "|".join(sorted((re.escape(word) for word in words), key=len, reverse=True))


# one, many and, where a hundredth has a name, one and many of it
_CENTS = ("cent", "cents")
_MONEY = {
    "$": ("dollar", "dollars", *_CENTS),
    "US$": ("US dollar", "US dollars", *_CENTS),
    "A$": ("Australian dollar", "Australian dollars", *_CENTS),
    "C$": ("Canadian dollar", "Canadian dollars", *_CENTS),
    "HK$": ("Hong Kong dollar", "Hong Kong dollars", *_CENTS),
    "S$": ("Singapore dollar", "Singapore dollars", *_CENTS),
    "NT$": ("Taiwan dollar", "Taiwan dollars"),
    "€": ("euro", "euros", *_CENTS),
    "£": ("pound", "pounds", "penny", "pence"),
    "¥": ("yen", "yen"),
    "￥": ("yuan", "yuan"),
    "₹": ("rupee", "rupees"),
    "₩": ("won", "won"),
    "₽": ("ruble", "rubles"),
}
_CODES = {
    "USD": _MONEY["US$"],
    "AUD": _MONEY["A$"],
    "CAD": _MONEY["C$"],
    "HKD": _MONEY["HK$"],
    "SGD": _MONEY["S$"],
    "EUR": _MONEY["€"],
    "GBP": _MONEY["£"],
    "JPY": _MONEY["¥"],
    "INR": _MONEY["₹"],
    "KRW": _MONEY["₩"],
    "CHF": ("Swiss franc", "Swiss francs"),
    "RMB": ("yuan", "yuan"),
    "CNY": ("yuan", "yuan"),
}
_SIZES = {
    "k": "thousand", "m": "million", "mn": "million", "b": "billion", "bn": "billion", "t": "trillion",
}  # fmt: skip
_PERIODS = {"mo": "month", "yr": "year", "hr": "hour", "wk": "week", "min": "minute"} | {
    word: word for word in "night day week month year hour minute person user seat mile gallon".split()
}
_SYMBOL = _any(_MONEY)
_AMOUNT = (
    rf"(?P<amount>{NUMBER})(?:{TO}(?:{_SYMBOL})?(?P<until>{NUMBER}))?"
    r"(?: ?(?P<size>thousand|million|billion|trillion)(?!\w)|(?P<letter>[kKmMbBT]|[mb]n)(?!\w))?"
)
_PER = rf"(?:/(?P<per>{_any(_PERIODS)})\b)?"


def _money(found: re.Match[str], names: tuple[str, ...]) -> str:
    amount, until, letter = found["amount"], found["until"], found["letter"]
    scale = _SIZES[letter.lower()] if letter else found["size"]
    whole, _, part = amount.replace(",", "").partition(".")
    if until:
        said = f"{number(amount)} to {number(until)} {scale + ' ' if scale else ''}{names[1]}"
    elif scale:
        said = f"{number(amount)} {scale} {names[1]}"
    elif len(names) == 4 and len(part) == 2:
        units = f"{cardinal(whole)} {names[whole != '1']}"
        cents = f"{cardinal(str(int(part)))} {names[2 + (part != '01')]}"
        said = units if part == "00" else cents if whole == "0" else f"{units} and {cents}"
    else:
        said = f"{number(amount)} {names[amount != '1']}"
    per = f" per {_PERIODS[found['per']]}" if found["per"] else ""
    return ("minus " if found["minus"] else "") + said + per


# The names that wetext has right come from it. It takes "m" for minutes and has none for the others here.
_KNOWN = (
    "km cm mm nm kg g mg lb lbs oz ft mi yd mph km/h °C °F ° GB MB KB TB Mbps kbps kW MW mV mA Hz MHz GHz ml "
    "ms min ha m2 m² m³ km² cm² rpm kg/m3 kg/m³"
).split()
_OWN = {
    "m": ("meter", "meters"),
    "m/s": ("meter per second", "meters per second"),
    "kph": ("kilometer per hour", "kilometers per hour"),
    "m squared": ("square meter", "square meters"),
    "km squared": ("square kilometer", "square kilometers"),
    "cm squared": ("square centimeter", "square centimeters"),
    "m cubed": ("cubic meter", "cubic meters"),
    "m3": ("cubic meter", "cubic meters"),
    "sq ft": ("square foot", "square feet"),
    "sqft": ("square foot", "square feet"),
    "ft squared": ("square foot", "square feet"),
    "ft²": ("square foot", "square feet"),
    "ft2": ("square foot", "square feet"),
    "mL": ("milliliter", "milliliters"),
    "L": ("liter", "liters"),
    "hr": ("hour", "hours"),
    "hrs": ("hour", "hours"),
    "h": ("hour", "hours"),
    "mins": ("minute", "minutes"),
    "sec": ("second", "seconds"),
    "secs": ("second", "seconds"),
    "s": ("second", "seconds"),
    "kHz": ("kilohertz", "kilohertz"),
    "kB": ("kilobyte", "kilobytes"),
    "Gbps": ("gigabit per second", "gigabits per second"),
    "kWh": ("kilowatt hour", "kilowatt hours"),
    "mAh": ("milliamp hour", "milliamp hours"),
    "W": ("watt", "watts"),
    "V": ("volt", "volts"),
    "dB": ("decibel", "decibels"),
    "cal": ("calorie", "calories"),
    "kcal": ("kilocalorie", "kilocalories"),
    "kJ": ("kilojoule", "kilojoules"),
    "hPa": ("hectopascal", "hectopascals"),
    "kPa": ("kilopascal", "kilopascals"),
    "psi": ("pound per square inch", "pounds per square inch"),
    "px": ("pixel", "pixels"),
    "fps": ("frame per second", "frames per second"),
    "ppm": ("part per million", "parts per million"),
    "micro m": ("micrometer", "micrometers"),
    "micro g": ("microgram", "micrograms"),
    "micro s": ("microsecond", "microseconds"),
}


@lru_cache(maxsize=256)
def _unit(unit: str, *, many: bool) -> str:
    if unit in _OWN:
        return _OWN[unit][many]
    return (
        read(f"2 {unit}", "en").removeprefix("two ") if many else read(f"1 {unit}", "en").removeprefix("one ")
    )


def _measure(found: re.Match[str]) -> str:
    minus, amount, until, hyphen, unit = found.groups()
    said = f"{number(amount)} to {number(until)}" if until else number(amount)
    many = not hyphen and (amount != "1" or until is not None)  # a 5-km run
    return ("minus " if minus else "") + f"{said} {_unit(unit, many=many)}"


def _percent(found: re.Match[str]) -> str:
    minus, amount, until, sign = found.groups()
    said = f"{number(amount)} to {number(until)}" if until else number(amount)
    return ("minus " if minus else "") + f"{said} {'percent' if sign == '%' else 'per thousand'}"


_MINUS = r"(?<![\w.,:/)-])(-)?(?<![.,:/])"
RULES: list[Rule] = [
    (
        re.compile(rf"(?<![\w.,])(?P<minus>-)?(?P<name>{_SYMBOL}) ?{_AMOUNT}(?: ?USD\b)?{_PER}"),
        lambda found: _money(found, _MONEY[found["name"]]),
    ),
    (
        re.compile(rf"(?P<minus>(?!))?\b(?P<name>{_any(_CODES)}) ?{_AMOUNT}{_PER}"),
        lambda found: _money(found, _CODES[found["name"]]),
    ),
    (
        re.compile(rf"(?<![\w.,:/-])(?P<minus>-)?{_AMOUNT} ?(?P<name>{_any(_CODES)})\b{_PER}"),
        lambda found: _money(found, _CODES[found["name"]]),
    ),
    (
        re.compile(rf"(?<![\d.,])({NUMBER}) ?¢"),
        lambda found: f"{number(found[1])} {_CENTS[found[1] != '1']}",
    ),
    (re.compile(rf"{_MINUS}({NUMBER})(?: ?%?{TO}({NUMBER}))? ?([%‰])"), _percent),
    (
        re.compile(
            rf"{_MINUS}({NUMBER})(?:{TO}({NUMBER}))?"
            rf"(?: |(-))?({_any((*_KNOWN, *_OWN))})(?![\w²³'])(?:\.(?= [a-z]))?"
        ),
        _measure,
    ),
]

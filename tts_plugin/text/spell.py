"""What an engine reads wrong, spelled out: addresses, phone numbers, long numbers, symbols.

Ordinary numbers, money, dates and times are left to the engine.
"""

# ruff: noqa: SIM905 - word lists read better as text

from __future__ import annotations

import re
from collections.abc import Callable

_DIGITS = {
    "en": "zero one two three four five six seven eight nine".split(),
    "zh": list("零一二三四五六七八九"),
}
_ADDRESS_WORDS = {
    "en": {
        ".": " dot ",
        "/": " slash ",
        "-": " dash ",
        "_": " underscore ",
        "@": " at ",
        "+": " plus ",
        ":": " port ",
    },
    "zh": {".": "点", "/": "斜杠", "-": "杠", "_": "下划线", "@": " at ", "+": "加", ":": "端口"},
}
LONG_ADDRESS_CHARS = 80  # of a longer one only the host is said: nobody can follow the rest

_URL = re.compile(r"(?:\b[a-z]{3,5}://|\bwww\.|\bmailto:)([^\s<>\"，。！？；、（）|]+)", re.IGNORECASE)
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]++@[A-Za-z0-9-]++(?:\.[A-Za-z0-9-]++)+", re.ASCII)
_TOP = "com|org|net|edu|gov|info|biz|io|ai|dev|app|co|uk|ca|de|fr|es|nl|eu|ch|jp|cn|kr|au|nz|br|tv|xyz|tech"
_HOST = re.compile(
    rf"(?<![\w@.-])(?:[a-z0-9][a-z0-9-]{{0,62}}\.){{1,4}}(?:{_TOP})(?![\w-]|\.\w)(?:/[^\s<>\"，。！？；、（）|]*)?",
    re.IGNORECASE | re.ASCII,
)
_FILE = re.compile(
    r"(?<![\w.])([A-Za-z][\w-]{0,40})\."
    r"(js|ts|py|md|txt|json|yaml|yml|toml|html|css|csv|pdf|docx|xlsx|pptx|png|jpg|jpeg|gif|mp3|mp4|wav|exe|zip|sh|cpp|rs)"
    r"(?!\w)",
    re.ASCII,
)
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
_AFTER_ADDRESS = ".,;:!?'\")]}*_~"


def addresses(text: str, language: str) -> str:
    """Make URLs, e-mail addresses and file names speakable; the scheme, "www." and the query are not said."""
    text = _URL.sub(lambda found: _say_address(found.group(1), language), text)
    text = _EMAIL.sub(lambda found: _say_address(found.group(), language), text)
    text = _HOST.sub(lambda found: _say_address(found.group(), language), text)
    if language == "en":
        text = _FILE.sub(r"\1 dot \2", text)
    return text


def _say_address(address: str, language: str) -> str:
    body = address.rstrip(_AFTER_ADDRESS)
    after = address[len(body) :].replace("*", "").replace("_", "")
    if body[:4].lower() == "www.":
        body = body[4:]
    body = _ENCODED.sub(" ", re.split(r"[?#]", body, maxsplit=1)[0].rstrip("/"))
    if len(body) > LONG_ADDRESS_CHARS:
        body = body.partition("/")[0]
    words = _ADDRESS_WORDS.get(language)
    if words is None:
        return body + after
    spoken = "".join(words.get(char, char if char.isalnum() else " ") for char in body)
    return spoken.strip() + after


# not inside a number, an amount or an identifier
_FREE = r"(?<![A-Za-z0-9_$€£¥₹])(?<!\d[.,/:\-])"
_DONE = r"(?![A-Za-z0-9_%]|[.,/:\-]\d)"
_PHONES = re.compile(
    rf"\+\d[\d ().\-]{{5,24}}\d{_DONE}"  # international
    rf"|{_FREE}(?:(?:1[ .\-])?\(\d{{3}}\) ?|(?:1[ .\-])?\d{{3}}[ .\-])\d{{3}}[ .\-]\d{{4}}{_DONE}"  # NANP
    rf"|{_FREE}\(?0\d{{2,4}}\)?(?:[ \-]\d{{3,8}}){{1,3}}{_DONE}"  # a trunk zero and an area code
    rf"|{_FREE}0\d(?: \d\d){{4}}{_DONE}"  # France
    rf"|{_FREE}1\d\d[ \-]\d{{4}}[ \-]\d{{4}}{_DONE}"  # China
    rf"|{_FREE}\d{{3}}-\d\d-\d{{4}}{_DONE}"  # social security
    rf"|{_FREE}\d{{4}}(?:[ \-]\d{{4}}){{3}}{_DONE}",  # payment card
)
_LOCAL = re.compile(rf"{_FREE}([2-9]\d\d)-(\d{{4}}){_DONE}")
_EMERGENCY = re.compile(r"\b(call|dial|text|calling|dialing) (911|988|999|112)\b", re.IGNORECASE)
_EXTENSION = re.compile(r"\b(?:ext\.?|extension) ?(\d{2,6})\b", re.IGNORECASE)
_LONG = re.compile(
    rf"{_FREE}\d{{7,}}{_DONE}(?! (?:dollars|euros|pounds|yen|rupees|yuan|percent|people|users|miles|times)\b)"
)
_ROUND = re.compile(r"\d{1,4}0{5,}")
_FEWEST = {"+": 8, "0": 9}  # digits; fewer after such a start are no phone number
_GROUP = re.compile(r"\d+")


def numbers(text: str, language: str) -> str:
    """Read phone numbers and runs of seven digits and more digit by digit, a comma between groups."""
    if language not in _DIGITS:
        return text

    def grouped(found: re.Match[str]) -> str:
        groups = _GROUP.findall(found[0])
        if len("".join(groups)) < _FEWEST.get(found[0].lstrip("(")[0], 7):
            return found[0]
        plus = ("plus " if language == "en" else "加") if found.group()[0] == "+" else ""
        return plus + _say_groups(groups, language)

    def long(found: re.Match[str]) -> str:
        run = found.group()
        return run if _ROUND.fullmatch(run) else _say_groups([run], language)

    text = _PHONES.sub(grouped, text)
    text = _LONG.sub(long, text)
    if language == "en":
        text = _LOCAL.sub(lambda found: grouped(found) if _is_local(*found.groups()) else found.group(), text)
        text = _EMERGENCY.sub(lambda found: f"{found[1]} {_say_groups([found[2]], 'en')}", text)
        text = _EXTENSION.sub(lambda found: f"extension {_say_groups([found[1]], 'en')}", text)
    return text


def _is_local(exchange: str, line: str) -> bool:
    """555-0132 is a phone number, 200-1000 may be a range."""
    return exchange == "555" or int(line) < int(exchange)


def _say_groups(groups: list[str], language: str) -> str:
    words = _DIGITS[language]
    join = " " if language == "en" else ""
    comma = ", " if language == "en" else "，"
    small = [part for group in groups for part in _small_groups(group, language)]
    return comma.join(join.join(words[int(digit)] for digit in group) for group in small)


def _small_groups(digits: str, language: str) -> list[str]:
    """At most four digits in a breath, as phone numbers are said: threes, the rest at the end."""
    if len(digits) <= 4:
        return [digits]
    if len(digits) == 11 and digits[0] == "1":
        if language == "zh":
            return [digits[:3], digits[3:7], digits[7:]]
        return [digits[0], *_small_groups(digits[1:], language)]
    last = 4 if len(digits) % 3 == 1 else len(digits) % 3
    threes = [digits[at : at + 3] for at in range(0, len(digits) - last, 3)]
    return [*threes, digits[-last:]] if last else threes


_MONTHS = {
    name[:3].lower(): name
    for name in "January February March April June July August September October November December".split()
}
Rewrite = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]


def _month(found: re.Match[str]) -> str:
    return _MONTHS[found[1][:3].lower()]


_GREEK = dict(
    zip(
        "αβγδεζηθικλμνξοπρστυφχψω",
        "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau "
        "upsilon phi chi psi omega".split(),
        strict=True,
    )
)

_DAYS = "(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
_ZONES = "Eastern|Central|Mountain|Pacific|[ECMP][SD]?T|GMT|UTC"
# Stops that make an engine end the sentence, and symbols it drops or reads out by their name.
_EN: list[Rewrite] = [
    (
        re.compile(rf"\b([AaPp])\.[Mm]\.(?= ?[a-z\d,;—(]| (?:{_DAYS}|{_ZONES})\b)"),
        lambda found: f"{found[1].upper()}M",
    ),
    (re.compile(r"\b([AaPp])\.[Mm]\b"), lambda found: f"{found[1].upper()}M"),
    (re.compile(r"\b(?:U\.S\.A|U\.S|U\.K|E\.U|D\.C)\.(?= \w)"), lambda found: found[0].replace(".", "")),
    (re.compile(r"\b[Nn]os?\. ?(?=\d)"), "number "),
    (re.compile(r"\b(Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\.(?= ?\d)"), _month),
    (re.compile(r"\be\.g\.", re.IGNORECASE), "for example"),
    (re.compile(r"\bi\.e\.", re.IGNORECASE), "that is"),
    (re.compile(r"\b24/7\b"), "24 7"),
    (
        re.compile(
            r"(?<![\w:.,-])(\d{1,2}(?::\d\d)?(?: ?[AaPp][Mm])?) ?- ?"
            r"(\d{1,2}:\d\d|\d{1,2}(?::\d\d)? ?[AaPp][Mm])(?!\w)"
        ),
        r"\1 to \2",
    ),
    (re.compile(r"(?<![\w.,-])(\d{1,6})-(?=\d{1,6} ?%)"), r"\1 to "),
    (re.compile(r"\b([A-G])#(?!\w)"), r"\1 sharp"),
    (re.compile(r"#(?=[^\W\d])"), ""),
    (re.compile(r"#(?!\d)"), " "),
    (re.compile(r"(?<=\d) ?\*\* ?(?=\d)"), " to the power of "),
    (re.compile(r"(?<=\d) ?\* ?(?=\d)"), " times "),
    (re.compile(r"(?<![-=])[-=]{1,3}>|[→⇒➔]"), ", "),
    (re.compile(r"(?<!\S)<3(?!\S)"), " "),
    (re.compile(r"(?<=\w) ?< ?(?=\w)"), " less than "),
    (re.compile(r"(?<=\w) ?> ?(?=\w)"), " greater than "),
    (re.compile(r"(?<=\w)\^(?=\w)"), " to the power of "),
    (re.compile(r"~ ?(?=\d)"), " about "),
    (re.compile(r"° ?C\b"), " degrees Celsius"),
    (re.compile(r"° ?F\b"), " degrees Fahrenheit"),
    (re.compile("[µμ](?=[A-Za-z])"), "micro "),
    (re.compile("(?<![^\\W\\d_])([α-ω])(?![^\\W\\d_])", re.IGNORECASE), lambda found: _greek(found[1])),
]
_EN_NAMES = {
    "&": "and", "@": "at", "=": "equals", "+": "plus", "°": "degrees", "×": "times", "÷": "divided by",
    "±": "plus or minus", "≈": "about", "≠": "is not equal to", "≤": "at most", "≥": "at least",
    "√": "square root of", "∞": "infinity", "§": "section",
}  # fmt: skip
_ZH_NAMES = {
    "&": "和",
    "=": "等于",
    "×": "乘",
    "÷": "除以",
    "±": "正负",
    "≈": "约等于",
    "≤": "小于等于",
    "≥": "大于等于",
}
_AND = {
    "es": "y",
    "pt": "e",
    "it": "e",
    "fr": "et",
    "de": "und",
    "nl": "en",
    "sv": "och",
    "pl": "i",
    "ru": "и",
}


def symbols(text: str, language: str) -> str:
    """Name the symbols that are said, in the language; whatever else is no word goes later."""
    if language == "en":
        for pattern, spoken in _EN:
            text = pattern.sub(spoken, text)
        return _named(text, _EN_NAMES)
    if language == "zh":
        return _named(text.replace("°C", "摄氏度"), _ZH_NAMES)
    return _named(text, {"&": _AND.get(language, "and" if language == "" else "")})


def _named(text: str, names: dict[str, str]) -> str:
    for symbol, name in names.items():
        if symbol in text:
            text = text.replace(symbol, f" {name} ")
    return text


def _greek(letter: str) -> str:
    return _GREEK.get(letter.lower().replace("ς", "σ"), letter)

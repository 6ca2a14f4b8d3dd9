"""English abbreviations and Roman numerals in words."""

# ruff: noqa: SIM905 - word lists read better as text

from __future__ import annotations

import re
from collections.abc import Callable

from tts_plugin.text.english_words import cardinal, ordinal

Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]

MONTHS = "January February March April May June July August September October November December".split()
MONTH_OF = {name[:3]: name for name in MONTHS}

_TITLES = {
    "Mr": "Mister", "Mrs": "Missus", "Dr": "Doctor", "Prof": "Professor", "Gov": "Governor", "Sen": "Senator",
    "Gen": "General", "Col": "Colonel", "Capt": "Captain", "Lt": "Lieutenant", "Sgt": "Sergeant",
    "Rev": "Reverend", "St": "Saint", "Mt": "Mount", "Ft": "Fort",
}  # fmt: skip
_STREETS = {
    "St": "Street", "Ave": "Avenue", "Blvd": "Boulevard", "Rd": "Road", "Dr": "Drive", "Ln": "Lane",
    "Hwy": "Highway", "Pkwy": "Parkway", "Sq": "Square",
}  # fmt: skip
_WORDS = {
    "approx": "approximately", "dept": "department", "Dept": "Department", "avg": "average",
    "govt": "government", "e.g": "for example", "i.e": "that is", "a.k.a": "also known as",
}  # fmt: skip
_LAST_WORDS = {  # their stop may end a sentence
    "etc": "et cetera", "Inc": "Incorporated", "Ltd": "Limited", "Corp": "Corporation", "Co": "Company",
    "Jr": "Junior", "Sr": "Senior",
}  # fmt: skip
_BEFORE_DIGIT = {
    "No": "number", "Nos": "numbers", "no": "number", "Fig": "Figure", "fig": "figure", "Vol": "Volume",
    "vol": "volume", "Ch": "Chapter", "ch": "chapter", "Sec": "Section", "sec": "section", "p": "page",
    "pp": "pages", "Apt": "Apartment", "Art": "Article", "art": "article", "ver": "version", "Ver": "Version",
}  # fmt: skip
_NUMBERED = (
    "War|Chapter|Part|Volume|Book|Act|Phase|Stage|Section|Article|Bowl|Appendix|Episode|Type|Class|Tier|Title"
)
_REIGNED = (
    "Henry|Louis|Elizabeth|Charles|George|Edward|Richard|James|William|Philip|Paul|Pius|Benedict|Leo|Gregory|"
    "Innocent|Clement|Francis|Frederick|Napoleon|Nicholas|Alexander|Peter|Catherine|Mary|Ivan|Gustav|Carl|"
    "Christian|Felipe|Ferdinand|Leopold|Albert|Otto|Ramses|Ptolemy|Xerxes|Darius"
)
_ROMAN = re.compile(r"(X{0,3}|XL|LX{0,3})(IX|IV|V?I{0,3})")
_ROMAN_VALUE = {"I": 1, "V": 5, "X": 10, "L": 50}


def _ended(word: str, found: re.Match[str]) -> str:
    """The stop of an abbreviation goes, unless it also ends the sentence."""
    return word + "." * bool(_SENTENCE_ENDS.match(found.string, found.end()))


_SENTENCE_ENDS = re.compile(r"[\"')]*(?:\s+[A-Z]|\s*\Z)")


def _kept(word: str, _: re.Match[str]) -> str:
    return word


def _roman(run: str) -> int | None:
    """XIV -> 14, None if it is no such numeral."""
    if not _ROMAN.fullmatch(run):
        return None
    values = [_ROMAN_VALUE[letter] for letter in run]
    return sum(
        -value if value < following else value
        for value, following in zip(values, [*values[1:], 0], strict=True)
    )


def _numbered(found: re.Match[str]) -> str:
    value = _roman(found[2])
    if value is None or (found[2] == "I" and found[1] != "War"):  # "Part I wrote"
        return found[0]
    return f"{found[1]} {cardinal(str(value))}"


def _reigned(found: re.Match[str]) -> str:
    value = _roman(found[2])
    return found[0] if value is None else f"{found[1]} the {ordinal(str(value))}"


def _one_of(words: dict[str, str]) -> str:
    return "|".join(re.escape(word) for word in words)


RULES: list[Rule] = [
    (re.compile(r"\b([AaPp])\.[Mm]\."), lambda found: _ended(f"{found[1].upper()}M", found)),
    (
        re.compile(rf"(\b[A-Z][a-z]+|\d(?:st|nd|rd|th)) ({_one_of(_STREETS)})\b(\.?+)(?! [A-Z])"),
        lambda found: f"{found[1]} " + (_ended if found[3] else _kept)(_STREETS[found[2]], found),
    ),
    (re.compile(rf"\b({_one_of(_TITLES)})\. ?(?=[A-Z])"), lambda found: f"{_TITLES[found[1]]} "),
    (re.compile(r"\b(Mrs?)\."), lambda found: _TITLES[found[1]]),
    (re.compile(rf"\b({_one_of(_BEFORE_DIGIT)})\. ?(?=\d)"), lambda found: f"{_BEFORE_DIGIT[found[1]]} "),
    (re.compile(rf"\b({_one_of(_WORDS)})\.(?!\w)"), lambda found: _WORDS[found[1]]),
    (re.compile(rf"\b({_one_of(_LAST_WORDS)})\.(?!\w)"), lambda found: _ended(_LAST_WORDS[found[1]], found)),
    (
        re.compile(r"\b(Jan|Feb|Aug|Sept?|Oct|Nov|Dec)\.(?! [A-Z]|\w)"),
        lambda found: _ended(MONTH_OF[found[1][:3]], found),
    ),
    (re.compile(r"\bvs\b\.?"), lambda _: "versus"),
    (re.compile(r"\bw/o(?= )"), lambda _: "without"),
    (re.compile(r"\bw/ ?(?=[a-z])"), lambda _: "with "),
    (re.compile(rf"\b({_NUMBERED}) ([IVXL]{{1,7}})\b"), _numbered),
    (re.compile(rf"\b({_REIGNED}) ([IVX]{{2,6}}|V|X)\b"), _reigned),
]

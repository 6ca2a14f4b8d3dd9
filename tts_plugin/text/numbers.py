"""spell_out: numbers, dates, times, money, units and abbreviations as words, for engines that read none."""

from __future__ import annotations

import re
import unicodedata

from tts_plugin.text import chinese, english

# A clause ends at a stop that is not inside a number or a time.
_CLAUSE = re.compile(r"(?:[^，。！？；、：,.!?;:\n—\"「」『』《》“”]|(?<=[\w])[.,:](?=\w))*.?", re.DOTALL)
_HAN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_LATIN_WORD = re.compile(r"(?<![A-Za-z0-9/])(?<!\d )(?!squared|cubed)[A-Za-z]+")  # no unit of a number
_OTHER_DIGIT = re.compile(r"[^\D0-9]")


def spell_out(text: str, language: str) -> str:
    """Say in words whatever a language model without a text front end reads wrong. Never raises.

    text: what `normalise` made (markup, addresses and phone numbers are its part). language: a BCP 47 tag;
    of "en", "zh" and "" numbers are read, any other text comes back as it is, and so does plain prose.
    In mixed text each clause is read in the language that has more of its words (a Chinese character
    counts as one); one that is only numbers follows the whole text. No digit from 0 to 9 is left.
    """
    primary = re.split("[-_]", language.lower(), maxsplit=1)[0]
    if primary not in ("en", "zh", ""):
        return text
    text = _OTHER_DIGIT.sub(lambda found: str(unicodedata.decimal(found[0])), text)
    if not _HAN.search(text) and primary != "zh":
        return english.spell_out(text)
    whole = _is_chinese(text)
    if whole is None:
        whole = primary == "zh"
    runs: list[tuple[bool, str]] = []  # neighbours of one language together
    for clause in _CLAUSE.findall(text):
        chinese_clause = _is_chinese(clause)
        chinese_clause = whole if chinese_clause is None else chinese_clause
        if runs and runs[-1][0] == chinese_clause:
            runs[-1] = (chinese_clause, runs[-1][1] + clause)
        else:
            runs.append((chinese_clause, clause))
    return "".join(chinese.spell_out(run) if is_zh else english.spell_out(run) for is_zh, run in runs)


def _is_chinese(text: str) -> bool | None:
    """True if it has at least as many Chinese characters as Latin words; None without either."""
    han = len(_HAN.findall(text))
    words = len(_LATIN_WORD.findall(text))
    return None if han == words == 0 else han >= words

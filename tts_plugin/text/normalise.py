"""normalise: text as a language model writes it in, text that an engine can read aloud out."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from tts_plugin.text import markup, spell
from tts_plugin.text.scripts import is_han, readable


@dataclass(frozen=True, slots=True)
class Spoken:
    """text: what to speak, "" if there is nothing. foreign: a sample (at most 40 characters) of the
    words that were dropped because the language is not written so."""

    text: str
    foreign: str


def normalise(raw: str, language: str) -> Spoken:
    """Make `raw` speakable in `language` (a BCP 47 tag; "" = any script). Never raises.

    Markup, emoji and control characters go; addresses, phone numbers and symbols are spelled out;
    letters of other scripts are dropped and sampled. Plain prose comes back as it is.
    """
    language = re.split("[-_]", language.lower(), maxsplit=1)[0]
    text = plain_characters(markup.without_tags(raw))
    text = markup.without_links(markup.without_blocks(text))
    text = _EMOTICON.sub(" ", text)
    text = spell.addresses(text, language)
    text = _dashes(text, language)
    text = spell.symbols(spell.numbers(text, language), language)
    text = markup.without_emphasis(text)
    text, foreign = readable(text, language)
    text = _tidy(text, language)
    if not any(char.isalnum() for char in text):
        text = ""
    return Spoken(text, foreign)


_REPLACED = {
    **dict.fromkeys("\n\r\v\f\x85\u2028\u2029", "\n"),
    **dict.fromkeys("“”„‟«»″〝〞〟", '"'),
    **dict.fromkeys("‘’‚‛′´ʼʻˈ‹›", "'"),
    **dict.fromkeys("‐‑‒−﹣－", "-"),
    **dict.fromkeys("―⸺⸻﹘", "—"),
    **dict.fromkeys("\t", " "),
    "⁄": "/",
    "°": "°",
    "№": "No. ",
    "^": "^",
    "`": "`",
    "~": "~",
    "→": "→",
}  # fmt: skip
_NAMED_MATHS = frozenset("+<=>|~×÷±≈≠≤≥√∞")


def plain_characters(text: str) -> str:
    """Compatibility forms become plain ones; what nobody speaks goes (controls, emoji, dingbats)."""
    if text.isascii() and text.isprintable():
        return text
    text = text.replace("\r\n", "\n").replace("，", ", ")  # a plain comma would join two numbers
    text = _VULGAR.sub(r" \g<0>", text)
    text = text.replace("²", " squared").replace("³", " cubed") if _METRES.search(text) else text
    text = text.translate(_FATES)
    return unicodedata.normalize("NFKC", text).translate(_FATES)


_VULGAR = re.compile(r"(?<=\d)[¼½¾⅐-⅞]")
_METRES = re.compile(r"[A-Za-z][²³]")


class _Fates:
    """A table for str.translate that works out each character on first sight."""

    def __getitem__(self, code: int) -> str:
        return _fate(code)


@lru_cache(maxsize=8192)
def _fate(code: int) -> str:
    """What stands for one character: itself, a plain one, a space or nothing."""
    char = chr(code)
    if char in _REPLACED:
        return _REPLACED[char]
    if char.isascii():
        return char if char.isprintable() else ""
    if 0xFE00 <= code <= 0xFE0F or code >= 0xE0000:
        return ""  # variation selectors and tags
    kind = unicodedata.category(char)
    match kind:
        case "Cc" | "Cf" | "Cs" | "Co" | "Cn" | "Me" | "Sk":
            return ""
        case "Zs":
            return " "
        case "Zl" | "Zp":
            return "\n"
        case "Nd":
            return str(unicodedata.digit(char))
        case "Sm":
            return char if char in _NAMED_MATHS or _plain(char).isalnum() else " "
        case "So":
            return char if any(part.isalnum() for part in _plain(char)) and char not in "™℠" else " "
    return char


def _plain(char: str) -> str:
    """The compatibility form of a character, "" if it is its own."""
    form = unicodedata.normalize("NFKC", char)
    return "" if form == char else form


_FATES = _Fates()
_EMOTICON = re.compile(r"(?<!\S)[:;=]'?-?[)(DPpOo/|*\]\[](?!\S)")
_LONG_DASH = re.compile(r" ?(?:—[— ]*|(?<=[\w,\" ])--+ ?(?=[\w\"])|(?<=\s)--?(?=\s)) ?")
_RANGE = re.compile(r"(?<=\d)(?: [–-] |–)(?=\d)")
_SPACES = re.compile(r"\s+")
_FLAG_DASH = re.compile(r"(?<!\S)-+(?=[^\W\d])")


def _dashes(text: str, language: str) -> str:
    """One kind of dash for a pause, the hyphen for everything else."""
    text = _SPACES.sub(" ", text)
    text = _RANGE.sub("-", text).replace("–", "—")
    text = _LONG_DASH.sub("，" if language in ("zh", "yue") else " — ", text)
    return _FLAG_DASH.sub("", text)


_NEVER_SAID = str.maketrans(dict.fromkeys("\\{}[]|<>^~→†‡¶•‣·⁃", " "))
_NOT_ENGLISH = str.maketrans(
    {**dict.fromkeys("「」『』《》〈〉", '"'), "。": ". ", "、": ", ", "·": " ", "¿": "", "¡": "", "〜": " ",
     "【": "(", "】": ")", "〔": "(", "〕": ")", "・": " ", "؟": "?", "،": ",", "؛": ";"}
)  # fmt: skip
_WIDE = {",": "，", "!": "！", "?": "？", ":": "：", ";": "；", ".": "。"}
_AFTER_HAN = re.compile(r"(?<=[^\x00-\u2e7f]) ?([,!?:;]|\.(?![\w.])) ?")
_BEFORE_HAN = re.compile(r"([,!?:;]) ?(?=([^\x00-\u2e7f]))")
_AROUND_WIDE = re.compile(r" ?([，。！？、；：]) ?")

_EXCITED = re.compile(r"[!?]{2,}")
_TIDYING: list[tuple[re.Pattern[str], str]] = [
    (re.compile(r"\s+"), " "),
    (re.compile(r"\([,.;:!? ]*\)"), ""),
    (re.compile(r"(?<!\S)\"[,.;: ]*\"(?!\S)"), ""),
    (re.compile(r"\s+"), " "),
    (re.compile(r"([.!?,;:—]) [,;:]+"), r"\1"),  # what a dropped word leaves behind
    (re.compile(r"([,;:])(?: ?[,;:])+"), r"\1"),
    (re.compile(r" ([,;:!?)]|\.(?!\d))"), r"\1"),
    (re.compile(r"\( "), "("),
    (re.compile(r"\.{4,}"), "..."),
    (re.compile(r"(?<!\.)\.\.(?!\.)"), "."),
    (re.compile(r"^(?:[\s,;:!?)%—，。！？、；：」』》]|[.\-](?!\d))+"), ""),
    (re.compile(r"(?:^| )[(\-—]*$"), ""),
]


def _tidy(text: str, language: str) -> str:
    """Spaces and stops as a careful writer sets them."""
    text = text.translate(_NEVER_SAID)
    if language == "en":
        text = text.translate(_NOT_ENGLISH)
        text = "".join(
            char for char in text if char.isascii() or char == "—" or unicodedata.category(char)[0] in "LNS"
        )
    for pattern, plain in _TIDYING:
        text = pattern.sub(plain, text)
    text = _EXCITED.sub(lambda found: "?" if "?" in found[0] else "!", text)
    if not text.isascii():
        text = _AFTER_HAN.sub(lambda found: _wide(found, found.string[found.start() - 1]), text)
        text = _BEFORE_HAN.sub(lambda found: _wide(found, found[2]), text)
        text = _AROUND_WIDE.sub(r"\1", text)
    return text.strip()


def _wide(found: re.Match[str], neighbour: str) -> str:
    """Beside a Chinese character a stop is wide."""
    return _WIDE[found[1]] if is_han(neighbour) else found[0]

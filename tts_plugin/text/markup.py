"""Markup out, words left: HTML and SSML tags, entities, and Markdown.

Every pattern is linear: a repeated class never meets itself again, and what could scan far is bounded.
A piece of a turn may hold half a construct ("**bold", "](https://x.y)"), so nothing relies on pairs.
"""

# ruff: noqa: SIM905 - word lists read better as text

from __future__ import annotations

import html
import re

_PARAGRAPH_TAGS = frozenset("p div li ul ol tr table hr h1 h2 h3 h4 h5 h6 section article blockquote".split())
_PAUSE_TAGS = frozenset({"br", "break", "td", "th"})
_TAG = re.compile(r"<(?:/?([A-Za-z][\w:.-]{0,40})(?:[\s/][^<>]{0,1000})?|[!?][^<>]{0,1000})>")
# begun here, ended in a later piece
_TAG_BEGUN = re.compile(r"<[A-Za-z][\w:-]{0,40}\s[^<>=]{0,300}=[^<>]{0,1000}\Z")
_AUTOLINK = re.compile(r"<((?:https?://|mailto:)[^<>\s]{1,1000}|[^<>\s@]{1,100}@[^<>\s@]{1,100})>")
_CONTROL_TOKEN = re.compile(r"<\|[^<>|\n]{0,100}\|>")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")


def without_tags(text: str) -> str:
    """Drop tags and comments and resolve entities; some leave a line break or a comma."""
    if "<" in text:
        text = _without_comments(text)
        text = _CONTROL_TOKEN.sub(" ", text)
        text = _AUTOLINK.sub(r" \1 ", text)
        text = _TAG_BEGUN.sub(" ", _TAG.sub(_tag, text))
    if "&" in text:
        text = _ENTITY.sub(lambda found: html.unescape(found.group()), text)
    return text


def _without_comments(text: str) -> str:
    kept: list[str] = []
    at = 0
    while (start := text.find("<!--", at)) >= 0:
        end = text.find("-->", start)
        if end < 0:
            break  # it ends in a later piece
        kept.append(text[at:start])
        at = end + 3
    return "".join(kept) + text[at:].replace("<!--", " ")


def _tag(found: re.Match[str]) -> str:
    name = (found.group(1) or "").lower()
    if name in _PARAGRAPH_TAGS:
        return "\n\n"
    return " , " if name in _PAUSE_TAGS else ""


_FENCE = re.compile(r"(?:`{3,}|~{3,})[^`\s]*")
_HEADER = re.compile(r"#{1,6}\s+")
_QUOTE = re.compile(r"(?:>\s?)+")
_BULLET = re.compile(r"[-*+•‣◦▪●○·–—]\s+")
_TASK = re.compile(r"\[[ xX]\]\s+")
_NUMBERED = re.compile(r"\(?(?:\d{1,3}|[a-zA-Z])[.)]\s")
_PAUSES = frozenset(".,;:!?。，、；：！？…—")


def without_blocks(text: str) -> str:
    """Make one line of Markdown blocks: fences, rules and bullets go, a line end becomes a pause."""
    said = ""
    parts: list[str] = []
    blank = item = title = False
    for line in text.split("\n"):
        empty = not line.strip()
        line, is_item, is_title = _block(line.strip())
        if not any(char.isalnum() for char in line):
            blank = blank or empty
            continue
        if parts:
            wrapped = line[0].islower() and not (item or is_item or title or blank)
            parts.append(" " if wrapped else _pause(said, full=blank or title))
        parts.append(line)
        said, blank, item, title = line, False, is_item, is_title
    return "".join(parts)


def _block(line: str) -> tuple[str, bool, bool]:
    """The words of one line, whether it is a list item and whether it is a title."""
    if found := _FENCE.fullmatch(line):
        return "", False, False
    item = title = False
    if found := _QUOTE.match(line):
        line = line[found.end() :]
    if found := _HEADER.match(line):
        line, title = line[found.end() :].rstrip("# "), True
    elif found := _BULLET.match(line):
        line, item = line[found.end() :], True
        if found := _TASK.match(line):
            line = line[found.end() :]
    elif _NUMBERED.match(line):
        item = True
    if "|" in line:
        cells = [cell.strip() for cell in line.split("|")]
        line = ", ".join(cell for cell in cells if any(char.isalnum() for char in cell))
    return line, item, title


def _pause(said: str, *, full: bool) -> str:
    """What to say between two lines: nothing if the first ends with a stop of its own."""
    if said.rstrip("*_`~\"'”’)]")[-1:] in _PAUSES:
        return " "
    if ord(said[-1]) > 0x2E80:
        return "。" if full else "，"
    return ". " if full else ", "


_LABEL = r"\[([^\[\]]{0,1000})\]"
_TARGET = r"\((?:[^()\s]|\([^()\s]{0,300}\)){0,2000}(?: \"[^\"()]{0,300}\")?\)"
_LINK = re.compile(rf"!?{_LABEL}{_TARGET}")
_REFERENCE = re.compile(rf"!?{_LABEL} ?\[[^\[\]]{{0,100}}\]")
_FOOTNOTE = re.compile(r"\[\^[^\[\]\s]{1,50}\]:?")
_LINK_END = re.compile(rf"\]{_TARGET}?")


def without_links(text: str) -> str:
    """Keep the words of links and images, drop their targets."""
    if "[" not in text and "]" not in text:
        return text
    text = _FOOTNOTE.sub("", text)
    text = _LINK.sub(r"\1", _LINK.sub(r"\1", text))  # twice: an image may be the label of a link
    text = _REFERENCE.sub(r"\1", text)
    return _LINK_END.sub(" ", text).replace("[", " ")


_ESCAPE = re.compile(r"\\(?=[^\w\s])")
_EDGE_UNDERSCORES = re.compile(r"(?<![^\W_])_+|_+(?![^\W_])")


def without_emphasis(text: str) -> str:
    """Drop the marks of emphasis and inline code; an underscore inside a word becomes a space."""
    text = _ESCAPE.sub("", text)
    text = text.replace("*", "").replace("`", "").replace("~~", "")
    return _EDGE_UNDERSCORES.sub("", text).replace("_", " ")


# an asterisk with a digit, or with nothing but space, on both sides is a sign of arithmetic
_STARS = re.compile(r"\*{2,}|(?<!\d)\*(?=\S)|(?<=\S)\*(?!\d)")


def plain(text: str) -> str:
    """`text` for a reader, in one line: the markup out, everything else as it is written."""
    text = without_links(without_blocks(without_tags(text)))
    text = _STARS.sub("", _ESCAPE.sub("", text)).replace("`", "").replace("~~", "")
    return " ".join(_EDGE_UNDERSCORES.sub("", text).split())

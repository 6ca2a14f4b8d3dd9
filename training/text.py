"""What is spoken in training: clauses and sentences of a freely licensed collection of quotations.

The collection is Debian's package `fortunes` (BSD), as it lies in /usr/share/games/fortunes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path("/usr/share/games/fortunes")
_SPEAKABLE = re.compile(r"[A-Za-z ,.'!?;:-]+")
_ENTRY = re.compile(r"\n%\n")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_CLAUSE_END = re.compile(r"(?<=[.!?,;:])\s+")
_CHARS = (6, 150)

# never trained on: sentences of 5 to 15 words that the evaluation has spoken
HELD_OUT = (
    "The train to the city leaves every morning.",
    "She put the letter on the kitchen table.",
    "Please tell me the name on the account.",
    "We walked along the river until it was dark.",
    "Your order will arrive tomorrow afternoon.",
    "He has never seen so many people in one place.",
    "There was a small garden behind the old house.",
    "I would like to speak to someone about my bill.",
    "The weather is going to be warm and sunny today.",
    "Could you say that again a little more slowly?",
    "They found the missing keys under the front seat.",
    "Our office is open from Monday to Friday.",
    "The children were playing in the street after school.",
    "You can pay with a card or with cash.",
    "A good friend is always ready to listen.",
    "The doctor asked him to stay in bed for a week.",
    "It takes about twenty minutes to get to the airport.",
    "My brother works in a large company near the station.",
    "Nobody knew why the lights had gone out.",
    "She reads the newspaper before she goes to work.",
    "If you need help, just call me at any time.",
    "The meeting has been moved to next Wednesday.",
    "He opened the window and looked at the sea.",
    "We have three rooms left for the weekend.",
    "The soup is hot, so be careful with it.",
    "I think this is the best answer to your question.",
    "All of the tickets were sold within an hour.",
    "The dog waited at the door for its owner.",
    "Thank you for calling, and have a nice day.",
    "In the winter the mountains are covered with snow.",
)


def sentences(folder: Path = FOLDER, seed: int = 1) -> list[str]:
    """Different speakable texts of 6 to 150 characters, whole sentences and single clauses, shuffled."""
    found = list(dict.fromkeys(text for path in _files(folder) for text in _of(path)))
    if not found:
        raise FileNotFoundError(f"no quotations in {folder}: install the package fortunes")
    random.Random(seed).shuffle(found)
    return found


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.glob("*")):
        if path.is_file() and path.suffix not in (".dat", ".u8"):
            yield path


def _of(path: Path) -> Iterator[str]:
    text = _ENTRY.sub(". ", path.read_text(encoding="utf-8", errors="ignore"))
    text = re.sub(r"\s+", " ", text)
    for pattern in (_SENTENCE_END, _CLAUSE_END):
        for piece in pattern.split(text):
            piece = piece.strip(" -\"'")
            fits = _CHARS[0] <= len(piece) <= _CHARS[1]
            if fits and _SPEAKABLE.fullmatch(piece) and not piece.isupper():
                yield piece

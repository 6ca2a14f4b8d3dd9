"""Faq: questions with their answers, and which of them a caller means, though recognition garbles words."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator
from rapidfuzz import fuzz

from tts_plugin.strict_yaml import Source, read_yaml, validated

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Action = Literal["hand_over", "hang_up", "repeat", "spell"]
TOPICS = "{topics}"  # stands for the topics in `fallback`


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else (value,) if isinstance(value, str) else value


class Entry(BaseModel):
    """One thing a caller may ask.

    questions: ways to ask it. answer: one text, or several that take turns when it is asked again.
    topic: what the fallback calls it ("our opening hours"); none = the fallback keeps it to itself.
    action: what to do instead of answering, where that can be done: "hand_over" to a person, "hang_up",
    "repeat" the last answer, or "spell" the numbers in it one digit at a time.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    questions: Annotated[tuple[Text, ...], Field(min_length=1)]
    answer: Annotated[tuple[Text, ...], BeforeValidator(_as_tuple), Field(min_length=1)]
    topic: Text | None = None
    action: Action | None = None


class Faq(BaseModel):
    """What an agent can say without a language model.

    greeting: said first. fallback: said to what no entry covers; "{topics}" in it becomes a list of the
    topics. again: said to an empty question. synonyms: groups of words that mean the same here ("parcel",
    "package"), so that not every question needs a variant with each.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    greeting: Text
    fallback: Text
    again: Text
    entries: Annotated[tuple[Entry, ...], Field(min_length=1)]
    synonyms: tuple[Annotated[tuple[Text, ...], Field(min_length=2)], ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        unknown = [name for name in re.findall(r"\{[^}]*\}", self.fallback) if name != TOPICS]
        if unknown:
            raise ValueError(f'fallback: "{unknown[0]}" stands for nothing; only "{TOPICS}" does')
        if TOPICS in self.fallback and not any(entry.topic for entry in self.entries):
            raise ValueError(f'fallback names "{TOPICS}", but no entry has a topic')
        grouped: dict[str, int] = {}
        for number, group in enumerate(self.synonyms, start=1):
            for word in group:
                if words_of(word) != [word]:
                    raise ValueError(f'synonyms: "{word}" should be one word in lower case')
                if grouped.setdefault(word, number) != number:
                    raise ValueError(f'synonyms: "{word}" is in groups {grouped[word]} and {number}')
        owners: dict[tuple[str, ...], int] = {}
        for number, entry in enumerate(self.entries, start=1):
            for question in entry.questions:
                words = tuple(words_of(question))
                if not words:
                    raise ValueError(f'entry {number}: the question "{question}" has no words')
                if owners.setdefault(words, number) != number:
                    raise ValueError(f'entries {owners[words]} and {number} both have "{question}"')
        return self

    @property
    def lost(self) -> str:
        """The fallback with the topics in it."""
        topics = [entry.topic for entry in self.entries if entry.topic]
        listed = (
            topics[0] if len(topics) == 1 else f"{', '.join(topics[:-1])} or {topics[-1]}" if topics else ""
        )
        return self.fallback.replace(TOPICS, listed)


def load_faq(source: Source) -> Faq:
    """The FAQ in a YAML file, or ConfigError naming the file, the line and the nearest known key."""
    return validated(Faq, read_yaml(source))


@dataclass(frozen=True, slots=True)
class Match:
    """The entry that a question means. score: in [0, 1]; question: its variant that came nearest."""

    entry: Entry
    question: str
    score: float


class Matcher:
    """Finds the entry that a question means. Word order, filler words and misheard words are forgiven.

    Two measures, the better one counts. Words: how much of the variant is in the question and the other
    way round, each word weighed by how few entries use it, near words counting in part. Sound: how alike
    the two are with the spaces gone, for "open in ours".
    """

    def __init__(self, faq: Faq, *, threshold: float = 0.5) -> None:
        self._threshold = threshold
        self._synonyms = {word: group[0] for group in faq.synonyms for word in group}
        uses = Counter(
            word
            for entry in faq.entries
            for word in {word for question in entry.questions for word in self._words(question)}
        )
        scale = math.log1p(len(faq.entries))
        self._weights = {
            word: _LIGHT.get(word, 1.0) * math.log1p(len(faq.entries) / count) / scale
            for word, count in uses.items()
        }
        self._variants = [
            (entry, question, _Phrase.of(self._words(question)))
            for entry in faq.entries
            for question in entry.questions
        ]

    def find(self, question: str) -> Match | None:
        """The best match, None if nothing comes near enough."""
        asked = self._words(question)
        if not asked:
            return None
        # a word that no entry knows may be what the question is about, or a misheard one
        heard = [_Word(word, self._weight(word), self._like(word)) for word in asked]
        sounds = _Phrase.of(asked)
        matches = (
            Match(entry, variant, max(self._by_words(heard, phrase.words), _by_sound(sounds, phrase)))
            for entry, variant, phrase in self._variants
        )
        best = max(matches, key=lambda match: match.score)
        return best if best.score >= self._threshold else None

    def _words(self, text: str) -> list[str]:
        return [self._synonyms.get(word, word) for word in words_of(text)]

    def _weight(self, word: str) -> float:
        return self._weights.get(word) or _LIGHT.get(word, UNKNOWN_WEIGHT)

    def _like(self, word: str) -> dict[str, float]:
        """The words of the entries that `word` may be, with their likeness."""
        return {known: alike for known in self._weights if (alike := likeness(word, known))}

    def _by_words(self, heard: Sequence[_Word], words: Sequence[str]) -> float:
        found = sum(self._weights[word] * max(one.like.get(word, 0.0) for one in heard) for word in words)
        used = sum(one.weight * max(one.like.get(word, 0.0) for word in words) for one in heard)
        if found == 0 or used == 0:
            return 0.0
        of_variant = found / sum(self._weights[word] for word in words)
        of_question = used / sum(one.weight for one in heard)
        # a caller says more than the variant, so what is in the variant counts more: a weighted harmonic mean
        return 1 / (VARIANT_SHARE / of_variant + (1 - VARIANT_SHARE) / of_question)


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of the question. like: the words of the entries near it, and how near."""

    text: str
    weight: float
    like: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Phrase:
    """Words, run together, and without those that carry little; and which of them ask."""

    words: Sequence[str]
    letters: str
    heavy: str
    asking: frozenset[str]

    @classmethod
    def of(cls, words: Sequence[str]) -> Self:
        heavy = "".join(word for word in words if word not in _LITTLE)
        return cls(words, "".join(words), heavy, _ASKING.intersection(words))


UNKNOWN_WEIGHT = 0.9
VARIANT_SHARE = 0.65
NEAR_WORD = 0.72  # words less alike are different words
NEAR_SOUND = 0.8  # whole questions less alike in letters say nothing

# Words that carry little, and question words, which carry some: "when" and "where" ask different things.
_LITTLE = frozenset(
    re.findall(
        r"\S+",
        """
        a an the i me my we us our you your it its is are am be was were do does did have has had will would
        can could may might shall should to of in on at for from with by about and or so if then that this
        there these those some any just please ok okay well um uh er ah oh like know tell want need wonder
        wondering maybe actually really now also got get give let say said ask question quick yes yeah hey hi
        not going exactly think guess sir madam guys here today
        """,
    )
)
_ASKING = frozenset(("what", "when", "where", "who", "why", "which", "how", "much", "many", "long"))
_LIGHT = dict.fromkeys(_LITTLE, 0.12) | dict.fromkeys(_ASKING, 0.4)

_SPOKEN: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"[’`]", "'"),
        (r"\bwon't\b", "will not"),
        (r"\bcan't\b|\bcannot\b", "can not"),
        (r"n't\b", " not"),
        (r"'s\b", " is"),
        (r"'re\b", " are"),
        (r"'m\b", " am"),
        (r"'ve\b", " have"),
        (r"'ll\b", " will"),
        (r"'d\b", " would"),
        (r"\bgonna\b", "going to"),
        (r"\bwanna\b", "want to"),
        (r"\bgood[ -]bye\b", "goodbye"),
        (r"\bbye[ -]bye\b", "bye"),
    )
)


def words_of(text: str) -> list[str]:
    """The words of a sentence in lower case, short forms written out, without punctuation."""
    text = text.lower()
    for pattern, plain in _SPOKEN:
        text = pattern.sub(plain, text)
    return re.findall(r"[^\W_]+", text)


def likeness(word: str, other: str) -> float:
    """1 for the same word, less for a near one ("deliver", "delivery"), 0 for another one."""
    if word == other:
        return 1.0
    if min(len(word), len(other)) < 4:  # "how" is not "who", but "plan" is near "plans"
        return 0.0
    alike = fuzz.ratio(word, other) / 100
    return alike if alike >= NEAR_WORD else 0.0


def _by_sound(asked: _Phrase, variant: _Phrase) -> float:
    """How alike two questions are with the spaces gone; 0 if they ask differently ("who", "where")."""
    if asked.asking and variant.asking and asked.asking != variant.asking:
        return 0.0
    alike = fuzz.ratio(asked.letters, variant.letters) / 100
    if min(len(asked.heavy), len(variant.heavy)) >= 5:
        alike = max(alike, 0.95 * fuzz.ratio(asked.heavy, variant.heavy) / 100)
    return alike if alike >= NEAR_SOUND else 0.0

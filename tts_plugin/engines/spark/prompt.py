"""Prompts: what the language model reads before it speaks, as token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

from tts_plugin.engines.spark.vocabulary import Vocabulary
from tts_plugin.errors import BadRequest, did_you_mean

Encode = Callable[[str], list[int]]
Gender = Literal["female", "male"]  # in the order of their numbers
Level = Literal["very_low", "low", "moderate", "high", "very_high"]  # likewise


class Prompts:
    """Builds prompts for one checkpoint.

    encode: text -> ids of text tokens only, `Checkpoint.encode`; should it ever answer with a control
    token, the prompt is refused, so what a caller writes cannot steer the model.
    """

    def __init__(self, vocabulary: Vocabulary, encode: Encode) -> None:
        self._vocabulary = vocabulary
        self._encode = encode

    def clone(
        self, text: str, globals_: Sequence[int], *, said: str = "", semantic: Sequence[int] = ()
    ) -> list[int]:
        """Ids that have `text` spoken by the voice of the codes `globals_`.

        With both `said` and `semantic` (what was said just before or in the reference, and its codes)
        the model goes on from there, and its very next token is speech; with either missing the prompt
        is the plain one, and the model first says <|start_semantic_token|>. No space is put between
        `said` and `text`. BadRequest for a code that the codec does not have.
        """
        v = self._vocabulary
        speaker = _ids("global", globals_, v.global_first, v.global_count)
        spoken = _ids("semantic", semantic, v.semantic_first, v.semantic_count)
        goes_on = bool(said.strip()) and bool(spoken)
        content = self._text(said + text if goes_on else text)
        head = [v.task_tts, v.start_content, *content, v.end_content, v.start_global, *speaker, v.end_global]
        return [*head, v.start_semantic, *spoken] if goes_on else head

    def create(self, text: str, gender: Gender, pitch: Level, speed: Level) -> list[int]:
        """Ids that have `text` spoken by a new voice, which the model invents: first its pitch and speed,
        then its globals, then speech. BadRequest for a label that there is not."""
        v = self._vocabulary
        style = [
            v.gender_first + _number("gender", gender, get_args(Gender)),
            v.pitch_label_first + _number("pitch", pitch, get_args(Level)),
            v.speed_label_first + _number("speed", speed, get_args(Level)),
        ]
        content = [v.start_content, *self._text(text), v.end_content]
        return [v.task_controllable, *content, v.start_style, *style, v.end_style]

    def _text(self, text: str) -> list[int]:
        ids = self._encode(text)
        if any(not 0 <= token < self._vocabulary.text_count for token in ids):
            raise ValueError("encode() made a control token out of text: it should know no added tokens")
        return ids


def _ids(kind: str, codes: Sequence[int], first: int, count: int) -> list[int]:
    for code in codes:
        if not 0 <= code < count:
            raise BadRequest(f"{kind} code {code} should be from 0 to {count - 1}")
    return [first + code for code in codes]


def _number(what: str, label: str, labels: tuple[str, ...]) -> int:
    if label not in labels:
        raise BadRequest(f'{what} "{label}"{did_you_mean(label, labels)}')
    return labels.index(label)

"""Vocabulary: where the control and speech tokens stand, read from a tokenizer's added tokens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tts_plugin.errors import ConfigError

_NUMBERED = re.compile(r"<\|([a-z_]+)_([0-9]+)\|>\Z")

# field of Vocabulary -> token
_CONTROLS = {
    "eos": "<|im_end|>",
    "task_tts": "<|task_tts|>",
    "task_controllable": "<|task_controllable_tts|>",
    "start_content": "<|start_content|>",
    "end_content": "<|end_content|>",
    "start_style": "<|start_style_label|>",
    "end_style": "<|end_style_label|>",
    "start_acoustic": "<|start_acoustic_token|>",
    "end_acoustic": "<|end_acoustic_token|>",
    "start_global": "<|start_global_token|>",
    "end_global": "<|end_global_token|>",
    "start_semantic": "<|start_semantic_token|>",
    "end_semantic": "<|end_semantic_token|>",
}
# field of Vocabulary that holds the first id -> family, fewest tokens of it that a prompt needs
_FAMILIES = {
    "global": ("bicodec_global", 1),
    "semantic": ("bicodec_semantic", 1),
    "gender": ("gender", 2),
    "pitch_label": ("pitch_label", 5),
    "speed_label": ("speed_label", 5),
    "pitch_value": ("pitch_value", 1),
    "speed_value": ("speed_value", 1),
}


class BadVocabulary(ConfigError):
    """The added tokens are not Spark's; `problems` lists everything found, in words."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token ids. Number n of a family has the id `*_first` + n, for 0 <= n < `*_count`.

    text_count: ids below it are text, and only they. id_count: one more than the highest id; rows of
    the model's embedding from there on mean nothing.
    """

    text_count: int
    id_count: int
    eos: int
    task_tts: int
    task_controllable: int
    start_content: int
    end_content: int
    start_style: int
    end_style: int
    start_acoustic: int
    end_acoustic: int
    start_global: int
    end_global: int
    start_semantic: int
    end_semantic: int
    global_first: int
    global_count: int
    semantic_first: int
    semantic_count: int
    gender_first: int
    gender_count: int
    pitch_label_first: int
    pitch_label_count: int
    speed_label_first: int
    speed_label_count: int
    pitch_value_first: int
    pitch_value_count: int
    speed_value_first: int
    speed_value_count: int

    @classmethod
    def read(cls, added: Mapping[str, int]) -> Vocabulary:
        """From the added tokens of a tokenizer, name -> id; BadVocabulary says what is missing."""
        problems = list(_shared_ids(added))
        ids: dict[str, int] = {}
        for field, token in _CONTROLS.items():
            if token in added:
                ids[field] = added[token]
            else:
                problems.append(f"the tokenizer has no {token}")
        families = _families(added)
        for field, (family, least) in _FAMILIES.items():
            found = families.get(family, {})
            ids[f"{field}_first"] = min(found.values(), default=0)
            ids[f"{field}_count"] = len(found)
            problems.extend(_gaps(family, found, least))
        if problems:
            raise BadVocabulary(problems)
        return cls(text_count=min(added.values()), id_count=max(added.values()) + 1, **ids)


def _families(added: Mapping[str, int]) -> dict[str, dict[int, int]]:
    """Family -> number -> id, of the names that end in a number."""
    families: dict[str, dict[int, int]] = {}
    for token, token_id in added.items():
        if match := _NUMBERED.match(token):
            families.setdefault(match[1], {})[int(match[2])] = token_id
    return families


def _shared_ids(added: Mapping[str, int]) -> Iterator[str]:
    for token_id, uses in Counter(added.values()).items():
        if uses > 1:
            names = [token for token, other in added.items() if other == token_id]
            yield f"id {token_id} belongs to {uses} tokens: {', '.join(names[:4])}"


def _gaps(family: str, found: Mapping[int, int], least: int) -> Iterator[str]:
    """What keeps `found` (number -> id) from being at least `least` tokens, 0, 1, 2 ..., ids in a row."""
    name = f"<|{family}_N|>"
    if not found:
        yield f"the tokenizer has no {name} tokens"
        return
    missing = [number for number in range(max(least, max(found) + 1)) if number not in found]
    if missing:
        yield f"{name}: number {missing[0]} is missing, found {len(found)} of {len(found) + len(missing)}"
        return
    first = found[0]
    for number, token_id in sorted(found.items()):
        if token_id != first + number:
            due = f"{first + number} ({first} + {number})"
            yield f"{name}: number {number} should have id {due}, not {token_id}"
            return

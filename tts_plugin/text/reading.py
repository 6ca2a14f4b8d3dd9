"""read: the one door to wetext, the library that turns short phrases of digits into words."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import wetext


@lru_cache(maxsize=8192)
def read(phrase: str, language: Literal["en", "zh"]) -> str:
    """The words of one short phrase, such as "21st", "3:30 pm", "5/8" or "2024-01-15".

    Only phrases that a pattern has matched may come here, never free text. wetext 0.1.8 takes time that
    grows with the square of the length (10,000 characters: 4 s), raises on characters that it does not
    know ('[5]', '−3', 'a\\ud8005'), escapes quotes ('5\\'10"' -> 'five\\'ten\\\\"'), drops the last full stop
    ("World War II." -> "World War two") and, in Chinese, takes letters of the next word for a unit
    ("3 million" -> "三英里llion"). Safe from many threads.
    """
    return str(wetext.normalize(phrase, lang=language))

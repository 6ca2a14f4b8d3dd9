"""Which end of the speech so far the next segment is shown: bounded, and its text and codes end as one."""

from __future__ import annotations

import pytest

from tts_plugin.engines.spark.continuity import CONTEXT_TOKENS, Continuity, Tail

TAIL = 150  # codes


def chars(text: str) -> int:
    """Text tokens of a tokenizer that has only characters."""
    return len(text)


def test_the_first_segment_is_shown_nothing() -> None:
    assert Continuity(chars, tail=TAIL).tail("Hello.") == Tail()


def test_a_short_segment_is_shown_whole_with_the_space_that_stands_between() -> None:
    continuity = Continuity(chars, tail=TAIL)
    continuity.spoke("Good morning.", range(60))
    assert continuity.tail("How are you?") == Tail("Good morning. ", tuple(range(60)))


@pytest.mark.parametrize(
    ("said", "text", "gap"),
    [
        ("早上好。", "你好吗？", ""),
        ("早上好。", "How are you?", ""),
        ("Good morning.", "你好吗？", ""),
        ("Good morning.", " How are you?", ""),
        ("Good morning,", "“you” said", " "),
    ],
)
def test_scripts_decide_the_space(said: str, text: str, gap: str) -> None:
    continuity = Continuity(chars, tail=TAIL)
    continuity.spoke(said, range(60))
    assert continuity.tail(text).said == said + gap


def test_short_segments_add_up() -> None:
    continuity = Continuity(chars, tail=TAIL)
    continuity.spoke("One.", range(30))
    continuity.spoke("Two.", range(30, 60))
    assert continuity.tail("Three.") == Tail("One. Two. ", tuple(range(60)))


def test_of_a_long_segment_the_last_codes_are_shown_with_about_their_words() -> None:
    continuity = Continuity(chars, tail=TAIL)
    words = [f"word{number:02d}" for number in range(30)]
    continuity.spoke(" ".join(words), range(600))  # 20 codes a word
    tail = continuity.tail("And so on.")
    assert tail.semantic == tuple(range(600 - TAIL, 600))
    shown = tail.said.split()
    assert shown == words[-len(shown) :], "whole words, to the end"
    assert abs(len(shown) - TAIL / 20) <= 1


def test_chinese_is_cut_between_characters() -> None:
    continuity = Continuity(chars, tail=TAIL)
    said = "请稍等我帮您查一下订单的状态然后再告诉您结果好不好呢"
    continuity.spoke(said, range(len(said) * 11))
    tail = continuity.tail("好的。")
    assert said.endswith(tail.said)
    assert abs(len(tail.said) - TAIL / 11) <= 1


def test_prompt_and_likely_speech_stay_within_the_context() -> None:
    continuity = Continuity(chars, tail=1000)
    continuity.spoke("word " * 100, range(2000))
    for length in (10, 50, 80, 100, 150, 400):
        text = "word " * length
        tail = continuity.tail(text)
        speech = 4 * 0.085 * 50 * length
        total = len(tail.semantic) + chars(tail.said) + chars(text) + 40 + speech
        assert total <= CONTEXT_TOKENS or tail == Tail()
    assert continuity.tail("word " * 10).semantic, "a short one has room for some"
    assert continuity.tail("word " * 400) == Tail(), "a long one for none"


def test_too_little_to_tell_anything_is_not_shown() -> None:
    continuity = Continuity(chars, tail=TAIL)
    continuity.spoke("Yes.", range(20))
    assert continuity.tail("How are you?") == Tail()


def test_a_tail_of_0_turns_it_off() -> None:
    continuity = Continuity(chars, tail=0)
    continuity.spoke("Good morning.", range(60))
    assert continuity.tail("How are you?") == Tail()


def test_codes_of_no_text_are_not_shown() -> None:
    continuity = Continuity(chars, tail=TAIL)
    continuity.spoke(" ", range(500))
    assert continuity.tail("How are you?") == Tail()

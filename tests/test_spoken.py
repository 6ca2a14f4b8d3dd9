"""Which words have been heard by when."""

import pytest

from tts_plugin.spoken import Span, SpokenText

RATE = 1000
TEXT = "One two three. Four five, six!"


def spoken(*spans: Span, text: str = TEXT) -> SpokenText:
    book = SpokenText(RATE)
    book.add_text(text)
    for span in spans:
        book.add_span(span)
    return book


BOTH = (Span(0, 14, 0, 1400), Span(15, 30, 1400, 3000))


def test_nothing_is_heard_before_the_first_sample() -> None:
    assert spoken(*BOTH).heard(0.0) == ""
    assert spoken().heard(5.0) == ""


def test_at_a_segments_end_the_text_is_exact() -> None:
    assert spoken(*BOTH).heard(1.4) == "One two three."
    assert spoken(*BOTH).heard(3.0) == TEXT
    assert spoken(*BOTH).heard(99.0) == TEXT


def test_inside_a_segment_words_come_one_by_one() -> None:
    book = spoken(*BOTH)
    heard = [book.heard(at / 100) for at in range(301)]
    assert sorted(set(heard), key=len) == [
        "", "One", "One two", "One two three.", "One two three. Four",
        "One two three. Four five,", TEXT,
    ]  # fmt: skip
    assert heard == sorted(heard, key=len)


def test_an_open_segment_is_estimated_and_replaced_when_its_end_is_known() -> None:
    book = spoken(Span(0, 14, 0, None))
    assert book.heard(0.1) == "One"
    book.add_span(Span(0, 14, 0, 14000))
    assert book.heard(4.0) == "One two"
    assert len(book.spans) == 1


@pytest.mark.parametrize("closed_at_once", [True, False])
def test_words_taken_join_to_the_whole_text_and_never_come_twice(closed_at_once: bool) -> None:
    text = "  **One** two three. \n Four five, six! 🙂 "
    first, second = (2, 20), (23, 38)
    book = spoken(text=text)
    words = []
    for (start, end), sample in ((first, 0), (second, 1400)):
        if not closed_at_once:
            book.add_span(Span(start, end, sample, None))
            words += book.take((sample + 300) / RATE)
        book.add_span(Span(start, end, sample, sample + 1400))
        for at in range(sample, sample + 1400, 20):
            words += book.take(at / RATE)
    words += book.take_rest(2.8)
    assert "".join(word.text for word in words) == text
    starts = [word.start_s for word in words]
    assert starts == sorted(starts)
    assert all(word.end_s >= word.start_s for word in words)
    assert words[-1].end_s <= 2.8


def test_words_are_never_taken_after_the_audio_that_speaks_them() -> None:
    book = spoken(*BOTH)
    for at in range(0, 3000, 80):
        for word in book.take((at + 80) / RATE):
            assert word.start_s >= at / RATE - 1e-9

"""The splitter: early first pieces, whole sentences, nothing lost, whatever the deltas."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tts_plugin.text.split import PIECE_CHARS, Piece, Splitter

SNIPPETS = [
    *"abzéß1239.,:;!?…—–-'\"“”()[]*_#|<>/@ \n\t。！？，、；：」“你好的了和ねカไท😊\u200d\ufe0f\u0301",
    *["Dr. ", "e.g. ", "9 a.m. ", "U.S. ", "No. ", "3.14", "v1.2", "Sure! ", "and ", "with ", "\r\n", "\n\n"],
    *["- item\n", "1. item\n", "a.b@c.com", "https://x.org/a?b=c.d ", "word ", "unbelievable ", "...", "?!"],
    *["+1 (415) 555-0132", "x" * 310, " " * 305, "7" * 60, "天" * 60, "one two three four five six, "],
]
texts = st.lists(st.sampled_from(SNIPPETS), max_size=80).map("".join) | st.text(max_size=200)


def split(text: str, **options: int) -> list[str]:
    splitter = Splitter(**options)
    return [piece.raw for piece in splitter.push(text) + splitter.flush()]


def pushed(text: str) -> list[str]:
    """The pieces that the text releases by itself."""
    return [piece.raw for piece in Splitter().push(text)]


def words(count: int) -> str:
    return " ".join(f"word{'abcdefghij'[at % 10]}" for at in range(count))


# What is promised for every text


@settings(max_examples=300, deadline=None)
@given(texts, st.data())
def test_pieces_depend_on_the_text_and_not_on_the_deltas(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    whole = Splitter()
    expected = whole.push(text) + whole.flush()
    letters = Splitter()
    assert [piece for char in text for piece in letters.push(char)] + letters.flush() == expected
    chunks = Splitter()
    got: list[Piece] = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        got += chunks.push(text[start:end])
    assert got + chunks.flush() == expected


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(texts, st.sampled_from(["release", "flush", ""])), max_size=6),
    st.integers(1, 30),
    st.integers(1, 5),
)
@example([("1234567", "")], 1, 1)
@example([("一二三四五", "")], 1, 1)
def test_nothing_is_lost_whatever_is_called(deltas: list[tuple[str, str]], most: int, first: int) -> None:
    splitter = Splitter(first_words=min(first, most), max_words=most)
    pieces: list[Piece] = []
    for delta, then in deltas:
        pieces += splitter.push(delta)
        could = splitter.pending
        if then == "release":
            released = splitter.release()
            assert bool(released) == could
            pieces += released
        elif then == "flush":
            pieces += splitter.flush()
    pieces += splitter.flush()
    text = "".join(delta for delta, _ in deltas)
    at = 0
    for piece in pieces:
        assert piece.raw == text[piece.start : piece.end]
        assert piece.raw == piece.raw.strip() != ""
        assert not text[at : piece.start].strip(), "text between two pieces"
        assert piece.start >= at
        assert len(piece.raw.split()) <= most
        assert len(piece.raw) <= PIECE_CHARS
        at = piece.end
    assert not text[at:].strip(), "text after the last piece"
    assert not splitter.pending
    assert splitter.flush() == []


@given(st.text(alphabet="天地玄黄宇宙洪荒", min_size=200, max_size=300))
def test_chinese_pieces_are_at_most_41_characters(text: str) -> None:
    assert max(len(piece) for piece in split(text)) <= 41


# The first piece


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("Well, I think that is fine, and we can go now. ", "Well, I think that is fine,"),
        ("One two three four, five six. ", "One two three four,"),
        ("One two three, four five six. ", "One two three, four five six."),
        ("I like it very much; you know. ", "I like it very much;"),
        ("This is what we need: eggs and milk. ", "This is what we need:"),
        ("We could go home now — or stay here. ", "We could go home now —"),
        ("We could go home now—or stay here. ", "We could go home now—"),
        ("Sure! I can help. ", "Sure!"),
        ("Hello? ", "Hello?"),
        ("**Sure!** Here it is. ", "**Sure!**"),
        ("Sure!😊 Here it is. ", "Sure!😊"),
        ("Yes.\nThen", "Yes."),
        ("Title\nText", "Title"),
        ("你好，很高兴见到你。我叫小明", "你好，很高兴见到你。"),
        ("今天天气真的很好，我们走吧", "今天天气真的很好，"),
    ],
)
def test_the_first_piece_is_as_short_as_a_clause_allows(text: str, first: str) -> None:
    assert pushed(text)[0] == first


def test_the_first_piece_leaves_with_the_space_after_its_comma() -> None:
    splitter = Splitter()
    assert splitter.push("I would say so, but") == [Piece("I would say so,", 0, 15)]


@pytest.mark.parametrize(
    "text", ["one two three four five six seven eight", words(25), "Well, then I would", "😊 "]
)
def test_the_first_piece_is_not_cut_in_mid_clause(text: str) -> None:
    assert pushed(text) == []


def test_emoji_alone_is_no_first_piece() -> None:
    assert pushed("😊 ... **\n Hello there. ") == ["😊 ... **\n Hello there."]


# Later pieces


def test_later_pieces_are_sentences() -> None:
    assert pushed(
        "Sure! First, we take the train, then the bus. Is it far, then? No way. Come on then. "
    ) == [
        "Sure!",
        "First, we take the train, then the bus.",
        "Is it far, then?",
        "No way. Come on then.",
    ]


def test_a_short_sentence_at_the_end_isreleased_by_flush() -> None:
    assert split("Hello. See you there tomorrow. Bye!") == ["Hello.", "See you there tomorrow.", "Bye!"]


def test_a_long_sentence_is_cut_at_its_last_good_comma() -> None:
    text = f"{words(10)}, {words(9)}, {words(20)}."
    assert split("Yes. " + text)[1:] == [f"{words(10)}, {words(9)},", f"{words(20)}."]


def test_a_long_clause_is_cut_before_a_conjunction() -> None:
    assert split(f"Yes. {words(15)} because {words(16)}.")[1:] == [words(15), f"because {words(16)}."]


def test_a_long_clause_is_cut_before_a_preposition_if_there_is_no_conjunction() -> None:
    assert split(f"Yes. {words(18)} with {words(16)}.")[1:] == [words(18), f"with {words(16)}."]


def test_four_hundred_words_without_punctuation_are_cut_at_spaces() -> None:
    pieces = split(words(400))
    assert " ".join(pieces) == words(400)
    assert [len(piece.split()) for piece in pieces] == [25] * 16


def test_an_early_comma_makes_no_crumb() -> None:
    assert len(split(f"Yes. So, {words(40)}.")[1].split()) > 8


def test_a_cut_does_not_part_the_groups_of_a_number() -> None:
    pieces = split(f"Yes. {words(16)} 415 555 0132 {words(20)}")
    assert any("415 555 0132" in piece for piece in pieces)


def test_a_word_of_absurd_length_is_cut() -> None:
    pieces = split("x" * 5000)
    assert "".join(pieces) == "x" * 5000
    assert max(map(len, pieces)) <= PIECE_CHARS


def test_long_numbers_are_short_pieces_because_they_are_read_digit_by_digit() -> None:
    assert max(map(len, split("7" * 200))) <= 30


def test_a_long_address_is_not_cut_when_the_words_before_it_can_go() -> None:
    address = "https://example.com/" + "a" * 275
    assert split(f"Look at {address} now") == ["Look at", f"{address} now"]


def test_chinese_is_cut_at_its_own_stops() -> None:
    text = "好。" + "我们今天去北京看看老朋友，" * 3 + "然后我们大家一起回家。“真的吗？”他说。"
    assert split(text) == [
        "好。",
        "我们今天去北京看看老朋友，" * 3,
        "然后我们大家一起回家。",
        "“真的吗？”他说。",
    ]


def test_ascii_stops_between_chinese_characters_count() -> None:
    assert split("你好吗朋友?我很好的呢.") == ["你好吗朋友?", "我很好的呢."]


# Where a sentence ends


@pytest.mark.parametrize(
    "sentence",
    [
        "Please ask Mr. Smith or Dr. Jones about it.",
        "Mrs. Robinson lives in St. Louis near Mt. Hood.",
        "Gen. Lee met Sen. Ray and Prof. Oak there.",
        "Bring fruit, e.g. apples, i.e. the red ones.",
        "The U.S. Senate met at Washington D.C. today.",
        "J. K. Rowling wrote many of those.",
        "We meet at 9 a.m. tomorrow in town.",
        "We meet at 9 a.m. Monday in town.",
        "Take No. 5 and see Fig. 3 for it.",
        "It happened on Jan. 5 of last year.",
        "Pi is 3.14 and more than 1,234.56 too.",
        "Use version v1.2.3 or 2.0 of it.",
        "The train leaves at 10.30 or at 11:45 today.",
        "Write to a.b@c.com or see https://x.org/a.html?b=1.5 now.",
        "I was... well... not so sure about it.",
        "I was… not so sure about it.",
        '"Really?" she asked him (quietly!) and went.',
        "On the 3. of May we go there.",
        "Tea, coffee, etc. are on the table.",
        "Acme Inc. is a very large company.",
        "Node.js and main.py are both names.",
        "She has a Ph.D. in physics from there.",
    ],
)
def test_no_sentence_ends_inside(sentence: str) -> None:
    assert split(f"Yes! {sentence} And then we all go on.") == ["Yes!", sentence, "And then we all go on."]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("So do you and I.", "Then we go home."),
        ("It really costs 20.", "That is too much."),
        ("Is that so?", "it certainly is so."),
        ("My answer is no.", "I mean it, really."),
        ("Bring apples, pears, etc.", "They are over there."),
        ('He told me "go away."', "Then he went home."),
        ("It is here (see 3.14.)", "That is the end."),
        ("He wants it **now!**", "She does not care."),
        ("Write to a.b@c.com please.", "We read it all."),
        ("I was not so sure...", "Then came the rain."),
        ("What on earth?!", "Nobody knows that one."),
        ("Ask our sales rep.", "He is very nice."),
        ("It was version 1.2.", "Then came the next."),
        ("It all began in 1999.", "nobody knew it then."),
    ],
)
def test_a_sentence_ends_between(one: str, two: str) -> None:
    assert split(f"Yes! {one} {two}") == ["Yes!", one, two]


@pytest.mark.parametrize("gap", ["\n", "\n\n", " \n ", "\r\n", "\u2028", "\n- ", "\n* ", "\n1. ", "\n12) "])
def test_a_line_end_ends_a_piece(gap: str) -> None:
    assert split(f"Yes! The first line here{gap}the second line here") == [
        "Yes!",
        "The first line here",
        f"{gap}the second line here".strip(),
    ]


def test_the_number_of_a_list_item_is_no_sentence() -> None:
    assert split("1. Mix it all well.\n2. Bake it for long.") == [
        "1. Mix it all well.",
        "2. Bake it for long.",
    ]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_line_that_was_only_wrapped_goes_on(newline: str) -> None:
    text = f"This is a line that an editor has wrapped at a column{newline}somewhere and it goes on."
    assert split(text)[-1] == text


def test_a_period_waits_for_the_character_that_decides() -> None:
    splitter = Splitter()
    assert splitter.push("The price is now 3.") == []
    assert splitter.push("14") == []
    assert [piece.raw for piece in splitter.push(" euros. ")] == ["The price is now 3.14 euros."]


# Standing still


def released(text: str) -> list[str]:
    splitter = Splitter()
    splitter.push(text)
    return [piece.raw for piece in splitter.release()]


@pytest.mark.parametrize(
    ("waiting", "goes"),
    [
        ("That is simply unbeliev", ["That is simply"]),
        ("That is simply ", ["That is simply"]),
        ("That is", []),
        ("That is ", []),
        ("unbeliev", []),
        ("Well, ", ["Well,"]),
        ("Well,", ["Well,"]),
        ("Hello.", ["Hello."]),
        ("**Hello.**", ["**Hello.**"]),
        ("I really don'", []),
        ("We will now call Dr. ", ["We will now call"]),
        ("Please call me on +1 (415) ", ["Please call me on"]),
        ('And then she said "', ["And then she said"]),
        ("你好朋友们", ["你好朋友们"]),
        ("你好", []),
        ("**", []),
        ("...", []),
        ("", []),
        ("   ", []),
    ],
)
def test_what_a_stall_releases(waiting: str, goes: list[str]) -> None:
    assert released(waiting) == goes


def test_half_a_word_is_finished_after_a_stall() -> None:
    splitter = Splitter()
    splitter.push("That is simply unbeliev")
    assert splitter.pending
    assert [piece.raw for piece in splitter.release()] == ["That is simply"]
    assert not splitter.pending
    assert splitter.release() == []
    assert [piece.raw for piece in splitter.push("able to me. ")] == ["unbelievable to me."]


def test_flush_releases_half_a_word_and_stays_open() -> None:
    splitter = Splitter()
    splitter.push("  unbeliev")
    assert splitter.flush() == [Piece("unbeliev", 2, 10)]
    assert splitter.flush() == []
    assert splitter.push("able at all. ") == [Piece("able at all.", 10, 22)]


@pytest.mark.parametrize("options", [{"first_words": 0}, {"first_words": 30}, {"stall_s": 0.0}])
def test_a_useless_setting_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Splitter(**options)  # type: ignore[arg-type]  # the names are parametrized


@pytest.mark.parametrize(
    "unit",
    [
        "word ",
        "a",
        " ",
        "*",
        "9",
        "你",
        ".",
        '"a',
        "\n",
        'Mr. Foo, said "ok." ',
        "a" + " " * 299,
        "a " + "b" * 299,
    ],
)
def test_a_hundred_thousand_characters_one_by_one_are_quick(unit: str) -> None:
    text = (unit * (100_000 // len(unit) + 1))[:100_000]
    splitter = Splitter()
    start_s = time.process_time()
    for char in text:
        splitter.push(char)
    splitter.flush()
    assert time.process_time() - start_s < 2

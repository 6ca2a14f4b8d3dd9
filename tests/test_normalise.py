"""What is spoken of a text: a table of examples, and promises for every text."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_plugin.text import markup
from tts_plugin.text.normalise import Spoken, normalise

ENGLISH = [
    # prose, and what the engine reads well by itself
    ("Hello there, world.", "Hello there, world."),
    (
        "It's $1,234.56 on 10/12/2024 at 9:30am, Dr. Smith.",
        "It's $1,234.56 on 10/12/2024 at 9:30am, Dr. Smith.",
    ),
    ("The 1990s, 3.14, 50%, €5, -5 degrees", "The 1990s, 3.14, 50%, €5, -5 degrees"),
    ("café naïve Ångström", "café naïve Ångström"),
    ("That is all (for now).", "That is all (for now)."),
    ("well-known and/or half-done", "well-known and/or half-done"),
    # Markdown
    ("**Bold**, *it*, `code`, ~~no~~, _em_, __st__", "Bold, it, code, no, em, st"),
    ("un**believ**able", "unbelievable"),
    ("**half of a bold", "half of a bold"),
    ("snake_case and __init__", "snake case and init"),
    ("# Title\n\nText here.", "Title. Text here."),
    ("### Closed ###", "Closed"),
    ("Title\n=====\nText", "Title, Text"),
    ("- eggs\n- milk\n- bread.", "eggs, milk, bread."),
    ("* one\n+ two\n• three", "one, two, three"),
    ("- [x] done\n- [ ] open", "done, open"),
    ("1. Mix it.\n2. Bake it.", "1. Mix it. 2. Bake it."),
    ("> quoted\n> text", "quoted text"),
    ("A line that was\nwrapped here.", "A line that was wrapped here."),
    ("One\n\nTwo", "One. Two"),
    ("One\n\n---\n\nTwo", "One. Two"),
    ("[click here](https://x.y/z_(a)?b=c) now", "click here now"),
    ('[this](https://x.y "A title") too', "this too"),
    ("![a cat](cat.png) sits", "a cat sits"),
    ("[![badge](b.svg)](https://x.y)", "badge"),
    ("here](https://x.y/z) ends a link", "here ends a link"),
    ("see [the docs][1] and note[^2]", "see the docs and note"),
    ("```python\nprint\n```", "print"),
    ("```python", ""),
    ("| a | b |\n|---|:-:|\n| 1 | 2 |", "a, b, 1, 2"),
    ("\\*not bold\\*", "not bold"),
    ("***", ""),
    # tags and entities
    ("<b>Hi</b> <i class='x'>you</i>", "Hi you"),
    ("<p>One</p><p>Two</p>", "One. Two"),
    ("one<br/>two", "one, two"),
    ("<speak>Wait<break time='1s'/>now <prosody rate=\"slow\">please</prosody></speak>", "Wait, now please"),
    ("a<!-- not this -->b", "ab"),
    ("<|im_end|>Hi", "Hi"),
    ("Tom &amp; Jerry &lt;3 &nbsp;&#233;", "Tom and Jerry é"),
    ('look <a href="https://x', "look"),
    # characters
    ("hel\0lo\x07 wo\u200brld\ufeff \ud800!", "hello world!"),
    ("soft\u00adhyphen", "softhyphen"),
    ("Sure!😊 I ❤️ you 👨‍👩‍👧 🇩🇪 ✔ ★", "Sure! I you"),
    ("press 1️⃣", "press 1"),
    ("I am fine :) and you ;-)", "I am fine and you"),
    ("“Don’t,” he said — ‘ever’", "\"Don't,\" he said — 'ever'"),
    ("wait—what – no -- yes", "wait — what — no — yes"),
    ("Ｆｕｌｌ ｗｉｄｔｈ！ ﬁne", "Full width! fine"),
    ("3½ cups, ½ cup, 5 m²", "3 1/2 cups, 1/2 cup, 5 m squared"),
    ("h̷e̴l̵l̶o", "hello"),
    ("٣ dogs", "3 dogs"),
    ("  many \t spaces \r\n here ", "many spaces here"),
    ("Hello!!! What?! No..... Hm..", "Hello! What? No... Hm."),
    ("Hello , world !", "Hello, world!"),
    ("...", ""),
    ("…", ""),
    ("?!", ""),
    ("%", ""),
    ("🎉", ""),
    ("", ""),
    (" \n\t ", ""),
    # phone numbers and long numbers
    ("+1 (415) 555-0132", "plus one, four one five, five five five, zero one three two"),
    ("Call 415-555-0132 now.", "Call four one five, five five five, zero one three two now."),
    ("(415) 555-0132, please", "four one five, five five five, zero one three two, please"),
    ("415.555.0132", "four one five, five five five, zero one three two"),
    ("1-800-555-0199", "one, eight zero zero, five five five, zero one nine nine"),
    ("+14155550132", "plus one, four one five, five five five, zero one three two"),
    ("4155550132", "four one five, five five five, zero one three two"),
    ("+44 20 7946 0958", "plus four four, two zero, seven nine four six, zero nine five eight"),
    ("020 7946 0958", "zero two zero, seven nine four six, zero nine five eight"),
    ("Call 555-0132.", "Call five five five, zero one three two."),
    ("ext. 204", "extension two zero four"),
    ("Dial 911!", "Dial nine one one!"),
    ("4111 1111 1111 1111", "four one one one, one one one one, one one one one, one one one one"),
    ("Order 12345678.", "Order one two three, four five six, seven eight."),
    ("1000000 stars", "1000000 stars"),
    ("$1234567", "$1234567"),
    ("1234567 dollars", "1234567 dollars"),
    ("3.1415926535", "3.1415926535"),
    ("1,234,567", "1,234,567"),
    ("2024-01-15", "2024-01-15"),
    ("in 2010-2015, 10-12 or 10–12 people", "in 2010-2015, 10-12 or 10-12 people"),
    ("pages 200-1000", "pages 200-1000"),
    ("v1.2.3 and 192.168.1.1", "v1.2.3 and 192.168.1.1"),
    # addresses
    ("https://www.example.com/help?x=1.", "example dot com slash help."),
    ("Visit http://example.com!", "Visit example dot com!"),
    ("**https://my-site.org/a_b**", "my dash site dot org slash a underscore b"),
    ("(see example.com/help)", "(see example dot com slash help)"),
    ("anna@example.com", "anna at example dot com"),
    ("<first.last+tag@site.co.uk>", "first dot last plus tag at site dot co dot uk"),
    ("Node.js and main.py", "Node dot js and main dot py"),
    (f"https://example.com/{'a' * 300} ok", "example dot com ok"),
    # symbols
    ("Q&A, Tom & Jerry", "Q and A, Tom and Jerry"),
    ("@anna meet @ 5", "at anna meet at 5"),
    ("5+3=8", "5 plus 3 equals 8"),
    ("5*3, 2**3, x^2", "5 times 3, 2 to the power of 3, x to the power of 2"),
    ("a < b, c > d, ~5", "a less than b, c greater than d, about 5"),
    ("C++, C#, #1, #tag", "C plus plus, C sharp, #1, tag"),
    ("20°C, 70 °F, 90°", "20 degrees Celsius, 70 degrees Fahrenheit, 90 degrees"),
    ("A → B -> C", "A, B, C"),
    ("α and π", "alpha and pi"),
    # stops after which the engine would end the sentence
    ("9 a.m. Monday or 5 p.m.", "9 AM Monday or 5 PM."),
    ("It is 5 p.m. We go.", "It is 5 PM. We go."),
    ("the U.S. Senate", "the US Senate"),
    ("No. 5 on Jan. 5", "number 5 on January 5"),
    ("No. I mean it.", "No. I mean it."),
    ("e.g. this, i.e. that", "for example this, that is that"),
    ("10:00-12:00, 10am-12pm, 5-10%", "10:00 to 12:00, 10am to 12pm, 5 to 10%"),
]


@pytest.mark.parametrize(("raw", "text"), ENGLISH)
def test_english_is_spoken_as(raw: str, text: str) -> None:
    assert normalise(raw, "en") == Spoken(text, "")


@pytest.mark.parametrize(
    ("language", "raw", "text", "foreign"),
    [
        ("en", "你好 hello", "hello", "你好"),
        ("en", "你好，世界! hello", "hello", "你好 世界"),
        ("en", "Hello. 你好, then", "Hello. then", "你好"),
        ("en", 'He said (你好) and "你好" too', "He said and too", "你好 你好"),
        ("en", "Привет, my friend", "my friend", "Привет"),
        ("en", "مرحبا، カタカナ 한국어 Ωμέγα", "", "مرحبا カタカナ 한국어 Ωμέγα"),
        ("en", "iPhone手机", "iPhone", "手机"),
        ("en", "नमस्ते ok", "ok", "नमस्ते"),
        ("en", "你好。", "", "你好"),
        ("en-US", "你好 hello", "hello", "你好"),
        ("EN_gb", "你好 hello", "hello", "你好"),
        ("zh", "你好, hello! Привет", "你好，hello!", "Привет"),
        ("zh-CN", "**你好**，我叫Tom。😊", "你好，我叫Tom。", ""),
        ("zh", "请拨打13812345678。", "请拨打一三八，一二三四，五六七八。", ""),
        ("zh", "价格是￥500，３：３０见！", "价格是¥500, 3:30见！", ""),
        ("zh", "- 一\n- 二", "一，二", ""),
        ("zh", "A&B——你好", "A 和 B，你好", ""),
        ("zh", "见 https://example.com/a", "见 example点com斜杠a", ""),
        ("ja", "「こんにちは」、世界!", "「こんにちは」、世界！", ""),
        ("ko", "안녕하세요 Привет", "안녕하세요", "Привет"),
        ("de", "Größe & Maß: 5 €", "Größe und Maß: 5 €", ""),
        ("de", "www.beispiel.de/hilfe", "beispiel.de/hilfe", ""),
        ("es", "¿Qué? ¡Sí!", "¿Qué? ¡Sí!", ""),
        ("ru", "Привет & hello 你好", "Привет и hello", "你好"),
        ("hi", "नमस्ते दुनिया", "नमस्ते दुनिया", ""),
        ("", "你好 hello Привет", "你好 hello Привет", ""),
        ("qq", "你好 hello Привет", "你好 hello Привет", ""),
    ],
)
def test_other_scripts_are_dropped_and_sampled(language: str, raw: str, text: str, foreign: str) -> None:
    assert normalise(raw, language) == Spoken(text, foreign)


def test_the_sample_of_foreign_words_is_short() -> None:
    assert normalise("你好世界 " * 50, "en").foreign == ("你好世界 " * 8).strip()[:40]


LANGUAGES = ["en", "zh", "de", "ja", "ru", "", "xx"]
MARKS = [
    *"*_`#<>[]()!|&;:\\/-=~.,?'\"@+ \n\t0159aZé你。，😊\u200d\ufe0f\u0301",
    "](",
    "<b>",
    "&amp;",
    "http://",
    ".com",
]


@settings(max_examples=300, deadline=None)
@given(st.text() | st.lists(st.sampled_from(MARKS)).map("".join), st.sampled_from(LANGUAGES))
def test_any_text_gives_clean_text(raw: str, language: str) -> None:
    spoken = normalise(raw, language)
    assert spoken.text == "" or any(char.isalnum() for char in spoken.text)
    assert spoken.text == " ".join(spoken.text.split())
    assert not {unicodedata.category(char) for char in spoken.text if char != "°"} & {"Cc", "Cf", "Cs", "So"}
    assert not set(spoken.text) & set("*`<>[]{}|\\_")
    assert len(spoken.foreign) <= 40
    if language == "en":
        assert all(
            "LATIN" in unicodedata.name(char) for char in spoken.text if char.isalpha() and ord(char) > 591
        )


def test_lone_surrogates_and_every_other_code_point_are_survived() -> None:
    for start in range(0, 0x110000, 0x1000):
        block = " ".join(map(chr, range(start, start + 0x1000)))
        for language in ("en", "zh", ""):
            normalise(block, language)


words = st.sampled_from(
    [
        "Hello",
        "I",
        "don't",
        "café",
        "well-known",
        "it",
        "cost",
        "$1,234.56",
        "9:30",
        "20%",
        "Dr. Smith",
        "(yes)",
        '"no"',
        "and",
    ]
)
prose = st.lists(
    st.tuples(words, st.sampled_from(["", "", "", ",", ".", "?", "!", ";", ":", " —", "..."]))
).map(lambda parts: " ".join(word + mark for word, mark in parts))


@settings(deadline=None)
@given(prose, st.sampled_from(["en", "de", ""]))
def test_plain_prose_comes_back_as_it_is(text: str, language: str) -> None:
    once = normalise(text, language).text
    assert normalise(once, language).text == once
    if not text.endswith("—"):
        assert once == text


@pytest.mark.parametrize("raw", [raw for raw, text in ENGLISH if text and "dot" not in text])
def test_what_is_spoken_stays_as_it_is(raw: str) -> None:
    once = normalise(raw, "en").text
    assert normalise(once, "en").text == once


HOSTILE = [
    *"*<>[]()_-=~`#&|!?.,:;\"'@+/\\ \n10a你é😊—–°\u0301",
    *[
        "](",
        "[a](",
        "<a ",
        "<!--",
        "<|",
        "a@",
        "a.",
        "www.",
        "http://",
        "a/",
        "1 ",
        "1-",
        "+1",
        "(1",
        "&#1",
        "a_",
    ],
    *["- ", "> ", "|a", "-\n", "--a", "A.", "a.m. ", "=-", "[^", "你,", "a -", "1 - "],
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_thirty_thousand_hostile_characters_are_quick(unit: str) -> None:
    text = (unit * 30_000)[:30_000]  # a piece of a turn has at most 300
    for raw in (text, text + "x"):
        start_s = time.process_time()
        normalise(raw, "en")
        assert time.process_time() - start_s < 0.3


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (
            "I answer **in bold** and *softly*, `code` and ~~not~~ this.",
            "I answer in bold and softly, code and not this.",
        ),
        ("5 * 3 is 15, and 5*3 too. **5** *is* odd.", "5 * 3 is 15, and 5*3 too. 5 is odd."),
        (
            "Write to ann_lee@x.example, it costs $20 & more.",
            "Write to ann_lee@x.example, it costs $20 & more.",
        ),
        ("# Lamps\n\n1. Red\n2. Blue", "Lamps. 1. Red, 2. Blue"),
        ("_Well_, see [the list](https://x.example/a).", "Well, see the list."),
        ("Well **bo", "Well bo"),
        ("It is 10:30; ask <b>us</b>!", "It is 10:30; ask us!"),
        ("", ""),
    ],
)
def test_for_a_reader_only_the_markup_goes(written: str, read: str) -> None:
    assert markup.plain(written) == read

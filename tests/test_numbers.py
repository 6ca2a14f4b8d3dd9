"""Numbers, dates, money and abbreviations in words: a golden file, and promises for every text."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_plugin.text.normalise import normalise
from tts_plugin.text.numbers import spell_out
from tts_plugin.text.reading import read

_FILE = Path(__file__).parent / "data" / "spoken_numbers.tsv"
_GOLDEN = [
    line.split("\t") for line in _FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")
]
_DIGIT = re.compile("[0-9]")


@pytest.mark.parametrize(("language", "text", "spoken"), _GOLDEN)
def test_the_golden_file_is_spoken_as_it_says(language: str, text: str, spoken: str) -> None:
    assert spell_out(normalise(text.replace(r"\n", "\n"), language).text, language) == spoken


def test_the_golden_file_covers_both_languages_and_mixed_text() -> None:
    mixed = [text for _, text, _ in _GOLDEN if re.search("[A-Za-z]{2}", text) and re.search("[一-鿿]", text)]
    assert [len([1 for row in _GOLDEN if row[0] == language]) >= 40 for language in ("en", "zh")] == [
        True
    ] * 2
    assert len(mixed) >= 10


@pytest.mark.parametrize(("language", "text", "spoken"), _GOLDEN)
def test_what_was_spelled_out_stays_as_it_is(language: str, text: str, spoken: str) -> None:  # noqa: ARG001
    assert spell_out(spoken, language) == spoken


# what wetext alone reads as something else
@pytest.mark.parametrize(
    ("language", "text", "spoken"),
    [
        ("en", "1000", "one thousand"),
        ("en", "1,500", "one thousand five hundred"),
        ("en", "in 1905", "in nineteen oh five"),
        ("en", "14:00", "fourteen hundred"),
        ("en", "5 m", "five meters"),
        ("en", "the 1990s", "the nineteen nineties"),
        ("en", "World War II.", "World War two."),
        ("en", "He is 5'10\".", "He is five foot ten."),
        ("en", "[5], ₹5", "[five], five rupees"),
        ("zh", "有1,234人", "有一千二百三十四人"),
        ("zh", "约10.10米", "约十点一零米"),
        ("zh", "共12345个，第110页", "共一万二千三百四十五个，第一百一十页"),
        ("zh", "0:05开始", "零点零五分开始"),
        ("zh", "有3 million人", "有三 million人"),
        ("zh", "2次，第2天，2月2日", "两次，第二天，二月二日"),
        ("zh", "10-20%的5mA", "百分之十到百分之二十的五毫安"),
        ("zh", "以3-2获胜", "以三比二获胜"),
        ("zh", "COVID-19", "COVID nineteen"),
    ],
)
def test_what_the_library_reads_wrong_is_read_right(language: str, text: str, spoken: str) -> None:
    assert spell_out(text, language) == spoken


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", ""),
        ("en", "Hello there, world."),
        ("en", '"It\'s fine," she said — well-known and/or half-done; I am (for now) in. No. Please!'),
        ("en", "I met Jan. He and Co-op left; St and etc are words here."),
        ("en", "May I march in? The saint may co-star, p. and no more, at st and dr etc"),
        ("en", "  spaces  stay \n and lines "),
        ("zh", "你好，世界。我有一只猫 和 两只狗！"),
        ("zh", "他说:hello, world.再见"),
        ("", "café naïve Ångström привет"),
        ("de", "Es sind 3 Katzen."),
        ("pt-BR", "R$ 5"),
    ],
)
def test_prose_and_other_languages_come_back_as_they_are(language: str, text: str) -> None:
    assert spell_out(text, language) == text


@pytest.mark.parametrize(
    ("language", "text", "spoken"),
    [
        ("zh-CN", "12:30", "十二点三十分"),
        ("en-US", "12:30", "twelve thirty"),
        ("", "12:30", "twelve thirty"),
        ("", "我有3只猫", "我有三只猫"),
        ("en", "٣ dogs and ５ cats", "three dogs and five cats"),
    ],
)
def test_a_text_of_numbers_alone_follows_the_language(language: str, text: str, spoken: str) -> None:
    assert spell_out(text, language) == spoken


def _generated(count: int) -> list[tuple[str, str]]:
    """Numbers of all kinds in sentences of both languages; the same list every time."""
    draw = random.Random(7)

    def whole() -> str:
        return str(draw.randrange(10 ** draw.randrange(1, 10)))

    kinds: list[Callable[[], str]] = [
        whole,
        lambda: f"{draw.randrange(10**7):,}",
        lambda: f"{draw.uniform(0, 500):.{draw.randrange(1, 4)}f}",
        lambda: f"-{whole()}",
        lambda: f"${draw.uniform(0, 5000):,.2f}",
        lambda: f"{draw.choice('€£¥')}{whole()}",
        lambda: f"{draw.randrange(100)}%",
        lambda: f"{draw.randrange(24)}:{draw.randrange(60):02}",
        lambda: f"{draw.randrange(1900, 2030)}-{draw.randrange(1, 13):02}-{draw.randrange(1, 29):02}",
        lambda: f"{draw.randrange(1, 13)}/{draw.randrange(1, 29)}/{draw.randrange(1900, 2030)}",
        lambda: f"{draw.randrange(1, 20)}/{draw.randrange(2, 20)}",
        lambda: f"{draw.randrange(500)} {draw.choice(['km', 'kg', 'GB', 'km/h', '°C', 'ml', 'W'])}",
        lambda: f"{draw.randrange(50)}-{draw.randrange(50)}",
        lambda: f"{draw.randrange(9)}.{draw.randrange(20)}.{draw.randrange(20)}",
        lambda: f"{draw.choice('ABX')}{draw.randrange(5000)}",
        lambda: f"{draw.randrange(200)}th",
        lambda: f"{draw.randrange(256)}.{draw.randrange(256)}.0.1",
    ]
    frames = [("en", "It was {} then."), ("en", "{}"), ("zh", "这是{}的。"), ("zh", "我在{}，买了iPhone {}")]
    out = []
    for index in range(count):
        language, frame = frames[index % len(frames)]
        kind = kinds[index % len(kinds)]
        out.append((language, frame.format(kind(), kind())))
    return out


def test_no_digit_is_left_of_200_generated_texts() -> None:
    for language, text in _generated(200):
        spoken = spell_out(text, language)
        assert not _DIGIT.search(spoken), (text, spoken)
        assert spoken


_NUMBERISH = st.text(
    alphabet="0123456789.,:/-–~+%$€¥￥°²½'\"#()[]{}<>\\ \n，。：年月日点分个第元两KMkmxXVIthsndrdAPap我有"
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), _NUMBERISH), st.sampled_from(["en", "zh", "", "fr", "zh-TW"]))
def test_no_text_raises_and_no_digit_is_left(text: str, language: str) -> None:
    spoken = spell_out(text, language)
    assert language == "fr" or not _DIGIT.search(spoken)


@settings(max_examples=100, deadline=None)
@given(
    st.text(
        alphabet=st.characters(exclude_categories=["Nd", "Nl", "No"], exclude_characters="."), max_size=40
    )
)
def test_text_without_numbers_keeps_its_characters(text: str) -> None:
    assert spell_out(text.replace("w/", ""), "zh") == text.replace("w/", "")


def test_several_threads_read_the_same() -> None:
    texts = _generated(120)
    alone = [spell_out(text, language) for language, text in texts]
    read.cache_clear()
    with ThreadPoolExecutor(4) as pool:
        runs = [
            pool.submit(lambda: [spell_out(text, language) for language, text in texts]) for _ in range(4)
        ]
        assert all(run.result(timeout=60) == alone for run in runs)


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"On day {day} we sold {day * 37:,} units for ${day * 1.75:.2f}. " for day in range(400)),
        "".join(f"第{day}天我们卖了{day * 37}件，收入￥{day * 1.75:.2f}。" for day in range(600)),
        "1" * 10_000,
        "1," * 5_000,
        "1.0" * 3_334,
        "1/" * 5_000,
        "拨打111、" * 1_700,
        "-" * 10_000,
    ],
    ids=lambda text: text[:12],
)
def test_ten_thousand_characters_take_less_than_two_seconds(text: str) -> None:
    read.cache_clear()
    start = time.perf_counter()
    for language in ("en", "zh"):
        assert not _DIGIT.search(spell_out(text[:10_000], language))
    assert time.perf_counter() - start < 2 * 2


def test_the_library_is_loaded_only_by_those_who_spell_out() -> None:
    code = (
        "import sys, tts_plugin, tts_plugin.text.normalise, tts_plugin.engines.tone\n"
        "assert not {'wetext', 'kaldifst'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parent.parent)

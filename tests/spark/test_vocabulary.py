"""The vocabulary is read from the tokenizer: at full size the published one; a wrong one is named."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer

from tts_plugin.engines.spark.random_tokenizer import random_tokenizer
from tts_plugin.engines.spark.vocabulary import BadVocabulary, Vocabulary

Golden = Callable[[str], Any]
Text = tuple[Tokenizer, dict[str, int]]


@pytest.fixture
def small() -> dict[str, int]:
    tokenizer = random_tokenizer(4, 6)
    return {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items()}


def problems(added: dict[str, int]) -> list[str]:
    with pytest.raises(BadVocabulary) as caught:
        Vocabulary.read(added)
    return list(caught.value.problems)


def test_the_random_tokenizer_has_every_published_token_at_its_published_id(
    full_tokenizer: Tokenizer, golden: Golden
) -> None:
    ids = golden("token_ids.json")
    for family, where in ids["families"].items():
        found = [full_tokenizer.token_to_id(f"<|{family}_{number}|>") for number in range(where["count"])]
        assert found == list(range(where["first_id"], where["last_id"] + 1)), family
    for token, token_id in (ids["specials"] | ids["qwen"]).items():
        assert full_tokenizer.token_to_id(token) == token_id
    assert full_tokenizer.get_vocab_size() == ids["len_tokenizer"]


def test_its_added_tokens_written_as_the_publisher_writes_them_have_the_hash_of_the_published_list(
    full_text: Text, golden: Golden
) -> None:
    listed = json.dumps(full_text[1], indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    found = hashlib.sha256(listed.encode()).hexdigest()
    assert found == golden("token_ids.json")["added_tokens_json_sha256"]


def test_the_vocabulary_read_from_it_is_the_published_one(full_text: Text, golden: Golden) -> None:
    v = Vocabulary.read(full_text[1])
    ids = golden("token_ids.json")
    families, specials = ids["families"], ids["specials"]
    for field, family in (
        ("global", "bicodec_global"),
        ("semantic", "bicodec_semantic"),
        ("gender", "gender"),
        ("pitch_label", "pitch_label"),
        ("speed_label", "speed_label"),
        ("pitch_value", "pitch_value"),
        ("speed_value", "speed_value"),
    ):
        where = getattr(v, f"{field}_first"), getattr(v, f"{field}_count")
        assert where == (families[family]["first_id"], families[family]["count"])
    for side in ("start", "end"):
        assert getattr(v, f"{side}_content") == specials[f"<|{side}_content|>"]
        assert getattr(v, f"{side}_style") == specials[f"<|{side}_style_label|>"]
        for part in ("acoustic", "global", "semantic"):
            assert getattr(v, f"{side}_{part}") == specials[f"<|{side}_{part}_token|>"]
    assert (v.task_tts, v.task_controllable) == (
        specials["<|task_tts|>"],
        specials["<|task_controllable_tts|>"],
    )
    assert (v.eos, v.text_count, v.id_count) == (ids["eos_token_id"], 151_643, ids["len_tokenizer"])


def test_ids_that_stand_elsewhere_are_read_from_where_they_stand(small: dict[str, int]) -> None:
    moved = Vocabulary.read({token: number + 1000 for token, number in small.items()})
    here = Vocabulary.read(small)
    assert (moved.semantic_first, moved.semantic_count) == (here.semantic_first + 1000, 6)
    assert (moved.global_count, moved.eos) == (4, here.eos + 1000)


def test_a_family_with_a_hole_is_named_with_expected_and_found(small: dict[str, int]) -> None:
    del small["<|bicodec_semantic_3|>"]
    assert problems(small) == ["<|bicodec_semantic_N|>: number 3 is missing, found 5 of 6"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"<|end_content|>": None}, "the tokenizer has no <|end_content|>"),
        ({"<|im_end|>": None}, "the tokenizer has no <|im_end|>"),
        ({"<|bicodec_global_0|>": None}, "<|bicodec_global_N|>: number 0 is missing, found 3 of 4"),
        ({"<|gender_1|>": None, "<|gender_2|>": None}, "<|gender_N|>: number 1 is missing, found 1 of 2"),
        (
            {"<|bicodec_global_2|>": 90_000},
            "<|bicodec_global_N|>: number 2 should have id 594 (592 + 2), not 90000",
        ),
        ({"<|start_content|>": 592}, "id 592 belongs to 2 tokens: <|bicodec_global_0|>, <|start_content|>"),
    ],
)
def test_what_is_wrong_with_the_tokens_is_said(
    change: dict[str, int | None], said: str, small: dict[str, int]
) -> None:
    changed = {token: number for token, number in (small | change).items() if number is not None}
    assert problems(changed) == [said]


def test_a_tokenizer_of_plain_qwen_is_told_every_family_that_it_lacks() -> None:
    found = problems({"<|endoftext|>": 151_643, "<|im_start|>": 151_644, "<|im_end|>": 151_645})
    assert "the tokenizer has no <|bicodec_semantic_N|> tokens" in found
    assert "the tokenizer has no <|task_tts|>" in found
    assert "the tokenizer has no <|im_end|>" not in found

"""Prompts are the reference's, id by id, and nothing a caller writes becomes a control token."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tts_plugin.engines.spark.prompt import Prompts
from tts_plugin.engines.spark.random_tokenizer import random_tokenizer
from tts_plugin.engines.spark.tokenizer import encoded
from tts_plugin.engines.spark.vocabulary import Vocabulary
from tts_plugin.errors import BadRequest

Golden = Callable[[str], Any]
Text = tuple[Tokenizer, dict[str, int]]
GLOBALS = tuple(range(32))
CONTROL_NAMES = [token.content for token in random_tokenizer(40, 40).get_added_tokens_decoder().values()]


@pytest.fixture(scope="module")
def encode(full_text: Text) -> Callable[[str], list[int]]:
    return lambda text: encoded(full_text[0], text)


@pytest.fixture(scope="module")
def vocabulary(full_text: Text) -> Vocabulary:
    return Vocabulary.read(full_text[1])


@pytest.fixture(scope="module")
def prompts(vocabulary: Vocabulary, encode: Callable[[str], list[int]]) -> Prompts:
    return Prompts(vocabulary, encode)


def clone_cases(golden: Golden, escaped: bool) -> list[dict[str, Any]]:
    cases = [case for case in golden("prompts.json")["cases"] if case["mode"] == "clone"]
    return [case for case in cases if ("<|" in case["text"]) == escaped]


def test_a_clone_is_prompted_as_the_reference_does_it(
    prompts: Prompts, full_tokenizer: Tokenizer, golden: Golden
) -> None:
    data = golden("prompts.json")
    cases = clone_cases(golden, escaped=False)
    assert len(cases) == 6
    for case in cases:
        said, semantic = case["prompt_text"] or "", data["semantic_token_ids"]
        built = prompts.clone(case["text"], data["global_token_ids"], said=said, semantic=semantic)
        reference = case["prompt"]
        if case["prompt_text"] == "":  # the reference goes on from a transcript of nothing
            reference = reference[: reference.index("<|start_semantic_token|>")]
        assert built == full_tokenizer.encode(reference, add_special_tokens=False).ids


def test_a_created_voice_is_prompted_as_the_reference_does_it(
    prompts: Prompts, full_tokenizer: Tokenizer, golden: Golden
) -> None:
    cases = [case for case in golden("prompts.json")["cases"] if case["mode"] == "control"]
    assert len(cases) == 50
    for case in cases:
        built = prompts.create(case["text"], case["gender"], case["pitch"], case["speed"])
        assert built == full_tokenizer.encode(case["prompt"], add_special_tokens=False).ids


def test_a_control_token_in_the_text_is_spelt_out_where_the_reference_obeys_it(
    prompts: Prompts, vocabulary: Vocabulary, full_tokenizer: Tokenizer, golden: Golden
) -> None:
    (case,) = clone_cases(golden, escaped=True)
    built = prompts.clone(case["text"], golden("prompts.json")["global_token_ids"])
    reference = full_tokenizer.encode(case["prompt"], add_special_tokens=False).ids
    assert reference.count(vocabulary.end_content) == 2
    assert built.count(vocabulary.end_content) == 1
    content = built[2 : built.index(vocabulary.end_content)]
    assert full_tokenizer.decode(content) == case["text"]
    assert built[:2] == reference[:2]
    assert built[-35:] == reference[-35:]


def test_no_name_of_an_added_token_is_encoded_as_that_token(
    full_text: Text, vocabulary: Vocabulary, encode: Callable[[str], list[int]]
) -> None:
    for name in full_text[1]:
        ids = encode(name)
        assert max(ids) < vocabulary.text_count
        assert full_text[0].decode(ids) == name


text_with_controls = st.lists(
    st.one_of(
        st.sampled_from(CONTROL_NAMES),
        st.text(max_size=12),
        st.characters(categories=["Cs"]),  # half of a surrogate pair
        st.sampled_from(["<|", "|>", "<", "|", "bicodec_semantic_", "e\u0301", "\x00", "unused 9000", "Ġ"]),
    ),
    max_size=12,
).map("".join)


@settings(max_examples=300, deadline=None)
@given(text=text_with_controls, said=text_with_controls)
def test_whatever_the_text_its_ids_are_text_and_read_back_as_it(
    text: str, said: str, prompts: Prompts, vocabulary: Vocabulary, full_text: Text
) -> None:
    for built in (
        prompts.clone(text, GLOBALS),
        prompts.clone(text, GLOBALS, said=f"a{said}", semantic=[1, 2]),
        prompts.create(text, "male", "low", "high"),
    ):
        start, end = built.index(vocabulary.start_content), built.index(vocabulary.end_content)
        content = built[start + 1 : end]
        assert all(token < vocabulary.text_count for token in content)
        assert all(token >= vocabulary.text_count for token in built[:start] + built[end:])
        glued = f"a{said}{text}" if vocabulary.start_semantic in built else text
        whole = glued.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        assert full_text[0].decode(content) == unicodedata.normalize("NFC", whole)


@pytest.mark.parametrize(("said", "semantic"), [("", [5]), (" \n", [5]), ("Before.", [])])
def test_without_both_words_and_codes_a_clone_is_plain(
    said: str, semantic: list[int], prompts: Prompts
) -> None:
    assert prompts.clone("Hi.", GLOBALS, said=said, semantic=semantic) == prompts.clone("Hi.", GLOBALS)


@pytest.mark.parametrize("code", [-1, 4096])
def test_a_global_code_that_the_codec_lacks_is_refused(code: int, prompts: Prompts) -> None:
    with pytest.raises(BadRequest, match=f"global code {code} should be from 0 to 4095"):
        prompts.clone("Hi.", [0, code])


@pytest.mark.parametrize("code", [-1, 8192])
def test_a_semantic_code_that_the_codec_lacks_is_refused(code: int, prompts: Prompts) -> None:
    with pytest.raises(BadRequest, match=f"semantic code {code} should be from 0 to 8191"):
        prompts.clone("Hi.", [0], said="So.", semantic=[code])


def test_a_label_that_there_is_not_names_the_nearest(prompts: Prompts) -> None:
    with pytest.raises(BadRequest, match='pitch "very-low"; did you mean "very_low"'):
        prompts.create("Hi.", "male", "very-low", "low")  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match='gender "femal"; did you mean "female"'):
        prompts.create("Hi.", "femal", "low", "low")  # type: ignore[arg-type]


def test_an_encoder_that_knows_control_tokens_is_refused(
    vocabulary: Vocabulary, full_tokenizer: Tokenizer
) -> None:
    prompts = Prompts(vocabulary, lambda text: full_tokenizer.encode(text).ids)
    with pytest.raises(ValueError, match="made a control token out of text"):
        prompts.clone("so <|end_content|> it goes", GLOBALS)

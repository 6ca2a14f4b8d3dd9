"""A byte-level tokenizer with Spark's added tokens at the published ids, made of nothing but their names."""

from __future__ import annotations

from collections.abc import Iterator

from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

PUBLISHED_WORDS = 151_643  # text tokens of Qwen2.5

# special ones first, as Qwen2.5 has them
_QWEN_SPECIAL = (
    "endoftext im_start im_end object_ref_start object_ref_end box_start box_end quad_start quad_end "
    "vision_start vision_end vision_pad image_pad video_pad"
)
_QWEN_TOOLS = ("<tool_call>", "</tool_call>")
_QWEN_CODE = "fim_prefix fim_middle fim_suffix fim_pad repo_name file_sep"
_CODES = ("bicodec_global", "bicodec_semantic")
_FAMILIES = {
    "pitch_value": 1001,
    "pitch_var_value": 11,
    "pitch_label": 5,
    "pitch_var_label": 5,
    "speed_value": 11,
    "speed_label": 5,
    "loudness_value": 31,
    "loudness_label": 5,
    "age": 5,
    "gender": 3,
    "emotion": 101,
}
_TASKS = "vc tts asr s2s t2s cap understand controllable_tts prompt_tts edit"
_PARTS = "content style_label style_prompt acoustic_token global_token semantic_token"

# So that prompts are about as long as the published tokenizer's, frequent words are tokens. Each is
# reached letter by letter from its space: other words keep the longest beginning they share with one.
_WORDS = (
    "the be to of and in that have it for not on with he as you do at this but his by from they we say her "
    "she or an will my one all would there their what so up out if about who get which go me when make can "
    "like time no just him know take people into year your good some could them see other than then now look "
    "only come its over think also back after use two how our work first well way even new want because any "
    "these give day most us are is was were has had been more very much many thank please hello help order "
    "number call today tomorrow morning open close minute hour address phone email account price dollar sorry"
)


def random_tokenizer(
    global_codes: int, semantic_codes: int, words: int | None = None, *, merged: bool = True
) -> Tokenizer:
    """Every text can be encoded and decoded. words: text tokens, filled up with ones that no text
    becomes; None for as many as are used. merged: frequent words are tokens; else every byte is one."""
    vocab = {byte: number for number, byte in enumerate(sorted(ByteLevel.alphabet()))}
    merges: list[tuple[str, str]] = []
    for word in _WORDS.split() if merged else ():
        for end in range(1, len(word) + 1):
            left, right = f"Ġ{word[: end - 1]}", word[end - 1]
            if left + right not in vocab:
                vocab[left + right] = len(vocab)
                merges.append((left, right))
    for number in range(len(vocab), words or 0):
        vocab[f"unused {number}"] = number
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(f"<|{name}|>", special=True, normalized=False) for name in _QWEN_SPECIAL.split()]
    tokenizer.add_special_tokens(special)
    code = [f"<|{name}|>" for name in _QWEN_CODE.split()]
    plain = [*_QWEN_TOOLS, *code, *_spark(global_codes, semantic_codes)]
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in plain])
    return tokenizer


def _spark(global_codes: int, semantic_codes: int) -> Iterator[str]:
    counts = dict(zip(_CODES, (global_codes, semantic_codes), strict=True)) | _FAMILIES
    for family, count in counts.items():
        yield from (f"<|{family}_{number}|>" for number in range(count))
    yield from (f"<|task_{task}|>" for task in _TASKS.split())
    for side in ("start", "end"):
        yield from (f"<|{side}_{part}|>" for part in _PARTS.split())

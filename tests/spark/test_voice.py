"""A Spark voice is 32 codes, a clip inside its folder, or a style; all else is told with file and line."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path

import pytest

from tts_plugin.engine import ENGINES, Sampling
from tts_plugin.engines.spark.bicodec import PUBLISHED
from tts_plugin.engines.spark.voice import (
    GLOBAL_CODES,
    GLOBAL_TOKENS,
    SEMANTIC_CODES,
    Consent,
    SparkVoice,
    Style,
)
from tts_plugin.voices import VoiceRegistry

HEAD = "id: ava\nengine: spark\nlanguage: en\nlicence: CC0-1.0\n"
CODES = tuple(range(100, 132))
INLINE = f"global_tokens: {list(CODES)}\n"


def registry(folder: Path, text: str, name: str = "ava.yaml") -> VoiceRegistry:
    (folder / name).write_text(HEAD + text)
    return VoiceRegistry([folder], ENGINES)


def voice(folder: Path, text: str) -> SparkVoice:
    found = registry(folder, text).get("ava")
    assert isinstance(found, SparkVoice)
    return found


def test_the_numbers_here_are_those_of_the_published_codec() -> None:
    speaker = PUBLISHED.speaker_encoder
    assert (speaker.tokens, speaker.codes) == (GLOBAL_TOKENS, GLOBAL_CODES)
    assert PUBLISHED.quantizer.codebook_size == SEMANTIC_CODES


def test_a_portable_voice_carries_its_codes(tmp_path: Path) -> None:
    text = INLINE + "transcript: Hello.\nsemantic_tokens: [0, 8191]\nspeed: 1.2\n"
    found = voice(tmp_path, text)
    assert found.global_tokens == CODES
    assert (found.transcript, found.semantic_tokens, found.speed) == ("Hello.", (0, 8191), 1.2)
    assert (found.clip, found.create, found.sampling) == (None, None, Sampling())
    assert hash(found) == hash(
        voice(tmp_path, INLINE + "transcript: Hello.\nsemantic_tokens: [0, 8191]\nspeed: 1.2\n")
    )


def test_a_clip_is_named_relative_to_its_file(tmp_path: Path) -> None:
    found = voice(tmp_path, "clip: clips/ava.wav\nconsent: {by: Ava Li, date: 2025-01-31}\nname: Ava\n")
    assert found.clip == tmp_path.resolve() / "clips" / "ava.wav"
    assert found.folder == tmp_path.resolve()
    assert found.consent == Consent("Ava Li", datetime.date(2025, 1, 31))
    assert found.name == "Ava"


def test_a_made_up_voice_has_a_style_and_its_own_sampling(tmp_path: Path) -> None:
    found = voice(tmp_path, "create: {gender: female, pitch: very_high}\nsampling: {top_k: 20}\n")
    assert found.create == Style("female", "very_high", "moderate")
    assert found.sampling == Sampling(top_k=20)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"global_tokens: {list(CODES[:31])}\n", ":5: global_tokens: a voice has 32 of them, not 31"),
        ("global_tokens: []\n", ":5: global_tokens: a voice has 32 of them, not 0"),
        (
            f"global_tokens: {[*CODES[:31]]}\n".replace("]", ",\n  4096]"),
            ":6: global_tokens.31 should be less than 4096, not 4096",
        ),
        (f"global_tokens: {[-1, *CODES[1:]]}\n", ":5: global_tokens.0 should be greater than or equal to 0"),
        (f"global_tokens: {[1.5, *CODES[1:]]}\n", ":5: global_tokens.0 should be a valid integer"),
        ("", ':1: give one of "global_tokens", "clip" and "create"'),
        ("clip: a.wav\n" + INLINE, ':5: "clip" cannot stand beside "global_tokens": give one'),
        ("clip: a.wav\ncreate: {gender: male}\n", ':6: "create" cannot stand beside "clip": give one'),
        ("clip: a.wav\nsemantic_tokens: [1]\n", ':6: "semantic_tokens" belongs to "global_tokens", not to'),
        (INLINE + "semantic_tokens: [1]\n", ':6: "semantic_tokens" needs "transcript"'),
        (
            INLINE + "transcript: a\nsemantic_tokens: [8192]\n",
            ":7: semantic_tokens.0 should be less than 8192, not 8192",
        ),
        (INLINE + "transcript: Hello.\n", ':6: "transcript" needs "clip" or "semantic_tokens"'),
        ("create: {gender: femal}\n", ":5: create.gender should be 'female' or 'male', not \"femal\""),
        (
            "create:\n  gender: male\n  pich: low\n",
            ':7: unknown key "create.pich"; did you mean "pitch"?',
        ),
        ("clip: a.wav\nconsent: {by: Ava}\n", ':6: missing key "consent.date"'),
        ("clip: a.wav\nconsent: {by: Ava, date: 31.1.25}\n", ":6: consent.date should be a valid date"),
        ("clip: a.wav\nsampling: {top_p: 0}\n", ":6: sampling: top_p is 0.0; it should be above 0"),
        (
            "clip: a.wav\nsampling: {temprature: 1}\n",
            ':6: unknown key "sampling.temprature"; did you mean "temperature"?',
        ),
        ("clip: ../a.wav\n", ":5: clip: ../a.wav leads out of the voices folder; put the clip beside"),
        ("clip: /etc/passwd\n", ":5: clip: /etc/passwd leads out of the voices folder"),
        ("clip: link/a.wav\n", ":5: clip: link/a.wav leads out of the voices folder"),
        ("clip: round/a.wav\n", ":5: clip: round/a.wav "),
        ("clip: a.wav\nfolder: /tmp\n", ':6: unknown key "folder" (known: clip, '),
    ],
)
def test_a_mistake_is_told_with_file_and_line(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path.parent)
    (tmp_path / "round").symlink_to(tmp_path / "round")
    problems = [str(problem) for problem in registry(tmp_path, text).problems]
    assert problems
    assert problems[0].startswith(f"{tmp_path / 'ava.yaml'}{complaint}")


def test_a_link_that_stays_inside_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "ava.wav").symlink_to(tmp_path / "clips" / "take-7.wav")
    assert voice(tmp_path, "clip: ava.wav\n").clip == tmp_path.resolve() / "ava.wav"


def test_a_voice_is_read_where_there_is_no_torch_and_no_sound_library(tmp_path: Path) -> None:
    (tmp_path / "ava.yaml").write_text(HEAD + "create: {gender: male}\n")
    code = (
        "import sys; from pathlib import Path; from tts_plugin.voices import VoiceRegistry\n"
        f"print(VoiceRegistry([Path({str(tmp_path)!r})], ['spark']).get('ava').create.gender)\n"
        "print(sorted({'torch', 'transformers', 'soundfile', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "male\n[]\n"

"""A voice is made ready once: computed, kept beside its file, and never trusted when stale."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
import torch

from tests.spark.test_clip import SPEECH, saved
from tts_plugin.engine import ENGINES, Sampling
from tts_plugin.engines.spark.bicodec import TINY, BiCodec
from tts_plugin.engines.spark.bicodec.random_weights import draw
from tts_plugin.engines.spark.bicodec.weights import Stored, Weights
from tts_plugin.engines.spark.checkpoint import Checkpoint
from tts_plugin.engines.spark.lm.hf import HfLM
from tts_plugin.engines.spark.lm.scripted import Script, ScriptedLM
from tts_plugin.engines.spark.speakers import Speakers
from tts_plugin.errors import ConfigError
from tts_plugin.voices import Voice, VoiceRegistry
from tts_plugin.worker import SerialWorker

DATA = Path(__file__).parents[1] / "data"
HEAD = "id: ava\nengine: spark\nlanguage: en\nlicence: CC0-1.0\n"
CLONED, CREATED = HEAD + "clip: ava.wav\n", HEAD + "create: {gender: female}\n"
CODES = list(range(100, 132))
SEMANTIC = "transcript: I have 2.\nsemantic_tokens: [1, 2, 3]\nsampling: {top_k: 7}\n"

New = Callable[..., Speakers]


class CountedCodec(BiCodec):
    encodes = 0

    def encode_global(self, wave: torch.Tensor) -> torch.Tensor:
        self.encodes += 1
        return super().encode_global(wave)


@pytest.fixture(scope="module")
def checkpoint(tiny_model: Path) -> Checkpoint:
    return Checkpoint.open(tiny_model)


@pytest.fixture
def codec() -> CountedCodec:
    weights = Weights(Stored(draw(TINY, seed=3)), torch.float32, torch.device("cpu"))
    return CountedCodec(weights, TINY)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A voices folder with one recording in it."""
    home = tmp_path / "voices"
    home.mkdir()
    shutil.copy(DATA / "librivox_sense_0890.wav", home / "ava.wav")
    return home


@pytest.fixture
async def new(checkpoint: Checkpoint, codec: CountedCodec, tmp_path: Path) -> AsyncIterator[New]:
    """Speakers as a process has them that has just started."""
    worker = SerialWorker("test codec")

    def make(lm: ScriptedLM | HfLM | None = None, revision: str = "", ref_s: float | None = None) -> Speakers:
        used = dataclasses.replace(checkpoint, revision=revision or checkpoint.revision)
        lm = lm or ScriptedLM([Script(())])
        return Speakers(used, codec, lm, worker, ref_s, cache=tmp_path / "cache")

    yield make
    worker.close()


def voice(folder: Path, text: str, name: str = "ava") -> Voice:
    (folder / f"{name}.yaml").write_text(text)
    registry = VoiceRegistry([folder], ENGINES)
    assert registry.problems == ()
    return registry.get(name)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def kept(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "ava.tokens.json").read_text())
    return found


async def test_a_clip_is_enrolled_once_and_its_tokens_are_kept_beside_the_voice(
    folder: Path, new: New, codec: CountedCodec
) -> None:
    ava, speakers = voice(folder, CLONED), new()
    speaker = await speakers.of(ava)
    assert len(speaker.global_tokens) == 32
    assert speaker.d_vector.shape == speakers.anybody().shape
    torch.testing.assert_close(speaker.d_vector, codec.speaker(torch.tensor([speaker.global_tokens]))[0])
    assert (speaker.said, speaker.semantic) == ("", ())
    assert await speakers.of(ava) is speaker
    assert (await new().of(ava)).global_tokens == speaker.global_tokens
    assert codec.encodes == 1
    assert files(folder) == ["ava.tokens.json", "ava.wav", "ava.yaml"]


async def test_first_uses_at_once_are_one_enrolment_even_if_the_first_gives_up(
    folder: Path, new: New, codec: CountedCodec
) -> None:
    ava, speakers = voice(folder, CLONED), new()
    uses = [asyncio.create_task(speakers.of(ava)) for _ in range(5)]
    first, *others = await asyncio.gather(*uses)
    assert all(other is first for other in others)
    assert codec.encodes == 1

    (folder / "ava.tokens.json").unlink()
    speakers = new()
    uses = [asyncio.create_task(speakers.of(ava)) for _ in range(3)]
    await asyncio.sleep(0.001)
    uses[0].cancel()
    assert (await uses[2]).global_tokens == first.global_tokens
    assert await uses[1] is await uses[2]
    with pytest.raises(asyncio.CancelledError):
        await uses[0]


async def test_a_portable_voice_needs_no_encoder_and_writes_nothing(
    folder: Path, new: New, codec: CountedCodec, tmp_path: Path
) -> None:
    speaker = await new().of(voice(folder, HEAD + f"global_tokens: {CODES}\n" + SEMANTIC))
    assert speaker.global_tokens == tuple(CODES)
    assert (speaker.said, speaker.semantic) == ("I have two.", (1, 2, 3))
    assert speaker.sampling == Sampling(top_k=7)
    assert codec.encodes == 0
    assert files(folder) == ["ava.wav", "ava.yaml"]
    assert not (tmp_path / "cache").exists()


async def test_a_changed_voice_or_clip_is_seen_while_running(
    folder: Path, new: New, codec: CountedCodec
) -> None:
    speakers = new()
    old = await speakers.of(voice(folder, CLONED))
    shutil.copy(DATA / "goforward.wav", folder / "ava.wav")
    fresh = await speakers.of(voice(folder, CLONED))
    assert fresh.global_tokens != old.global_tokens
    assert codec.encodes == 2
    inline = await speakers.of(voice(folder, HEAD + f"global_tokens: {CODES}\n"))
    assert inline.global_tokens == tuple(CODES)


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.write_text("{"),
        lambda file: file.write_bytes(b"\xff\xfe"),
        lambda file: file.write_text("[" * 60_000),
        lambda file: file.write_text(file.read_text().replace('"tokens"', '"tokns"')),
        lambda file: file.write_text(file.read_text().replace('"codec": "', '"codec": "0')),
        lambda file: file.write_text(file.read_text().replace('"source": "', '"source": "0')),
        lambda file: file.write_text(file.read_text().replace('"ref_s": 6.0', '"ref_s": 5.0')),
        lambda file: file.write_text(file.read_text().replace('"transcribed": false', '"transcribed": true')),
        lambda file: file.write_text(json.dumps(_with(file, CODES[:31]))),
        lambda file: file.write_text(json.dumps(_with(file, [*CODES[:31], 4096]))),
        lambda file: file.write_text(json.dumps(_with(file, [*CODES[:31], "7"]))),
    ],
)
async def test_a_broken_or_stale_token_file_is_made_anew(
    folder: Path, new: New, codec: CountedCodec, change: Callable[[Path], object]
) -> None:
    ava = voice(folder, CLONED)
    speaker = await new().of(ava)
    before = kept(folder)
    change(folder / "ava.tokens.json")
    assert (await new().of(ava)).global_tokens == speaker.global_tokens
    assert codec.encodes == 2
    assert kept(folder) == before


def _with(file: Path, codes: Sequence[object]) -> dict[str, object]:
    stored: dict[str, object] = json.loads(file.read_text())
    return stored | {"tokens": {"global_tokens": codes, "semantic_tokens": []}}


async def test_another_codec_or_another_length_of_reference_enrols_anew(
    folder: Path, new: New, codec: CountedCodec
) -> None:
    ava = voice(folder, CLONED)
    await new().of(ava)
    await new(revision="another").of(ava)
    await new(revision="another", ref_s=3).of(ava)
    assert codec.encodes == 3
    await new(revision="another", ref_s=3).of(ava)
    assert codec.encodes == 3


async def test_where_nothing_can_be_written_beside_the_voice_the_users_cache_is_used(
    folder: Path, new: New, codec: CountedCodec, tmp_path: Path
) -> None:
    (folder / "ava.tokens.json").mkdir()  # root can write into any folder, but not over one
    ava = voice(folder, CLONED)
    speaker = await new().of(ava)
    assert len(list((tmp_path / "cache" / "voices").rglob("ava.tokens.json"))) == 1
    assert (await new().of(ava)).global_tokens == speaker.global_tokens
    assert codec.encodes == 1
    assert not [name for name in files(folder) if name.startswith(".")]


async def test_a_voice_whose_tokens_can_be_kept_nowhere_works_and_it_is_logged(
    folder: Path, new: New, codec: CountedCodec, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "ava.tokens.json").mkdir()
    (tmp_path / "cache").write_text("a file")
    ava, speakers = voice(folder, CLONED), new()
    assert await speakers.of(ava) is await speakers.of(ava)
    assert codec.encodes == 1
    assert "cannot be kept" in caplog.text


async def test_a_made_up_speaker_is_drawn_once_by_the_id_and_stays_the_same(
    folder: Path, new: New, checkpoint: Checkpoint, codec: CountedCodec
) -> None:
    lm = HfLM.open(checkpoint.path, checkpoint.vocabulary)
    try:
        ava = voice(folder, CREATED)
        drawn = (await new(lm).of(ava)).global_tokens
        steps = lm.steps
        assert (await new(lm).of(ava)).global_tokens == drawn
        assert (await new(revision=checkpoint.revision).of(ava)).global_tokens == drawn  # with no LM at all
        assert lm.steps == steps

        (folder / "ava.tokens.json").unlink()
        assert (await new(lm).of(ava)).global_tokens == drawn
        ben = voice(folder, CREATED.replace("ava", "ben"), "ben")
        assert (await new(lm).of(ben)).global_tokens != drawn
        male = voice(folder, CREATED.replace("female", "male"))
        assert (await new(lm).of(male)).global_tokens != drawn
    finally:
        await lm.aclose()
    assert codec.encodes == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + "clip: eva.wav\n", 'voice "ava": .*eva.wav cannot be read: No such file'),
        (HEAD + "clip: short.wav\n", 'voice "ava": .*short.wav is too short: 0.10 s'),
        (HEAD + "clip: ava.yaml\n", 'voice "ava": .*ava.yaml cannot be read as sound'),
        (
            CLONED + "transcript: Unless.\n",
            "sparkvoice model fetch .* --transcripts; or leave the",
        ),
    ],
)
async def test_a_voice_that_cannot_be_used_says_why_and_leaves_nothing(
    folder: Path, new: New, text: str, words: str
) -> None:
    saved(folder, SPEECH[:1600], "short.wav")
    ava, speakers = voice(folder, text), new()
    for _ in range(2):
        with pytest.raises(ConfigError, match=words):
            await speakers.of(ava)
    assert files(folder) == ["ava.wav", "ava.yaml", "short.wav"]


async def test_a_clip_that_became_a_link_out_of_the_folder_is_refused(folder: Path, new: New) -> None:
    ava, speakers = voice(folder, CLONED), new()
    await speakers.of(ava)
    (folder / "ava.wav").unlink()
    (folder / "ava.wav").symlink_to(DATA / "goforward.wav")
    with pytest.raises(ConfigError, match="leads out of the voices folder"):
        await speakers.of(ava)


async def test_a_voice_of_another_engine_is_told_so(new: New) -> None:
    with pytest.raises(ConfigError, match='voice "ava" has no tokens'):
        await new().of(Voice("ava", "tone", "en", "CC0-1.0"))

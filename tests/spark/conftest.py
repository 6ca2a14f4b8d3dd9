"""A model directory of random weights, written once, and the tokenizer of the published size."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from tests.spark.codecs import loaded_once
from tts_plugin.engines.spark.random_model import write_model
from tts_plugin.engines.spark.random_tokenizer import PUBLISHED_WORDS, random_tokenizer
from tts_plugin.engines.spark.tokenizer import read_tokenizer

DATA = Path(__file__).parents[1] / "data" / "spark"


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """The networks are tiny, and threads that wait for each other are slow on a busy box."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """To be read only: a test that changes it takes `model`."""
    folder = tmp_path_factory.mktemp("spark") / "tiny"
    write_model(folder)
    return folder


@pytest.fixture(autouse=True, scope="session")
def one_codec(tiny_model: Path) -> Iterator[None]:
    with loaded_once(tiny_model):
        yield


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that the test may break."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


@pytest.fixture(scope="session")
def full_tokenizer() -> Tokenizer:
    """As large as the published one, knowing its added tokens."""
    return random_tokenizer(4096, 8192, PUBLISHED_WORDS)


@pytest.fixture(scope="session")
def full_text(
    full_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, dict[str, int]]:
    """The same as a checkpoint reads it: without added tokens, and those."""
    path = tmp_path_factory.mktemp("spark") / "tokenizer.json"
    full_tokenizer.save(str(path), pretty=False)
    return read_tokenizer(path)


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Any]:
    return lambda name: json.loads((DATA / name).read_text(encoding="utf-8"))

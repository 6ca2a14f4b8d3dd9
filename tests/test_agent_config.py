"""The agent's settings: what wins, and what a mistake is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent.config import AgentSettings, LlmSettings, load_settings
from tts_plugin.config import bundled, read_config
from tts_plugin.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    path = folder / "deployment.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_argument_beats_the_environment_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    path = write(tmp_path, "agent:\n  voice: emma\n  endpointing_s: 0.3\n")
    env = {"SPARKVOICE_VOICE": "ava"}
    assert load_settings(path, environ={}).agent.voice == "emma"
    assert load_settings(path, environ=env).agent.voice == "ava"
    assert load_settings(path, environ=env, arguments={"voice": "ben"}).agent.voice == "ben"
    assert load_settings(path, environ=env).agent.endpointing_s == 0.3
    assert load_settings(path, environ={}).agent.echo_guard


def test_the_bundled_file_shows_every_setting_and_holds_exactly_the_defaults() -> None:
    assert read_config().part("agent").data.keys() == AgentSettings.model_fields.keys()
    settings = load_settings(environ={})
    assert settings.agent == AgentSettings()
    assert settings.llm is None


def test_an_unknown_key_names_file_line_and_the_nearest_key(tmp_path: Path) -> None:
    path = write(tmp_path, "engine: {}\nagent:\n  greetings: Hi\n")
    with pytest.raises(ConfigError, match=r'deployment\.yaml:3: unknown key "agent\.greetings".*"greeting"'):
        load_settings(path, environ={})


def test_an_unknown_section_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'unknown key "agents".*did you mean "agent"'):
        load_settings(write(tmp_path, "agents: {}\n"), environ={})


def test_an_unknown_phone_key_is_not_ignored(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'unknown key "phone\.prot"'):
        load_settings(write(tmp_path, "phone:\n  prot: 5060\n"), environ={})


def test_a_key_of_the_desk_that_is_not_known_names_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path, "phone:\n  desk:\n    keys:\n      '2': {langage: sv}\n")
    with pytest.raises(ConfigError, match=r'yaml:4: unknown key .*did you mean "language"'):
        load_settings(path, environ={})


@pytest.mark.parametrize("key", ["faq", "ears_model"])
def test_what_a_language_of_the_desk_lacks_is_said_at_the_start(key: str, tmp_path: Path) -> None:
    text = "phone:\n  desk:\n    languages:\n      sv:\n        greeting: Hej\n        %s: no.yaml\n"
    path = write(tmp_path, text % key)
    with pytest.raises(
        ConfigError, match=rf"yaml:6: phone\.desk\.languages\.sv\.{key}: there is no f(ile|older) "
    ):
        load_settings(path, environ={})


def test_a_value_out_of_range_says_which_layer_it_came_from(tmp_path: Path) -> None:
    path = write(tmp_path, "agent: {}\n")
    with pytest.raises(ConfigError, match=r"arguments: agent\.min_silence_s"):
        load_settings(path, environ={}, arguments={"min_silence_s": 9.0})


def test_a_path_in_a_file_is_meant_from_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "agent:\n  faq: answers.yaml\n  ears_model: ~/whisper\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "answers.yaml").touch()
    (tmp_path / "home" / "whisper").mkdir(parents=True)
    settings = load_settings(path, environ={}).agent
    assert settings.faq == tmp_path / "answers.yaml"
    assert settings.ears_model == tmp_path / "home" / "whisper"


def test_a_path_that_leads_nowhere_is_said_with_its_file_line_and_key_or_its_layer(tmp_path: Path) -> None:
    path = write(tmp_path, "agent:\n  voice: tone\n  faq: nofaq.yaml\n")
    with pytest.raises(ConfigError, match=r"deployment\.yaml:3: agent\.faq: there is no file .*nofaq\.yaml"):
        load_settings(path, environ={})
    with pytest.raises(
        ConfigError, match=r"^SPARKVOICE_\* environment: agent\.faq: there is no file gone\.yaml"
    ):
        load_settings(path, environ={"SPARKVOICE_FAQ": "gone.yaml"})
    with pytest.raises(ConfigError, match=r"^arguments: agent\.ears_model: there is no folder gone"):
        load_settings(environ={}, arguments={"ears_model": "gone"})
    (tmp_path / "real.yaml").touch()
    assert load_settings(path, environ={"SPARKVOICE_FAQ": str(tmp_path / "real.yaml")}).agent.faq


def test_the_bundled_file_names_every_environment_variable() -> None:
    shown = (bundled("configs") / "default.yaml").read_text(encoding="utf-8")
    for name in (
        *("SPARKVOICE_URL", "SPARKVOICE_TOKEN", "SPARKVOICE_VOICE", "SPARKVOICE_VOICES", "SPARKVOICE_FAQ"),
        *("SPARKVOICE_EARS_MODEL", "OPENAI_API_KEY", "LLM_BASE_URL", "LLM_MODEL"),
    ):
        assert re.search(rf"\b{name}\b", shown), name


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, None),
        ({"LLM_MODEL": "large"}, None),
        ({"OPENAI_API_KEY": "sk-1"}, LlmSettings("gpt-4.1-mini", None, "sk-1")),
        (
            {"LLM_BASE_URL": "http://127.0.0.1:11434/v1", "LLM_MODEL": "qwen"},
            LlmSettings("qwen", "http://127.0.0.1:11434/v1", "none"),
        ),
    ],
)
def test_a_key_or_an_url_asks_for_a_language_model(env: dict[str, str], expected: LlmSettings | None) -> None:
    assert load_settings(environ=env).llm == expected


def test_the_key_is_never_shown() -> None:
    assert "sk-1" not in repr(load_settings(environ={"OPENAI_API_KEY": "sk-1"}))

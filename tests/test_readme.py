"""Every code block of the README works as it stands there."""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from livekit.agents import Agent, AgentSession

from tests.fakes_livekit import handset
from tts_plugin.cli import COMMANDS, main
from tts_plugin.engine import ENGINES
from tts_plugin.voices import VoiceRegistry

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.strip()]
    return [shlex.split(line, comments=True) for line in lines]


def test_the_first_screen_holds_the_two_commands_then_livekit_then_a_voice() -> None:
    first = README.splitlines()[:60]
    order = [
        next(number for number, line in enumerate(first) if wanted in line)
        for wanted in ("make call", "make test", "AgentSession(", "engine: hibari")
    ]
    assert order == sorted(order)


@pytest.mark.parametrize("command", [words for words in commands() if words[0] == "make"], ids=" ".join)
def test_make_knows_the_target(command: list[str]) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert command[1] in targets


@pytest.mark.parametrize("command", [words for words in commands() if words[0] == "sparkvoice"], ids=" ".join)
def test_the_command_exists_and_takes_these_options(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = next(name for name in COMMANDS if command[1:][: len(name.split())] == name.split())
    if name == "voices list" or (name == "say" and "--voice" not in command):
        assert main(command[1:]) == 0
        return
    assert main([*command[1:], "--help"]) == 0  # it would run on, so its help is asked
    told = capsys.readouterr().out
    assert all(option in told for option in command if option.startswith("--"))


def test_the_voice_is_one(tmp_path: Path) -> None:
    (block,) = blocks("yaml")
    assert yaml.safe_load(block)["id"] == "reception"
    (tmp_path / "reception.yaml").write_text(block)
    registry = VoiceRegistry([tmp_path], ENGINES)
    assert registry.problems == ()
    assert registry.get("reception").speed == 1.5


async def test_the_livekit_example_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = blocks("python")
    names: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), names)
    sessions: list[AgentSession[None]] = []
    start_in_a_room = AgentSession.start

    async with handset() as far_end:

        async def start_on_a_handset(session: AgentSession[None], agent: Agent, *, room: str) -> None:
            assert room == "the room"
            sessions.append(session)
            session.output.audio = far_end.output
            await start_in_a_room(session, agent, record=False)

        monkeypatch.setattr(AgentSession, "start", start_on_a_handset)
        await names["entrypoint"](SimpleNamespace(room="the room"))
        assert far_end.sounding_s > 1.0
        await sessions[0].aclose()
        for part in (sessions[0].tts, sessions[0].stt):
            assert part is not None
            await part.aclose()

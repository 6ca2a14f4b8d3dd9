"""The command line: what it writes, and one clear line with exit code 2 for whatever it cannot use."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
import wave
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from urllib.request import urlopen

import numpy as np
import pytest
import soundfile

import tts_plugin
from tts_plugin.audio import samples_of
from tts_plugin.cli import COMMANDS, Command, main
from tts_plugin.errors import SynthesisFailed

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("VOICE", "VOICES", "TOKEN", "URL"):
        monkeypatch.delenv(f"SPARKVOICE_{name}", raising=False)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """Run a command that must fail with code 2, one line on stderr and no file left; the line."""

    def run(*argv: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        assert main(argv) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.endswith("\n")
        assert err.count("\n") == 1
        assert sorted(tmp_path.rglob("*")) == before
        return err

    return run


def process(*argv: str, **options: object) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([sys.executable, "-m", "tts_plugin.cli", *argv], env=env, **pipes)  # type: ignore[call-overload, no-any-return]


def samples(path: str = "out.wav") -> tuple[int, np.ndarray[tuple[int], np.dtype[np.int16]]]:
    with wave.open(path, "rb") as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
        return file.getframerate(), samples_of(file.readframes(file.getnframes()))


# --- say


def test_say_writes_a_wav_file_and_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["say", "Hello there.", "--voice", "tone"]) == 0
    rate, pcm = samples()
    assert rate == 24_000
    assert len(pcm) > rate / 4
    assert np.abs(pcm).max() > 3000
    out, err = capsys.readouterr()
    assert out.startswith("out.wav: ")
    assert (out.count("\n"), err) == (1, "")
    assert [path.name for path in Path().iterdir()] == ["out.wav"]


def test_say_json_is_one_object_that_agrees_with_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["say", "Hello there.", "--voice", "tone", "--rate", "16000", "--out", "a.wav", "--json"]) == 0
    )
    report = json.loads(capsys.readouterr().out)
    rate, pcm = samples("a.wav")
    assert (report["voice"], report["engine"], report["rate"], report["out"]) == (
        "tone",
        "tone",
        16_000,
        "a.wav",
    )
    assert rate == 16_000
    assert report["audio_s"] == pytest.approx(len(pcm) / rate, abs=0.01)
    assert 0 <= report["first_frame_ms"] <= report["total_ms"]
    assert report["rtf"] > 0


def test_say_speaks_with_the_default_voice_and_the_same_seed_gives_the_same_file() -> None:
    for out in ("a.wav", "b.wav"):
        assert main(["say", "Good morning.", "--seed", "7", "--out", out]) == 0
    assert main(["say", "Good morning.", "--seed", "8", "--out", "c.wav"]) == 0
    assert Path("a.wav").read_bytes() == Path("b.wav").read_bytes()
    assert Path("a.wav").read_bytes() != Path("c.wav").read_bytes()


def test_say_at_twice_the_speed_takes_half_as_long() -> None:
    assert main(["say", "Hello there.", "--voice", "tone", "--out", "a.wav"]) == 0
    assert main(["say", "Hello there.", "--voice", "tone", "--out", "b.wav", "--speed", "2"]) == 0
    assert len(samples("b.wav")[1]) == pytest.approx(len(samples("a.wav")[1]) / 2, rel=0.01)


def test_say_reads_standard_input_and_writes_standard_output() -> None:
    with process("say", "-", "--voice", "tone", "--out", "-", "--json") as child:
        out, err = child.communicate("Grüße, Jürgen.".encode(), timeout=60)
    assert child.returncode == 0
    data, rate = soundfile.read(io.BytesIO(out), dtype="int16")
    assert rate == 24_000
    assert len(data) / rate == pytest.approx(json.loads(err)["audio_s"], abs=0.01)


def test_say_replaces_a_file_whole_and_writes_through_a_link() -> None:
    Path("real.wav").write_text("old")
    Path("link.wav").symlink_to("real.wav")
    assert main(["say", "Hello.", "--voice", "tone", "--out", "link.wav"]) == 0
    assert Path("link.wav").is_symlink()
    assert len(samples("real.wav")[1]) > 0


def test_say_leaves_devices_alone() -> None:
    assert main(["say", "Hello.", "--voice", "tone", "--out", "/dev/null"]) == 0
    assert Path("/dev/null").is_char_device()


def test_say_uses_the_voice_of_the_config_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.yaml").write_text("engine:\n  voice: tone\n  tone:\n    rate: 8000\n")
    assert main(["say", "Hello.", "--config", "c.yaml", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["voice"], report["rate"]) == ("tone", 8000)


def test_say_speaks_what_it_can_and_names_what_it_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["say", "Hello 你好 there."]) == 0
    assert 'left out what hibari cannot read: "你好' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([""], "nothing to speak: the text is empty"),
        ([" \n\t "], "nothing to speak: the text is empty"),
        (["..."], "nothing to speak"),
        (["**"], "nothing to speak"),
        (["\x00"], "nothing to speak"),
        (["😀"], "nothing to speak"),
        (["\udcff"], "the text is not UTF-8"),
        (["x" * 100_001], "the text is longer than 100000 characters"),
        (["你好，世界。"], 'voice "hibari" speaks en-US'),
        (["Hi.", "--voice", "hibary"], 'no voice "hibary"; did you mean "hibari"?'),
        (["Hi.", "--rate", "123"], '--rate: "123" should be a whole number from 8000 to 48000'),
        (["Hi.", "--rate", "fast"], '--rate: "fast" should be a whole number'),
        (["Hi.", "--seed", "-1"], '--seed: "-1" should be a whole number from 0'),
        (["Hi.", "--speed", "nan"], '--speed: "nan" should be a number from 0.5 to 2.0'),
        (["Hi.", "--out", "none/x.wav"], "cannot write none/x.wav: No such file or directory"),
        (["Hi.", "--out", "."], "cannot write .: it is a folder"),
        (["Hi.", "--out", "x.mp3"], '--out: "x.mp3" should end in .wav, or be "-" for standard output'),
        (["Hi.", "--out", "x" * 300], "File name too long"),
        (["Hi.", "--config", "none.yaml"], "none.yaml: cannot be read: No such file or directory"),
        (["Hi.", "--voise", "tone"], "unrecognized arguments: --voise tone"),
        ([], "the following arguments are required: TEXT"),
    ],
)
def test_say_refuses_what_it_cannot_use(refused: Callable[..., str], argv: list[str], said: str) -> None:
    assert said in refused("say", *argv)


def test_say_refuses_a_file_that_links_to_itself_and_leaves_it(refused: Callable[..., str]) -> None:
    Path("loop").symlink_to("loop")
    assert "Too many levels of symbolic links" in refused("say", "Hi.", "--voice", "tone", "--out", "loop")
    assert os.listdir() == ["loop"]


def test_say_takes_the_longest_name_a_file_may_have() -> None:
    name = "x" * 251 + ".wav"
    assert main(["say", "Hi.", "--voice", "tone", "--out", name]) == 0
    assert os.listdir() == [name]


def test_a_closed_standard_input_or_output_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for stream, argv, code, said in (
        ("stdin", ["say", "-"], 2, "sparkvoice: standard input is closed\n"),
        ("stdout", ["say", "Hi.", "--out", "-"], 2, "sparkvoice: standard output is closed\n"),
        ("stdout", ["voices", "list"], 0, ""),
    ):
        monkeypatch.setattr(sys, stream, None)  # as Python itself has it then
        assert main(argv) == code
        assert capsys.readouterr().err == said
        monkeypatch.undo()


def test_say_refuses_input_that_is_not_utf8() -> None:
    with process("say", "-", "--voice", "tone") as child:
        out, err = child.communicate(b"caf\xe9", timeout=60)
    assert (child.returncode, out, err) == (2, b"", b"sparkvoice: the text is not UTF-8\n")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_say_refuses_a_folder_it_may_not_write_to(refused: Callable[..., str]) -> None:
    Path("shut").mkdir(mode=0o500)
    assert "Permission denied" in refused("say", "Hi.", "--voice", "tone", "--out", "shut/x.wav")


def test_a_failed_say_leaves_the_old_file_as_it_was(refused: Callable[..., str]) -> None:
    Path("out.wav").write_text("precious")
    refused("say", "...", "--voice", "tone")
    assert Path("out.wav").read_text() == "precious"


def test_an_interrupted_say_ends_quietly_with_130_and_leaves_no_file(tmp_path: Path) -> None:
    Path("slow.yaml").write_text("engine:\n  tone:\n    rate: 8000\n    seconds_per_char: 1.0\n")
    with process("say", "word " * 15_000, "--voice", "tone", "--config", "slow.yaml") as child:
        deadline_s = time.monotonic() + 30
        while not list(tmp_path.glob(".out.wav.*.part")):  # it has begun to write
            assert child.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30)
    assert (child.returncode, out, err) == (130, b"", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["slow.yaml"]


# --- voices


def test_voices_list_marks_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["voices", "list"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["*", "hibari", "en-US", "hibari", "Apache-2.0", "Hibari"]
    assert second.split() == ["tone", "any", "tone", "Apache-2.0", "Tone"]


def test_voices_list_json_tells_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["voices", "list", "--json"]) == 0
    hibari, tone = json.loads(capsys.readouterr().out)
    assert (hibari["id"], hibari["default"], tone["default"]) == ("hibari", True, False)
    assert hibari.keys() == {
        *(
            "id",
            "name",
            "engine",
            "language",
            "licence",
            "description",
            "credit",
            "speed",
            "offered",
            "default",
        )
    }


def test_voices_check_is_content_with_what_is_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["voices", "check"]) == 0
    assert capsys.readouterr().out == "2 voices, no problems\n"


def test_voices_check_lists_every_problem_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    Path("voices").mkdir()
    Path("voices/ava.yaml").write_text("id: ava\nengine: tome\n")
    Path("voices/ben.yaml").write_text("id: ben\nengine: tone\nlanguage: en\nlicense: MIT\n")
    assert main(["voices", "check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith('voices/ava.yaml:2: unknown engine "tome"; did you mean "tone"?')
    assert lines[1].startswith('voices/ben.yaml:4: unknown key "license"; did you mean "licence"?')
    assert lines[-1] == "2 voices, 3 problems"

    assert main(["voices", "check", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["voices"] == ["hibari", "tone"]
    assert report["problems"][0].keys() == {"file", "line", "message"}
    assert (report["problems"][0]["file"], report["problems"][0]["line"]) == ("voices/ava.yaml", 2)

    assert main(["voices", "list"]) == 0
    assert "3 problems, see: sparkvoice voices check" in capsys.readouterr().err


def test_voices_check_finds_a_default_voice_that_is_not_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKVOICE_VOICE", "hibary")
    assert main(["voices", "check"]) == 1
    assert 'default voice: no voice "hibary"; did you mean "hibari"?' in capsys.readouterr().out


# --- serve


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--host", "0.0.0.0"], "server.host 0.0.0.0 can be reached from outside: set SPARKVOICE_TOKEN"),
        (["--port", "70000"], '--port: "70000" should be a whole number from 0 to 65535'),
        (["--config", "none.yaml"], "none.yaml: cannot be read"),
    ],
)
def test_serve_refuses_what_it_cannot_use(refused: Callable[..., str], argv: list[str], said: str) -> None:
    assert said in refused("serve", *argv)


def test_serve_names_the_port_that_is_in_use(refused: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} of 127.0.0.1: Address already in use" in refused("serve", "--port", str(port))


def test_serve_listens_says_where_and_ends_when_told_to() -> None:
    with process("serve", "--port", "0") as child:
        assert child.stderr is not None
        line = child.stderr.readline().decode()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert found, line
        with urlopen(f"{found[0]}/healthz", timeout=10) as answer:
            assert answer.status == 200
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=30)
    assert child.returncode == 0


# --- the frame


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["sya"], 'no command "sya"; did you mean "say"?'),
        (["sya", "hi"], 'no command "sya"; did you mean "say"?'),
        (["sya", "--voice", "tone"], 'no command "sya"; did you mean "say"?'),
        (["voice", "list"], 'no command "voice"; did you mean "voices"?'),
        (["voices"], "which one: voices list, voices check, voices enroll?"),
        (["voices", "chekc"], 'no command "voices chekc"; did you mean "voices check"?'),
        (
            ["bench"],
            "which one: bench fidelity, bench latency, bench sharing, bench concurrency, bench capacity, "
            "bench turn, bench calls, bench bargein?",
        ),
    ],
)
def test_an_unknown_command_names_the_nearest(
    refused: Callable[..., str], argv: list[str], said: str
) -> None:
    assert said in refused(*argv)


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert f"  {name} " in out
        assert command.summary in out
    assert main([]) == 2


@pytest.mark.parametrize("group", ["voices", "bench"])
def test_the_help_of_a_group_lists_its_commands_and_no_others(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([group, "--help"]) == 0
    out = capsys.readouterr().out
    for name in COMMANDS:
        assert (f"  {name} " in out) == name.startswith(group)


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"sparkvoice {tts_plugin.__version__}\n"


def test_the_help_of_say_tells_where_it_writes_and_that_it_replaces(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["say", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "default: out.wav" in out
    assert "replaced" in out


def test_a_module_that_is_not_installed_is_named_with_the_extra_that_brings_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    commands = {"call": Command("no_such_module_here.cli:call", "", "agent")}
    assert main(["call"], commands) == 2
    assert capsys.readouterr().err == (
        "sparkvoice: call needs the module no_such_module_here, not installed here:"
        ' pip install "sparkvoice[agent]"\n'
    )


@pytest.mark.parametrize(
    "name", ["call", "phone", "bench latency", "bench turn", "bench calls", "bench bargein"]
)
def test_without_livekit_a_command_that_needs_it_is_one_line_that_says_what_to_install(
    name: str, tmp_path: Path
) -> None:
    hide = tmp_path / "hide.py"  # a real process, since this one has LiveKit loaded
    hide.write_text(
        "import sys\nsys.modules['livekit'] = None\n"
        "from tts_plugin.cli import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    told = subprocess.run(
        [sys.executable, hide, *name.split()],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (told.returncode, told.stdout) == (2, "")
    extras = COMMANDS[name].extra
    assert told.stderr.startswith(f"sparkvoice: {name} needs the module livekit")
    assert told.stderr.endswith(f'pip install "sparkvoice[{extras}]"\n')
    assert told.stderr.count("\n") == 1


def test_the_plugin_without_livekit_is_an_import_error_that_says_what_to_install() -> None:
    code = "import sys\nsys.modules['livekit'] = None\nfrom tts_plugin import TTS\n"
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    last = told.stderr.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: tts_plugin.TTS needs livekit-agents")
    assert 'pip install "sparkvoice[livekit]"' in last


def test_every_extra_that_a_command_names_is_one() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for command in COMMANDS.values():
        assert set(filter(None, command.extra.split(","))) <= known.keys()


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Callable[[list[str]], int | None]], dict[str, Command]]:
    def table(run: Callable[[list[str]], int | None]) -> dict[str, Command]:
        module = ModuleType("a_module_of_commands")
        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return {"go on": Command("a_module_of_commands:run", "")}

    return table


def test_a_command_gets_its_own_arguments_and_sets_the_exit_code(
    command: Callable[[Callable[[list[str]], int | None]], dict[str, Command]],
) -> None:
    seen: list[list[str]] = []

    def run(argv: list[str]) -> int | None:
        seen.append(argv)
        return 1 if argv else None

    assert main(["go", "on"], command(run)) == 0
    assert main(["go", "on", "--fast", "x"], command(run)) == 1
    assert seen == [[], ["--fast", "x"]]


def test_an_engine_that_fails_is_1_and_an_interrupt_130(
    command: Callable[[Callable[[list[str]], int | None]], dict[str, Command]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(argv: list[str]) -> int:
        raise KeyboardInterrupt if argv else SynthesisFailed("the engine failed")

    assert main(["go", "on"], command(fail)) == 1
    assert capsys.readouterr().err == "sparkvoice: the engine failed\n"
    assert main(["go", "on", "x"], command(fail)) == 130
    assert capsys.readouterr().err == ""


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    with process("voices", "list", "--json") as child:
        assert child.stdout is not None
        child.stdout.close()
        assert child.stderr is not None
        assert child.stderr.read() == b""
        assert child.wait(timeout=30) == 141

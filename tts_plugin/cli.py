"""The `sparkvoice` command: its table of commands, the frame around them, and those too small for a file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, cast

from tts_plugin import __version__
from tts_plugin.arguments import BAD_INPUT, Parser, whole_number
from tts_plugin.config import load_settings
from tts_plugin.engine import ENGINES
from tts_plugin.errors import (
    NotInstalled,
    Overloaded,
    SynthesisFailed,
    TTSError,
    VoiceNotFound,
    did_you_mean,
)
from tts_plugin.strict_yaml import Problem
from tts_plugin.voices import described, open_registry

OK, FAILED, INTERRUPTED, PIPE_CLOSED = 0, 1, 130, 141  # the last two as shells count signals

_HELP = ("-h", "--help")

Run = Callable[[list[str]], int | None]  # a command: its own arguments in, exit code out (None = OK)


class Command(NamedTuple):
    """where: "module:function" of a Run, imported on use. extra: all of this distribution that it needs."""

    where: str
    summary: str
    extra: str = ""


COMMANDS: dict[str, Command] = {
    "say": Command("tts_plugin.say:main", "speak a text into a WAV file"),
    "voices list": Command("tts_plugin.cli:list_voices", "the voices there are"),
    "voices check": Command("tts_plugin.cli:check_voices", "what is wrong in the voice files"),
    "voices enroll": Command("tts_plugin.engines.spark.new_voice:main", "a voice from a recording", "spark"),
    "model fetch": Command("tts_plugin.engines.spark.fetch:main", "download the Spark-TTS model", "spark"),
    "model check": Command("tts_plugin.engines.spark.check:main", "what is wrong with a model", "spark"),
    "model convert": Command(
        "tts_plugin.engines.spark.convert:main", "make one ready for OpenVINO", "spark,openvino"
    ),
    "model random": Command("tts_plugin.engines.spark.random_model:main", "write one of noise", "spark"),
    "serve": Command("tts_plugin.cli:serve", "run the engine server", "hibari,server"),
    "call": Command("agent.cli:call", "talk to the agent in the browser", "all"),
    "phone": Command("agent.phone_command:main", "answer the telephone", "hibari,server,agent,phone"),
    "bench fidelity": Command(
        "tts_plugin.bench.fidelity:main", "streamed Spark audio against offline", "spark"
    ),
    "bench latency": Command(
        "tts_plugin.bench.latency:main", "time from text to sound", "hibari,server,livekit"
    ),
    "bench sharing": Command(
        "tts_plugin.bench.sharing:main", "Spark's two halves on one machine's cores", "spark"
    ),
    "bench concurrency": Command(
        "tts_plugin.bench.concurrency:main", "many streams at once", "hibari,server"
    ),
    "bench capacity": Command(
        "tts_plugin.bench.capacity:main", "how many streams this machine carries", "hibari,server"
    ),
    "bench turn": Command("agent.bench.turn:main", "time from the caller's last word to the answer", "all"),
    "bench calls": Command("agent.bench.calls:main", "many telephone calls at once", "all"),
    "bench bargein": Command("agent.bench.bargein:main", "time to silence on the page", "all"),
}


def main(argv: Sequence[str] | None = None, commands: Mapping[str, Command] = COMMANDS) -> int:
    """Run one command; the exit code: 0, 1 failed, 2 bad input, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(words, commands)
        if sys.stdout is not None:  # closed by whoever started us
            sys.stdout.flush()  # here, where a closed pipe is caught
        return code
    except TTSError as error:
        print(f"sparkvoice: {error}", file=sys.stderr)
        return FAILED if isinstance(error, (SynthesisFailed, Overloaded)) else BAD_INPUT
    except SystemExit as stop:  # argparse: --help or a mistake it has reported
        return stop.code if isinstance(stop.code, int) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python would complain once more when it flushes stdout on its way out
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


def load(where: str, user: str, extra: str) -> Callable[..., int | None]:
    """The function at "module:function"; what is not installed is named with the extra that brings it."""
    module, _, name = where.partition(":")
    try:
        return cast(Callable[..., int | None], getattr(import_module(module), name))
    except ModuleNotFoundError as missing:
        hint = f': pip install "sparkvoice[{extra}]"' if extra else ""
        raise NotInstalled(f"{user} needs the module {missing.name}, not installed here{hint}") from missing


def _run(words: list[str], commands: Mapping[str, Command]) -> int:
    for count in (2, 1):
        name = " ".join(words[:count])
        if len(words) >= count and name in commands:
            command = commands[name]
            run = load(command.where, name, command.extra)
            return run(words[count:]) or OK
    head, option = [*words, "", ""][:2]
    if head in _HELP:
        print(_help(commands))
        return OK
    if head == "--version":
        print(f"sparkvoice {__version__}")
        return OK
    group = {name: command for name, command in commands.items() if name.startswith(f"{head} ")}
    if group and option in _HELP:
        print(_help(group))
        return OK
    if not head:
        print(_help(commands), file=sys.stderr)
    elif not group:
        heads = {name.partition(" ")[0] for name in commands}
        print(f'sparkvoice: no command "{head}"{did_you_mean(head, heads)}', file=sys.stderr)
    elif not option or option.startswith("-"):
        print(f"sparkvoice: which one: {', '.join(group)}?", file=sys.stderr)
    else:
        asked = f"{head} {option}"
        print(f'sparkvoice: no command "{asked}"{did_you_mean(asked, group)}', file=sys.stderr)
    return BAD_INPUT


def _help(commands: Mapping[str, Command]) -> str:
    width = max(map(len, commands))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in commands.items()]
    return "\n".join(["usage: sparkvoice COMMAND ...", "", *lines, "", "sparkvoice COMMAND --help says more"])


def list_voices(argv: list[str]) -> int:
    """Print every voice; the default one is marked."""
    parser = Parser("sparkvoice voices list", description="The voices there are; * is the default.")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--config", metavar="F.yaml", type=Path)
    args = parser.parse_args(argv)
    registry = open_registry(load_settings(args.config).engine, ENGINES)
    voices = registry.list()
    default = registry.default.id
    if args.json:
        listed = [described(voice) | {"default": voice.id == default} for voice in voices]
        print(json.dumps(listed, ensure_ascii=False, indent=2))
    else:
        rows = [
            (
                "*" if voice.id == default else " ",
                voice.id,
                "any" if voice.language == "und" else voice.language,
                voice.engine,
                voice.licence,
                voice.name,
            )
            for voice in voices
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    if registry.problems:
        print(
            f"sparkvoice: {_counted(len(registry.problems), 'problem')}, see: sparkvoice voices check",
            file=sys.stderr,
        )
    return OK


def check_voices(argv: list[str]) -> int:
    """Print what is wrong in the voice files and the clips they name; 1 if anything is, warnings aside."""
    parser = Parser(
        "sparkvoice voices check",
        description="What is wrong in the voice files and the clips they name; 1 if anything is, warnings "
        "aside.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--config", metavar="F.yaml", type=Path)
    args = parser.parse_args(argv)
    registry = open_registry(load_settings(args.config).engine, ENGINES)
    problems = list(registry.problems)
    try:
        _ = registry.default
    except VoiceNotFound as error:
        problems.append(Problem("default voice", None, str(error)))
    voices = registry.list()
    warnings: list[Problem] = []
    for voice in voices:
        for finding in voice.examine():
            told = problems if finding.level == "error" else warnings
            told.append(Problem(f"voice {voice.id}", None, finding.message))
    if args.json:
        found = {
            "voices": [voice.id for voice in voices],
            "problems": [asdict(problem) for problem in problems],
            "warnings": [asdict(warning) for warning in warnings],
        }
        print(json.dumps(found, ensure_ascii=False, indent=2))
    else:
        for problem in problems:
            print(problem)
        for warning in warnings:
            print(f"{warning} (warning)")
        counts = [_counted(len(voices), "voice"), _counted(len(problems), "problem")]
        print(", ".join(counts + ([_counted(len(warnings), "warning")] if warnings else [])))
    return FAILED if problems else OK


def serve(argv: list[str]) -> int:
    """Run the engine server until it is told to stop."""
    parser = Parser("sparkvoice serve", description="Run the engine server (docs/protocol.md).")
    parser.add_argument("--config", metavar="F.yaml", type=Path)
    parser.add_argument("--host", help="any but a loopback address needs SPARKVOICE_TOKEN")
    parser.add_argument("--port", type=whole_number(0, 65_535), help="0 takes a free one")
    args = parser.parse_args(argv)
    chosen = {key: value for key, value in (("host", args.host), ("port", args.port)) if value is not None}
    settings = load_settings(args.config, server=chosen)
    settings.server.require_closed_door()
    load("tts_plugin.server.run:serve", "serve", COMMANDS["serve"].extra)(settings)
    return OK


def _counted(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


if __name__ == "__main__":
    sys.exit(main())

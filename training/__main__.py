"""`python -m training STEP`: spark-mini from nothing; every step can be stopped and gone on with.

data -> hearing -> codes -> wave and lm side by side -> export -> eval; "all" takes them one after another.
Times are of computing, not of the clock on the wall: on a machine that others use too it takes longer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from training import codes
from training.export import export
from training.hearing import HearingTraining
from training.lm import LmTraining
from training.plots import plot
from training.speech import Speech, speak
from training.wave import WaveTraining

STEPS = ("data", "hearing", "codes", "wave", "lm", "export", "eval", "plot")
CLIPS = Path(__file__).parent / "clips"
# of all minutes; wave and lm run at the same time
_SHARES = {"data": 0.1, "hearing": 0.3, "wave": 0.6, "lm": 0.6}


@dataclass(frozen=True, slots=True)
class Places:
    """All that is made, under one folder."""

    root: Path

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def codes(self) -> Path:
        return self.run / "codes.npz"

    @property
    def model(self) -> Path:
        return self.root / "spark-mini"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("step", choices=(*STEPS, "all"))
    parser.add_argument("--dir", type=Path, default=Path("build/mini"), help="of all that is made")
    parser.add_argument("--clips", type=Path, default=CLIPS, help="folder of clips.json and its recordings")
    parser.add_argument("--hours", type=float, default=20.0, help="of speech at most (data)")
    parser.add_argument("--minutes", type=float, default=60.0, help="that the step may compute")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="that the step may use")
    parser.add_argument("--adversarial-from", type=float, default=0.7, help="share of the time (wave)")
    parser.add_argument("--keep-rate", action="store_true", help="do not let the learning rate fall")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backend", choices=("hf", "openvino"), help="of the language model (eval)")
    parser.add_argument("--utterances", type=int, default=200, help="watched for runaways (eval)")
    parser.add_argument("--held-out", type=int, default=30, help="sentences (eval)")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the work is divided among threads of our own
    if args.step == "all":
        everything(args)
    else:
        step(args)


def step(args: argparse.Namespace) -> None:
    """One step, on what the steps before it have left."""
    places, device = Places(args.dir), torch.device(args.device)
    places.run.mkdir(parents=True, exist_ok=True)
    shards = 1 if device.type == "cuda" else args.cores
    decay = not args.keep_rate
    if args.step == "data":
        speak(args.dir, args.clips, hours=args.hours, minutes=args.minutes)
        return
    if args.step == "plot":
        plot(places.run)
        return
    if args.step == "eval":
        from training.evaluation import evaluate

        found = evaluate(
            places.model,
            args.clips,
            args.dir / "eval",
            held_out=args.held_out,
            utterances=args.utterances,
            backend=args.backend,
        )
        print(json.dumps(found, indent=2))
        return
    speech = Speech.load(args.dir)
    if args.step == "hearing":
        HearingTraining(places.run, speech, device=device, shards=shards).run(args.minutes, decay=decay)
    elif args.step == "codes":
        hearing = HearingTraining(places.run, speech, device=device)
        codes.encode(hearing.source, speech, places.codes, device, threads=shards)
    elif args.step == "wave":
        wave = WaveTraining(
            places.run, speech, codes.read(places.codes, speech), device=device, shards=shards
        )
        wave.run(args.minutes, adversarial_from=args.adversarial_from, decay=decay)
    else:
        heard = codes.read(places.codes, speech)
        lm = LmTraining(places.run, heard, device=device)
        if args.step == "lm":
            torch.set_num_threads(shards)
            lm.run(args.minutes, cores=shards, decay=decay)
        else:
            wave = WaveTraining(places.run, speech, heard, device=device)
            print(export(wave.source, lm, places.model).path)


def everything(args: argparse.Namespace) -> None:
    """All steps within `--minutes`; what is there already is gone on with or kept."""
    places = Places(args.dir)

    def begun(name: str, cores: int) -> subprocess.Popen[bytes]:
        given = {
            "dir": args.dir,
            "clips": args.clips,
            "hours": args.hours,
            "minutes": args.minutes * _SHARES.get(name, 1.0),
            "cores": cores,
            "device": args.device,
            "adversarial-from": args.adversarial_from,
        }
        words = [word for key, value in given.items() for word in (f"--{key}", str(value))]
        return subprocess.Popen([sys.executable, "-m", "training", name, *words])

    def done(*running: subprocess.Popen[bytes]) -> None:
        try:
            if any(process.wait() for process in running):
                raise SystemExit("a step failed; the same command goes on from there")
        finally:
            for process in running:
                process.terminate()

    if not (args.dir / "speech.json").is_file():
        done(begun("data", args.cores))
    if not places.codes.is_file():
        done(begun("hearing", args.cores))
        done(begun("codes", args.cores))
    half = max(1, args.cores // 2)
    done(begun("wave", half), begun("lm", half))
    for name in ("export", "plot", "eval"):
        done(begun(name, args.cores))


if __name__ == "__main__":
    main()

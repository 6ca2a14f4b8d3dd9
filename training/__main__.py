"""`python -m training STEP`: spark-mini from nothing; each step can be stopped and gone on with."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from training import codes
from training.codec import CodecTraining
from training.export import export
from training.lm import LmTraining
from training.speech import Speech, speak

STEPS = ("data", "codec", "codes", "lm", "export")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--dir", type=Path, default=Path("build/mini"), help="of all that is made")
    parser.add_argument("--clips", type=Path, help="folder of clips.json and its wavs (data)")
    parser.add_argument("--hours", type=float, default=20.0, help="of speech at most (data)")
    parser.add_argument("--minutes", type=float, default=60.0, help="that the step may take")
    parser.add_argument("--adversarial-from", type=float, default=0.5, help="share of the time (codec)")
    parser.add_argument("--keep-rate", action="store_true", help="do not let the learning rate fall")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    device = torch.device(args.device)
    run, heard = args.dir / "run", args.dir / "codes.npz"
    run.mkdir(parents=True, exist_ok=True)
    if args.step == "data":
        if args.clips is None:
            parser.error("data needs --clips FOLDER")
        speak(args.dir, args.clips, hours=args.hours, minutes=args.minutes)
        return
    if args.step == "lm":
        training = LmTraining(run, codes.read(heard), device=device)
        training.run(args.minutes, short_first=training.step == 0, decay=not args.keep_rate)
        return
    codec = CodecTraining(run, Speech.load(args.dir), device=device)
    if args.step == "codec":
        codec.run(args.minutes, adversarial_from=args.adversarial_from, decay=not args.keep_rate)
    elif args.step == "codes":
        codes.encode(codec.source, Speech.load(args.dir), heard, device)
    else:
        lm = LmTraining(run, codes.read(heard), device=device)
        print(export(codec.source, lm, args.dir / "spark-mini").path)


if __name__ == "__main__":
    main()

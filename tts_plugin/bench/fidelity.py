"""`sparkvoice bench fidelity`: how near streamed BiCodec audio is to decoding the whole at once, for a sweep
of windows and for the policy of other Spark-TTS servers (50-token chunks without context, cross-faded)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tts_plugin.arguments import Parser, whole_number
from tts_plugin.bench.chunks import CROSS_FADED, Chunker, CrossFader
from tts_plugin.bench.report import save_rows, show_rows
from tts_plugin.config import load_settings
from tts_plugin.engines.spark.bicodec import BiCodec, load_bicodec, random_bicodec
from tts_plugin.engines.spark.window import Cut, shape_of
from tts_plugin.limits import Latency

Wave = NDArray[np.float64]

_CAP_DB = 140.0  # equal to the last bit
_HOP = 25  # tokens of a later piece: the engine's are 4 to 50, as the playing buffer allows


@dataclass(frozen=True, slots=True)
class Policy:
    """Tokens: emitted first, then each time; left context; look-ahead of the first piece, of the later."""

    name: str
    first: int
    hop: int
    left: int
    first_right: int
    right: int


@dataclass(frozen=True, slots=True)
class Row:
    """One policy measured. Decibels of signal to noise against the offline decode."""

    policy: str
    first: int
    hop: int
    left: int
    first_right: int
    right: int
    tokens_before_sound: int
    first_db: float
    seam_db: float
    overall_db: float


def main(argv: Sequence[str]) -> int:
    parser = Parser("sparkvoice bench fidelity", description="Streamed BiCodec audio against offline.")
    parser.add_argument("--model", metavar="DIR", type=Path, help="default: random weights of full size")
    parser.add_argument("--stressed", action="store_true", help="random weights that mix further in time")
    parser.add_argument("--tokens", type=whole_number(120, 5000), default=250, help="of the utterance")
    parser.add_argument("--utterances", type=whole_number(1, 100), default=3)
    parser.add_argument("--json", metavar="F", type=Path)
    parser.add_argument("--plot", metavar="F.png", type=Path, help="needs matplotlib")
    args = parser.parse_args(argv)
    if args.model is not None:
        codec = load_bicodec(args.model, dtype="float32", device="cpu")
    else:
        codec = random_bicodec(seed=1, stressed=args.stressed)
    rows = measured(codec, args.tokens, args.utterances)
    show_rows("bench fidelity (dB against the offline decode)", [asdict(row) for row in rows])
    if args.json:
        weights = str(args.model) if args.model else "random, stressed" if args.stressed else "random"
        measured_on = {"weights": weights, "tokens": args.tokens, "utterances": args.utterances}
        save_rows(args.json, "fidelity", [asdict(row) for row in rows], measured_on)
    if args.plot:
        plot(rows, args.plot)
    return 0


def policies(reach: int) -> list[Policy]:
    """The three latencies of the settings, then one knob at a time turned from `balanced`."""
    latency = load_settings(environ={}).engine.spark.latency
    found = []
    names: tuple[Latency, ...] = ("low", "balanced", "quality")
    for name in names:
        shape = shape_of(latency, name)
        found.append(Policy(name, shape.first, _HOP, reach, shape.first_right, shape.right))
    usual = shape_of(latency, "balanced")
    first, ahead, right = usual.first, usual.first_right, usual.right
    found += [Policy(f"right {size}", first, _HOP, reach, size, size) for size in (0, 2, 4, 8, 16, 32, reach)]
    found += [Policy(f"left {size}", first, _HOP, size, reach, reach) for size in (0, 5, 10, 20, 32, 57)]
    found += [Policy(f"first {size}", size, _HOP, reach, ahead, right) for size in (4, 16, 32)]
    found += [Policy(f"hop {size}", first, size, reach, ahead, right) for size in (4, 12, 50)]
    return found


def measured(codec: BiCodec, tokens: int, utterances: int) -> list[Row]:
    """Every policy over the same random utterances; decibels are of the noise of all of them together."""
    draw = np.random.default_rng(7)
    said = []
    for _ in range(utterances):
        codes = torch.tensor(draw.integers(0, codec.semantic_codes, (1, tokens)))
        voice = codec.speaker(torch.tensor(draw.integers(0, codec.global_codes, (1, codec.global_count))))
        said.append((codes, voice, _wave(codec.decode_window(codes, voice, 0, tokens))))
    rows = []
    for policy in policies(codec.reach):
        cuts = list(cuts_of(policy, tokens))
        streams = [_streamed(codec, codes, voice, cuts) for codes, voice, _ in said]
        seams = [cut.emit_to * codec.hop for cut in cuts[:-1]]
        rows.append(_row(policy, policy.first + policy.first_right, streams, said, seams, codec.hop))
    chunks = _chunks(tokens)
    streams = [_cross_faded(codec, codes, voice, chunks) for codes, voice, _ in said]
    seams = [start * codec.hop for start, _ in chunks[1:]]
    baseline = Policy("50-token chunks, cross-fade", CROSS_FADED.first, CROSS_FADED.first, 0, 0, 0)
    rows.append(_row(baseline, CROSS_FADED.first, streams, said, seams, codec.hop))
    return rows


def cuts_of(policy: Policy, tokens: int) -> Iterator[Cut]:
    emitted, size, look_ahead = 0, policy.first, policy.first_right
    while emitted < tokens:
        upto = min(tokens, emitted + size)
        if tokens - upto < look_ahead:  # the segment ends before the look-ahead is full: a flush
            upto = tokens
        yield Cut(max(0, emitted - policy.left), emitted, upto, min(tokens, upto + look_ahead))
        emitted, size, look_ahead = upto, policy.hop, policy.right


def _streamed(codec: BiCodec, codes: torch.Tensor, voice: torch.Tensor, cuts: Sequence[Cut]) -> Wave:
    return np.concatenate(
        [
            _wave(
                codec.decode_window(
                    codes[:, cut.ctx_from : cut.ctx_to],
                    voice,
                    cut.emit_from - cut.ctx_from,
                    cut.emit_to - cut.ctx_from,
                )
            )
            for cut in cuts
        ]
    )


def _chunks(tokens: int) -> list[tuple[int, int]]:
    """(start, stop) of the other policy's chunks."""
    chunker = Chunker(CROSS_FADED)
    return [*chunker.push(tokens), chunker.flush()]


def _cross_faded(
    codec: BiCodec, codes: torch.Tensor, voice: torch.Tensor, chunks: Sequence[tuple[int, int]]
) -> Wave:
    fader = CrossFader(CROSS_FADED.overlap * codec.hop)
    waves = [
        (
            _wave(codec.decode_window(codes[:, start:stop], voice, 0, stop - start)),
            (start, stop) == chunks[-1],
        )
        for start, stop in chunks
    ]
    return np.concatenate([fader.push(wave, is_last=is_last) for wave, is_last in waves])


def _row(
    policy: Policy,
    before: int,
    streams: Sequence[Wave],
    said: Sequence[tuple[torch.Tensor, torch.Tensor, Wave]],
    seams: Sequence[int],
    hop: int,
) -> Row:
    """seams: samples; a seam is judged over one token on either side, the first one apart (see first_db)."""
    offline = np.concatenate([wave for _, _, wave in said])
    stream = np.concatenate(streams)
    length = len(streams[0])
    near = np.zeros(length, dtype=bool)
    for seam in seams[1:]:
        near[max(0, seam - hop) : seam + hop] = True
    first = np.zeros(length, dtype=bool)
    first[: seams[0] if seams else length] = True
    repeat = len(streams)
    return Row(
        policy=policy.name,
        first=policy.first,
        hop=policy.hop,
        left=policy.left,
        first_right=policy.first_right,
        right=policy.right,
        tokens_before_sound=before,
        first_db=snr_db(offline, stream, np.tile(first, repeat)),
        seam_db=snr_db(offline, stream, np.tile(near, repeat)),
        overall_db=snr_db(offline, stream, np.ones(len(offline), dtype=bool)),
    )


def snr_db(reference: Wave, other: Wave, where: NDArray[np.bool_]) -> float:
    """Signal to noise of `other` against `reference` over the samples `where`, at most 140 dB."""
    signal, noise = reference[where], (other - reference)[where]
    if not len(signal) or not signal.any():
        return _CAP_DB
    power = float(noise @ noise) / float(signal @ signal)
    return round(min(_CAP_DB, -10 * np.log10(power)), 1) if power > 0 else _CAP_DB


def _wave(samples: torch.Tensor) -> Wave:
    return samples[0].numpy().astype(np.float64)


def plot(rows: Sequence[Row], path: Path) -> None:
    """Decibels by look-ahead, with the other policy's for comparison, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), constrained_layout=True)
    sweep = sorted((row for row in rows if row.policy.startswith("right ")), key=lambda row: row.right)
    axes.plot([row.right for row in sweep], [row.seam_db for row in sweep], "o-", label="at the seams")
    axes.plot([row.right for row in sweep], [row.overall_db for row in sweep], "s--", label="overall")
    other = rows[-1]
    axes.axhline(other.seam_db, color="grey", lw=1, label=f"{other.policy}: at the seams")
    balanced = next(row for row in rows if row.policy == "balanced")
    axes.axvspan(balanced.first_right, balanced.right, alpha=0.08, label="balanced: first to later pieces")
    axes.set(xlabel="look-ahead, tokens of 20 ms", ylabel="dB against offline", title="Fidelity of streaming")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)

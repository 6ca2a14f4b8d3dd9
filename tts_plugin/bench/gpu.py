"""deploy/gpu_check.sh: both networks of Spark-TTS on a GPU, checked against the CPU and timed, in one table.

Needs PyTorch, transformers and what they bring, pydantic, and no network: weights are random, of full size.
`--device cpu --tiny` runs all of it anywhere, but for the CUDA graphs.
"""

from __future__ import annotations

import asyncio
import copy
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import Qwen2Config, Qwen2ForCausalLM

from tts_plugin.arguments import Parser, whole_number
from tts_plugin.bench.report import save_rows, show_rows
from tts_plugin.engine import Sampling
from tts_plugin.engines.spark.bicodec import PUBLISHED, TINY, BiCodec, CodecWindow, random_bicodec
from tts_plugin.engines.spark.lm.hf import DTYPES, HfLM
from tts_plugin.engines.spark.random_tokenizer import PUBLISHED_WORDS, random_tokenizer
from tts_plugin.engines.spark.vocabulary import Vocabulary
from tts_plugin.errors import ConfigError

_PROMPT = 100  # tokens, a sentence and a voice
_STATIC_TOKENS = 1024
_LEAST_DB = {"float32": 60.0, "bfloat16": 20.0}  # of codec samples against float32 on the CPU
_LEAST_COSINE = 0.99  # of a position's logits against float32 on the CPU
_LEAST_SAME = 32  # greedy codes from the beginning: later on two equally likely ones may part them
_GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Row:
    """verdict: ok, FAILED, or that it is only a figure, or why it was not run."""

    what: str
    value: str
    n: int
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class Bench:
    """What all parts share. model: float32, on the CPU."""

    device: str
    dtype: str
    ids: Vocabulary
    model: Qwen2ForCausalLM
    codec: Callable[[str, str], BiCodec]  # dtype, device
    repeats: int
    tokens: int

    def placed(self, dtype: str) -> Qwen2ForCausalLM:
        """A copy of the model on the device."""
        model: Any = copy.deepcopy(self.model)  # Any: transformers' wrapper of `to` has lost its type
        moved: Qwen2ForCausalLM = model.to(device=self.device, dtype=DTYPES[dtype])
        return moved

    def lm(self, dtype: str, *, static: bool) -> HfLM:
        model = self.placed(dtype)
        return HfLM(lambda: model, self.ids, static_tokens=_STATIC_TOKENS if static else None)

    def prompt(self, seed: int) -> list[int]:
        drawn = torch.randint(self.ids.text_count, (_PROMPT,), generator=torch.Generator().manual_seed(seed))
        return [int(token) for token in drawn]

    def windows(self, codec: BiCodec, count: int, emitted: int, left: int, right: int) -> list[CodecWindow]:
        draw = torch.Generator().manual_seed(count)
        total = left + emitted + right
        voices = codec.speaker(torch.randint(codec.global_codes, (count, codec.global_count), generator=draw))
        codes = torch.randint(codec.semantic_codes, (count, total), generator=draw)
        return [CodecWindow(codes[at], voices[at], left, left + emitted) for at in range(count)]


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser("deploy/gpu_check.sh", description="Spark-TTS's networks on a GPU: checked, then timed.")
    parser.add_argument("--device", default="cuda", help="default: cuda")
    parser.add_argument("--tiny", action="store_true", help="networks of 2 MB: whether it runs, no figures")
    parser.add_argument("--budget", metavar="MIN", type=whole_number(1, 600), default=8, help="default: 8")
    parser.add_argument("--json", metavar="F", type=Path, help="write the table to F")
    args = parser.parse_args(argv)
    deadline_s = time.monotonic() + 60 * args.budget
    if torch.device(args.device).type == "cuda" and not torch.cuda.is_available():
        print("gpu_check: torch finds no GPU; --device cpu --tiny shows that all of it runs", file=sys.stderr)
        return 2
    where = _where(args.device)
    bench = _bench(args.device, args.tiny)
    rows: list[Row] = []
    for part in (codec_checks, lm_checks, lm_speed, codec_speed, first_sound):
        if time.monotonic() > deadline_s:
            rows.append(Row(part.__name__, "-", 0, "not run: the budget was spent"))
            continue
        for row in part(bench):
            print(f"{row.what}: {row.value} {row.verdict}", file=sys.stderr, flush=True)
            rows.append(row)
            if time.monotonic() > deadline_s:
                rows.append(Row(f"the rest of {part.__name__}", "-", 0, "not run: the budget was spent"))
                break
    weights = "tiny random weights: no figures" if args.tiny else "random weights of full size"
    show_rows(f"gpu_check: {where}, {weights}", [asdict(row) for row in rows])
    if args.json:
        save_rows(args.json, "gpu", [asdict(row) for row in rows], {"where": where, "weights": weights})
    return int(any(row.verdict == "FAILED" for row in rows))


def _where(device: str) -> str:
    place = torch.cuda.get_device_name() if torch.device(device).type == "cuda" else "cpu"
    return f"{place}, torch {torch.__version__}, transformers {transformers.__version__}"


def _bench(device: str, tiny: bool) -> Bench:
    tokenizer = random_tokenizer(4096, 8192, None if tiny else PUBLISHED_WORDS)
    added = {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items()}
    ids = Vocabulary.read(added)
    config = Qwen2Config(
        vocab_size=ids.id_count if tiny else 166_000,
        hidden_size=64 if tiny else 896,
        intermediate_size=128 if tiny else 4864,
        num_hidden_layers=2 if tiny else 24,
        num_attention_heads=4 if tiny else 14,
        num_key_value_heads=2,
        max_position_embeddings=32_768,
        initializer_range=0.1 if tiny else 0.02,
        tie_word_embeddings=True,
        eos_token_id=ids.eos,
    )
    torch.manual_seed(1)
    model = Qwen2ForCausalLM(config)
    model.train(False)
    sizes = TINY if tiny else PUBLISHED
    return Bench(
        device,
        "bfloat16",
        ids,
        model,
        lambda dtype, place: random_bicodec(sizes, seed=1, dtype=dtype, device=place),
        repeats=2 if tiny else 20,
        tokens=20 if tiny else 150,
    )


# each part yields its rows as they are measured, so that a budget can cut it


def codec_checks(bench: Bench) -> Iterator[Row]:
    """The device against float32 on the CPU, and padding to fixed shapes against none."""
    exact = bench.codec("float32", "cpu")
    windows = [*bench.windows(exact, 3, 25, 40, 16), *bench.windows(exact, 2, 8, 0, 8)]
    due = torch.cat(exact.decode_windows(windows))
    for dtype in ("float32", "bfloat16"):
        codec = bench.codec(dtype, bench.device)
        for fixed in (False, True):
            codec.fixed_shapes = fixed
            db = _db(due, torch.cat(codec.decode_windows(windows)))
            what = f"codec {dtype}{', fixed shapes' if fixed else ''} against CPU float32, dB"
            yield Row(what, f"{db:.1f}", len(windows), _verdict(db >= _LEAST_DB[dtype]))


def lm_checks(bench: Bench) -> Iterator[Row]:
    """Logits of each position against float32 on the CPU; the static cache against the growing one."""
    prompt = torch.tensor([bench.prompt(0)])
    with torch.inference_mode():
        due = bench.model(prompt).logits[0]
    for dtype in ("float32", bench.dtype):
        model = bench.placed(dtype)
        with torch.inference_mode():
            found = model(prompt.to(bench.device)).logits[0].float().cpu()
        least = float(torch.nn.functional.cosine_similarity(due, found, dim=-1).min())
        what = f"LM {dtype}: least cosine of logits against CPU float32"
        yield Row(what, f"{least:.4f}", _PROMPT, _verdict(least >= _LEAST_COSINE))
    growing = asyncio.run(_codes(bench.lm("float32", static=False), bench.prompt(1), bench.tokens))
    static = asyncio.run(_codes(bench.lm("float32", static=True), bench.prompt(1), bench.tokens))
    pairs = list(zip(growing, static, strict=False))
    same = next((at for at, (left, right) in enumerate(pairs) if left != right), len(pairs))
    graphs = " and CUDA graphs" if torch.device(bench.device).type == "cuda" else ""
    verdict = _verdict(same >= min(_LEAST_SAME, bench.tokens))
    what = f"LM float32, static cache{graphs}: greedy codes as with a growing one"
    yield Row(what, f"{same}", len(growing), verdict)


def lm_speed(bench: Bench) -> Iterator[Row]:
    """First token and the rate after it, alone and four at once, of both caches."""
    for static in (False, True):
        kind = "static cache" if static else "growing cache"
        for streams in (1, 4):
            firsts_ms, rates = asyncio.run(_speed(bench, static, streams))
            name = f"LM {bench.dtype}, {kind}, {streams} at once"
            yield Row(f"{name}: first token, ms", f"{statistics.median(firsts_ms):.1f}", len(firsts_ms))
            yield Row(f"{name}: tokens a second, each", f"{statistics.median(rates):.1f}", len(rates))


def codec_speed(bench: Bench) -> Iterator[Row]:
    """A window of 25 + 16 with its context, and a first window of 6 + 8, alone and batched."""
    for dtype in ("float32", "bfloat16"):
        codec = bench.codec(dtype, bench.device)
        for fixed in (False, True):
            codec.fixed_shapes = fixed
            shape = "fixed shapes" if fixed else "shapes as they are"
            for count in (1, 4, 8):
                windows = bench.windows(codec, count, 25, 67, 16)
                ms = _times_ms(partial(codec.decode_windows, windows), bench.repeats)
                what = f"codec {dtype}, {shape}: {count} windows of 25 tokens, ms"
                yield Row(what, f"{statistics.median(ms):.1f}", len(ms))


def first_sound(bench: Bench) -> Iterator[Row]:
    """Prompt to the samples of a first window of 6 + 8 tokens, and of the 50 that other servers wait for."""
    codec = bench.codec("bfloat16", bench.device)
    for static in (False, True):
        for emitted, ahead in ((6, 8), (50, 0)):
            ms = asyncio.run(_first_ms(bench, codec, static, emitted, ahead))
            kind = "static cache" if static else "growing cache"
            nets = f"LM {bench.dtype}, {kind}, codec bfloat16"
            what = f"{nets}: prompt to the samples of {emitted} + {ahead} tokens, ms"
            yield Row(what, f"{statistics.median(ms):.1f}", len(ms))


async def _codes(lm: HfLM, prompt: list[int], most: int, sampling: Sampling = _GREEDY) -> list[int]:
    codes: list[int] = []
    async with aclosing(lm.generate(prompt, sampling, 1)) as groups:
        async for group in groups:
            codes += group
            if len(codes) >= most:
                break
    await lm.aclose()
    return codes


async def _speed(bench: Bench, static: bool, streams: int) -> tuple[list[float], list[float]]:
    lm = bench.lm(bench.dtype, static=static)
    await asyncio.gather(*(_timed(lm, bench.prompt(at), 8) for at in range(streams)))  # every cache is made
    found = [
        await asyncio.gather(*(_timed(lm, bench.prompt(at), bench.tokens) for at in range(streams)))
        for _ in range(max(2, bench.repeats // 5))
    ]
    await lm.aclose()
    each = [one for together in found for one in together]
    return [first_s * 1000 for first_s, _ in each], [rate for _, rate in each]


async def _timed(lm: HfLM, prompt: list[int], most: int) -> tuple[float, float]:
    """Seconds to the first token, and tokens a second after it."""
    begun_s, first_s, count = time.perf_counter(), 0.0, 0
    async with aclosing(lm.generate(prompt, Sampling(), count)) as groups:
        async for group in groups:
            if not count:
                first_s = time.perf_counter() - begun_s
            count += len(group)
            if count >= most:
                break
    return first_s, max(0, count - 1) / (time.perf_counter() - begun_s - first_s)


async def _first_ms(bench: Bench, codec: BiCodec, static: bool, emitted: int, ahead: int) -> list[float]:
    lm = bench.lm(bench.dtype, static=static)
    (window,) = bench.windows(codec, 1, emitted, 0, ahead)
    times: list[float] = []
    for at in range(bench.repeats + 1):
        begun_s = time.perf_counter()
        await _timed(lm, bench.prompt(at), emitted + ahead)
        codec.decode_windows([window])
        times.append((time.perf_counter() - begun_s) * 1000)
    await lm.aclose()
    return times[1:]  # the first one warms up


def _times_ms(call: Callable[[], object], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats + 3):
        begun_s = time.perf_counter()
        call()  # it returns CPU tensors, so it has waited for the device
        times.append((time.perf_counter() - begun_s) * 1000)
    return times[3:]


def _db(due: torch.Tensor, found: torch.Tensor) -> float:
    noise = float((found - due).square().sum())
    return 140.0 if not noise else min(140.0, 10 * float(torch.log10(due.square().sum() / noise)))


def _verdict(good: bool) -> str:
    return "ok" if good else "FAILED"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        sys.exit(2)

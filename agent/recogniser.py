"""The recogniser's process: Whisper behind a pair of pipes (`python -m agent.recogniser --model FOLDER`).

Requests on stdin are int16 samples at 16 kHz, answers on stdout are JSON, one answer a request, in order;
each is preceded by its length in bytes (4, little-endian). The first answer says that the model is ready,
or why not. The process ends when stdin closes, so it never outlives its parent, however that dies.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import struct
import sys
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tts_plugin.audio import Pcm, samples_of, to_float32

RATE = 16_000  # Hz, what Whisper hears
LONGEST_S = 30.0  # Whisper's window; a request may not be longer
HEADER = struct.Struct("<I")

LAST_FRAME = 3_000  # mel frames (10 ms each) in Whisper's own window of 30 s
# Encoding costs in proportion to the window, and Whisper's own is 30 s however short the speech. A shorter
# one is as accurate if it leaves enough emptiness after the speech; with less, short sentences loop.
# Measured with tiny.en on 90 sentences (clean, 15 dB noise, telephone band) and 84 short answers:
# window at least / emptiness at least   WER      short answers wrong   ms
#   30 s (Whisper's own)                 1.1 %    0                     248
#   12 s / 3 s                           1.1 %    0                      76
#   10 s / 3 s                           1.1 %    2 ("Hello? Hello?")    76
#    8 s / 1 s                           7.7 %                           74
# A loop that happens anyway is noticed, and the speech heard again in the whole window.
SHORTEST_WINDOW = 1_200  # mel frames
EMPTY_AFTER = 300  # mel frames
LOOP_RATIO = 2.4  # text that deflates by more than this repeats itself (Whisper's own threshold)


@dataclass(frozen=True, slots=True)
class Recognition:
    """What was heard in one request.

    no_speech: probability in [0, 1] that there is none. logprob: mean log-probability of the tokens.
    looped: the text repeats itself and is not to be trusted. took_s: seconds of recognition.
    """

    text: str
    no_speech: float
    logprob: float
    looped: bool
    took_s: float


class Whisper:
    """One loaded model; `recognise` blocks.

    Raises ValueError if the model's weights do not have the digest `sha256` (hex; None = do not look).
    """

    def __init__(self, model: Path, *, language: str, threads: int, sha256: str | None = None) -> None:
        if sha256 is not None:
            with (model / "model.bin").open("rb") as weights:
                found = hashlib.file_digest(weights, "sha256").hexdigest()
            if found != sha256:
                raise ValueError(f"{model / 'model.bin'} is not the expected model: sha256 {found}")
        from faster_whisper import WhisperModel
        from faster_whisper.tokenizer import Tokenizer

        loaded = WhisperModel(str(model), device="cpu", compute_type="int8", cpu_threads=threads)
        multilingual = loaded.model.is_multilingual
        if not multilingual and language != "en":
            raise ValueError(f'{model} hears only English, not "{language}"; give a multilingual model')
        self._mel = loaded.feature_extractor
        self._net: Any = loaded.model  # ctranslate2 ships no types
        self._tokenizer = Tokenizer(loaded.hf_tokenizer, multilingual, task="transcribe", language=language)
        self._prompt = [*self._tokenizer.sot_sequence, self._tokenizer.no_timestamps]

    def recognise(self, pcm: Pcm) -> Recognition:
        """The words in `pcm` (16 kHz, at most LONGEST_S)."""
        started_s = time.perf_counter()
        seconds = len(pcm) / RATE
        if seconds > LONGEST_S:
            raise ValueError(f"{seconds:.1f} s of audio at once; at most {LONGEST_S:.0f} s")
        wave = to_float32(pcm)
        mel = self._mel(np.pad(wave, (0, max(0, RATE // 10 - len(wave)))))[:, :LAST_FRAME]
        window = min(LAST_FRAME, max(SHORTEST_WINDOW, mel.shape[1] + EMPTY_AFTER) // 2 * 2)
        text, no_speech, logprob, looped = self._hear(mel, window, seconds)
        if (looped or doubled(text)) and window < LAST_FRAME:
            text, no_speech, logprob, looped = self._hear(mel, LAST_FRAME, seconds)
        return Recognition(text, no_speech, logprob, looped, time.perf_counter() - started_s)

    def _hear(self, mel: Any, window: int, seconds: float) -> tuple[str, float, float, bool]:
        import ctranslate2

        padded = np.zeros((1, mel.shape[0], window), dtype=np.float32)
        padded[0, :, : mel.shape[1]] = mel
        # the fastest speakers reach about 8 tokens a second; what goes on for longer is looping
        limit = min(224, 16 + int(10 * seconds))
        result = self._net.generate(
            self._net.encode(ctranslate2.StorageView.from_array(padded), to_cpu=False),
            [self._prompt],
            beam_size=1,
            max_length=limit,
            return_scores=True,
            return_no_speech_prob=True,
            suppress_blank=True,
            suppress_tokens=[-1],
        )[0]
        tokens = result.sequences_ids[0]
        text = self._tokenizer.decode(tokens).strip()
        logprob = result.scores[0] * len(tokens) / (len(tokens) + 1)  # the end token counts too
        looped = len(tokens) + len(self._prompt) >= limit or repeats(text)
        return text, float(result.no_speech_prob), float(logprob), looped


def repeats(text: str) -> bool:
    """Whether `text` is a phrase over and over: it deflates too well."""
    data = text.encode()
    return len(data) > 0 and len(data) / len(zlib.compress(data)) > LOOP_RATIO


def doubled(text: str) -> bool:
    """Whether `text` says everything twice, as a beginning loop does (and some callers do)."""
    words = "".join(c for c in text.lower() if c.isalnum() or c == " ").split()
    half = len(words) // 2
    return half > 0 and words[:half] == words[half:]


def read_exactly(stream: BinaryIO, size: int) -> bytes | None:
    """`size` bytes, or None if the stream ends before."""
    data = stream.read(size)
    return data if len(data) == size else None


def serve(model: Whisper, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until `requests` ends."""
    while (header := read_exactly(requests, HEADER.size)) is not None:
        payload = read_exactly(requests, *HEADER.unpack(header))
        if payload is None:
            return
        try:
            answer = asdict(model.recognise(samples_of(payload)))
        except (ValueError, RuntimeError) as error:  # a bad request or a failed kernel: the next may do
            answer = {"error": str(error)}
        send(answers, answer)


def send(answers: BinaryIO, answer: dict[str, Any]) -> None:
    data = json.dumps(answer).encode()
    answers.write(HEADER.pack(len(data)) + data)
    answers.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="agent.recogniser", description="Whisper over stdin and stdout")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--language", default="en")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sha256")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    os.nice(5)  # the parent paces audio and goes first
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    try:
        model = Whisper(
            options.model, language=options.language, threads=options.threads, sha256=options.sha256
        )
        model.recognise(np.zeros(RATE, dtype=np.int16))  # the first run allocates and is slow
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        send(answers, {"error": str(error)})
        return 1
    send(answers, {"ready": True})
    serve(model, sys.stdin.buffer, answers)
    return 0


if __name__ == "__main__":
    try:
        code = main()
    except BrokenPipeError:  # the parent is gone
        code = 0
    # no tear-down of native threads: nothing is left to save, and it takes longer than the rest
    sys.stderr.flush()
    os._exit(code)

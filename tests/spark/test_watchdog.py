"""The watchdog hears loops, silence and wrong lengths in codes; recovery makes the best of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import pytest

from tts_plugin.engine import Sampling, Segment, Turn, open_engine
from tts_plugin.engines.spark.duration import duration_of
from tts_plugin.engines.spark.lm.scripted import Script, ScriptedLM
from tts_plugin.engines.spark.recovery import halves, recovered
from tts_plugin.engines.spark.watchdog import Limits, Verdict, Watchdog
from tts_plugin.errors import SynthesisFailed
from tts_plugin.voices import Voice

RATE_HZ = 50
TEXT = "Let me look that up for you, it only takes a moment."
TOKENS = 170  # 3.4 s, a usual pace for it


def speech(tokens: int, seed: int = 0) -> list[int]:
    """Codes as various as those of speech."""
    return random.Random(seed).choices(range(100, 8000), k=tokens)


def verdict(codes: Iterable[int], text: str = TEXT, watchdog: Watchdog | None = None) -> tuple[Verdict, int]:
    """What is thought in the end, and after how many codes it was clear."""
    watchdog = watchdog or Watchdog(text)
    for code in codes:
        if watchdog.see([code]) is not Verdict.OK:
            return watchdog.verdict, watchdog.codes
    return watchdog.end(), watchdog.codes


def test_ordinary_speech_is_ok() -> None:
    assert verdict(speech(TOKENS)) == (Verdict.OK, TOKENS)


def test_speech_with_pauses_before_in_and_after_it_is_ok() -> None:
    codes = [1] * 50 + speech(80) + [2, 3] * 40 + speech(80, 1) + [1] * 45
    assert verdict(codes) == (Verdict.OK, len(codes))


def test_codes_may_come_in_groups_and_the_one_that_decides_is_counted() -> None:
    watchdog = Watchdog(TEXT)
    assert watchdog.see(speech(100)) is Verdict.OK
    assert watchdog.see([5] * 300) is Verdict.SILENCE
    codes = watchdog.codes
    assert 197 <= codes <= 200
    assert watchdog.see(speech(10)) is Verdict.SILENCE, "it stays"
    assert watchdog.end() is Verdict.SILENCE
    assert watchdog.codes == codes


def test_ending_at_once_is_wrong() -> None:
    assert verdict([]) == (Verdict.ENDED_AT_ONCE, 0)


def test_ending_far_too_soon_is_wrong() -> None:
    watchdog = Watchdog(TEXT)
    assert verdict(speech(20), watchdog=watchdog) == (Verdict.TOO_SHORT, 20)
    assert watchdog.reason == "it ended long before the text could be said (0.4 s, at least 1.0 s expected)"


def test_going_on_and_on_is_wrong() -> None:
    found, codes = verdict(speech(5000))
    assert found is Verdict.RUNAWAY
    assert TOKENS * 2 < codes < TOKENS * 5


@pytest.mark.parametrize("period", [5, 7, 16, 30, 50])
def test_a_loop_is_seen_in_its_third_round_or_after_1_2_s(period: int) -> None:
    start = speech(40)
    found, codes = verdict(start + speech(period, 9) * 60, text=TEXT * 5)
    assert found is Verdict.LOOP
    assert codes - len(start) == max(3 * period, 60)


def test_a_word_said_again_is_no_loop() -> None:
    again = speech(20, 3)
    assert verdict(speech(60) + again + again + speech(60, 1))[0] is Verdict.OK


def test_a_loop_that_is_not_exact_is_no_loop() -> None:
    phrase = speech(20, 3)
    spoilt = [[*phrase[:19], number] for number in range(8)]
    assert verdict([code for round_ in spoilt for code in round_])[0] is Verdict.OK


@pytest.mark.parametrize("silent", [[7], [7, 8], [1, 2, 3, 4], [7, 7, 7, 9]])
def test_two_seconds_of_a_few_codes_are_silence(silent: list[int]) -> None:
    start = speech(60)
    found, codes = verdict(start + silent * 200, text=TEXT * 5)
    assert found is Verdict.SILENCE
    assert 97 <= codes - len(start) <= 100, "up to three codes of the speech before count as silence"


def test_a_disorderly_silence_of_a_few_codes_is_silence_too() -> None:
    noise = random.Random(1)
    found, codes = verdict(speech(60) + [noise.choice([1, 2, 3, 4]) for _ in range(300)], text=TEXT * 5)
    assert (found, codes) == (Verdict.SILENCE, 160)


def test_known_silence_is_silence_however_many_codes_it_has() -> None:
    silence = range(20)
    noise = random.Random(1)
    codes = speech(60) + [noise.choice(silence) for _ in range(300)]
    assert verdict(codes, text=TEXT * 5)[0] is Verdict.OK, "as far as anybody knows"
    told = Watchdog(TEXT * 5, silence=silence)
    assert verdict(codes, watchdog=told) == (Verdict.SILENCE, 160)
    told = Watchdog(TEXT, silence=silence)
    assert verdict([noise.choice(silence) for _ in range(90)], watchdog=told)[0] is Verdict.SILENCE


def test_an_utterance_that_is_nothing_but_a_little_silence_is_no_success() -> None:
    assert verdict([7] * 60)[0] is Verdict.SILENCE
    assert verdict([1, 2, 3, 4] * 15)[0] is Verdict.SILENCE
    assert verdict([1, 2, 3, 4, 5, 6, 7] * 8)[0] is Verdict.OK


def test_a_word_may_be_short_and_have_few_codes() -> None:
    assert verdict([1, 2, 3], text="A") == (Verdict.OK, 3)
    assert verdict(speech(12), text="Hi.")[0] is Verdict.OK
    assert verdict(speech(120), text="Hi.")[0] is Verdict.OK
    assert verdict(speech(400), text="Hi.")[0] is Verdict.RUNAWAY
    assert verdict([], text="A")[0] is Verdict.ENDED_AT_ONCE


def test_a_text_with_nothing_to_read_may_end_at_once_and_be_silent() -> None:
    assert verdict([], text="...")[0] is Verdict.OK
    assert verdict([1] * 30, text="—")[0] is Verdict.OK


def test_limits_can_be_set() -> None:
    strict = Watchdog(TEXT, limits=Limits(silence_s=0.5))
    assert verdict(speech(20) + [1] * 50, watchdog=strict) == (Verdict.SILENCE, 42)


def test_half_the_rate_is_half_the_codes() -> None:
    assert verdict(speech(5000), watchdog=Watchdog(TEXT, 25))[1] == pytest.approx(
        verdict(speech(5000))[1] / 2, abs=1
    )


@pytest.mark.parametrize(
    ("text", "usual_s"),
    [
        ("Yes.", 0.6),
        ("Your order number is seven four nine two.", 2.8),
        ("It is 7:45 PM, on the 21st of March 2026.", 4.0),
        ("HTTPS", 1.2),
        ("您好，请问有什么可以帮您？", 2.6),
        ("好", 0.4),
        ("请稍等，我帮您查一下订单的状态。", 3.3),
        ("我们用 LiveKit 和 WebRTC 做实时语音。", 3.6),
        ("こんにちは、ご用件をどうぞ。", 2.2),
        ("안녕하세요, 무엇을 도와드릴까요?", 2.4),
        ("Können Sie das bitte wiederholen?", 2.0),
    ],
)
def test_the_bounds_hold_people_who_speak_half_as_fast_and_twice_as_fast(text: str, usual_s: float) -> None:
    bounds = duration_of(text)
    assert bounds.least_s < usual_s / 2
    assert usual_s * 2 < bounds.most_s
    assert usual_s / 2 < bounds.likely_s < usual_s * 2


async def test_a_real_voice_is_well_within_the_bounds() -> None:
    texts = [
        TEXT,
        "Good morning.",
        "No.",
        "I am sorry, but that number is not in our records; could you repeat it?",
    ]
    turn = Turn(Voice(id="test", engine="hibari", language="en-US", licence="none"), seed=1)
    async with open_engine("hibari") as engine:
        for text in texts:

            async def segments(text: str = text) -> AsyncGenerator[Segment]:
                yield Segment(0, text, 0, len(text))

            async with aclosing(engine.speak(turn, segments())) as frames:
                spoken_s = sum([frame.seconds async for frame in frames])
            bounds = duration_of(text)
            assert 1.5 * bounds.least_s < spoken_s < bounds.most_s / 1.5, text
            assert spoken_s / 1.7 < bounds.likely_s < spoken_s * 1.7, text


# Recovery

HOLD = 16
SILENT = (7,) * 400


@dataclass
class Speaker:
    """What an engine does: asks the LM once an attempt, and notes it."""

    scripts: list[Script]
    asked: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lm = ScriptedLM(self.scripts)

    def generate(self, text: str, attempt: int) -> AsyncGenerator[list[int]]:
        self.asked.append((text, attempt))
        return self.lm.generate([1], Sampling(), seed=attempt)

    async def say(self, text: str = TEXT, hold: int = HOLD) -> list[list[int]]:
        async with aclosing(recovered(text, self.generate, hold=hold)) as groups:
            return [group async for group in groups]


def script(codes: Sequence[int], **more: object) -> Script:
    return Script(tuple(codes), **more)  # type: ignore[arg-type]  # passed on as written below


async def test_what_goes_well_passes_with_the_first_window_at_once() -> None:
    codes = speech(TOKENS)
    speaker = Speaker([script(codes)])
    groups = await speaker.say()
    assert groups[0] == codes[:HOLD]
    assert groups[1:] == [[code] for code in codes[HOLD:]]
    assert speaker.asked == [(TEXT, 0)]


async def test_what_is_shorter_than_the_first_window_passes_at_its_end() -> None:
    assert await Speaker([script([1, 2, 3])]).say("A") == [[1, 2, 3]]


@pytest.mark.parametrize(
    "wrong",
    [
        script([]),
        script(speech(10)),
        script([7], then="again"),
        script([7, 8, 9], then="again"),
        script(speech(6, 1), then="again"),
        script([7] * 60),
    ],
    ids=[
        "ends at once",
        "ends too soon",
        "one code for ever",
        "silence",
        "a loop at once",
        "a short silence",
    ],
)
async def test_before_the_first_sound_another_seed_is_tried_and_nothing_of_the_first_is_heard(
    wrong: Script,
) -> None:
    codes = speech(TOKENS)
    speaker = Speaker([wrong, script(codes)])
    assert [code for group in await speaker.say() for code in group] == codes
    assert speaker.asked == [(TEXT, 0), (TEXT, 1)]
    assert speaker.lm.live == 0
    assert speaker.lm.requests[0].steps < 120, "it was stopped"


async def test_after_two_failures_the_text_is_split_and_both_halves_are_said() -> None:
    first, second = speech(80, 1), speech(90, 2)
    speaker = Speaker([script([]), script([]), script(first), script([]), script(second)])
    assert [code for group in await speaker.say() for code in group] == first + second
    head, tail = "Let me look that up for you,", "it only takes a moment."
    assert speaker.asked == [(TEXT, 0), (TEXT, 1), (head, 2), (tail, 3), (tail, 4)]


async def test_when_all_is_tried_it_is_an_error_and_never_silence() -> None:
    speaker = Speaker([script(SILENT)])
    with pytest.raises(SynthesisFailed, match="went wrong 4 times, at last: it fell silent"):
        await speaker.say()
    assert len(speaker.asked) == 4, "twice whole, then the first half twice"


async def test_a_text_that_cannot_be_split_ends_after_two() -> None:
    speaker = Speaker([script([])])
    with pytest.raises(SynthesisFailed, match="went wrong 2 times"):
        await speaker.say("A")
    assert speaker.asked == [("A", 0), ("A", 1)]


@pytest.mark.parametrize("wrong", [SILENT, tuple(speech(20, 5)) * 30, tuple(speech(5000, 6))])
async def test_after_the_first_sound_it_is_an_honest_error(wrong: tuple[int, ...]) -> None:
    speaker = Speaker([script((*speech(60), *wrong)), script(speech(TOKENS))])
    heard: list[int] = []
    with pytest.raises(SynthesisFailed, match="after it began"):
        async with aclosing(recovered(TEXT, speaker.generate, hold=HOLD)) as groups:
            async for group in groups:
                heard += group
    assert heard[:60] == speech(60)
    assert speaker.asked == [(TEXT, 0)]
    assert speaker.lm.live == 0


async def test_an_error_of_the_model_passes_as_it_is() -> None:
    speaker = Speaker([script([1, 2], then="fail")])
    with pytest.raises(SynthesisFailed, match="as its script says"):
        await speaker.say()
    assert (len(speaker.asked), speaker.lm.live) == (1, 0)


async def test_silence_first_is_held_until_speech_begins_and_then_all_of_it_comes() -> None:
    codes = [7] * 60 + speech(TOKENS)
    groups = await Speaker([script(codes)]).say()
    assert groups[0] == codes[:64], "until a fifth different code shows that it is speech"
    assert [code for group in groups for code in group] == codes


@pytest.mark.parametrize("after", [0, 1, 5])
async def test_closing_closes_the_models_request(after: int) -> None:
    speaker = Speaker([script([], delay_s=0), script(speech(TOKENS))])
    groups = recovered(TEXT, speaker.generate, hold=HOLD)
    for _ in range(after):
        await anext(groups)
    await groups.aclose()
    steps = speaker.lm.steps
    assert speaker.lm.live == 0
    await asyncio.sleep(0)
    assert speaker.lm.steps == steps


async def test_cancelling_a_reader_that_waits_closes_the_models_request() -> None:
    speaker = Speaker([script(speech(HOLD - 1), then="hang")])
    reading = asyncio.create_task(speaker.say())
    await asyncio.sleep(0.01)
    assert speaker.lm.live == 1
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert speaker.lm.live == 0


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One two. Three four.", ("One two.", "Three four.")),
        ("No, I really do not think that this is so", ("No, I really do not", "think that this is so")),
        ("one two three four", ("one two", "three four")),
        ("您好，请稍等一下。", ("您好，", "请稍等一下。")),
        ("请稍等一下", ("请稍", "等一下")),
        ("extraordinarily", ("extraor", "dinarily")),
        ("A ...", None),
        ("A", None),
        ("...", None),
    ],
)
def test_halves_are_cut_after_a_mark_else_between_words_else_anywhere(
    text: str, parts: tuple[str, str] | None
) -> None:
    assert halves(text) == parts

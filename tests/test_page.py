"""The page in a real Chromium, with a stand-in for the agent: what is pressed, shown, heard and cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from playwright.async_api import Page, expect

from agent.serving import serving
from agent.transports.webrtc import WebRtcCall
from agent.web import Doors, ListVoices, Offered, build_app
from tests.chromium import MIC_RATE, chromium_page, heard, marks, needs_chromium, until, write_mic
from tests.parrot import Parrot, voices
from tts_plugin.audio import Pcm, silence, to_int16
from tts_plugin.listener import listen

pytestmark = needs_chromium

STATIC = Path(__file__).parents[1] / "demo" / "static"
SOUND = 0.01  # RMS; the parrot's tone has 0.15
LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen " * 3


@dataclass(slots=True)
class Desk:
    """The page and the parrot behind it."""

    page: Page
    parrot: Parrot

    async def call(self) -> None:
        await self.page.get_by_role("button", name="Call", exact=True).click()
        await until(self.page, "sparkvoice.state", lambda state: state == "speaking")

    async def hang_up(self) -> None:
        await self.page.get_by_role("button", name="Hang up", exact=True).click()

    async def type(self, text: str) -> None:
        await self.page.get_by_label("Message to the agent").fill(text)
        await self.page.keyboard.press("Enter")


@asynccontextmanager
async def a_desk(
    greeting: str = LONG,
    host: str = "127.0.0.1",
    doors: Doors | None = None,
    *,
    mic: Path | None = None,
    allowed: bool = True,
    flags: Sequence[str] = (),
    listed: ListVoices = voices,
) -> AsyncIterator[Desk]:
    parrot = Parrot(greeting)
    app = build_app(STATIC, parrot, listed, doors or Doors())
    async with (
        serving(app, listen("127.0.0.1", 0)) as port,
        chromium_page(f"http://{host}:{port}/", mic=mic, allowed=allowed, flags=flags) as page,
    ):
        yield Desk(page, parrot)


@pytest.fixture(scope="module")
def quiet_mic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mic(tmp_path_factory.mktemp("mic") / "quiet.wav", silence(10, MIC_RATE))


@pytest.fixture(scope="module")
def talking_mic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2.5 s of silence, 0.7 s of something like a vowel, 10 s of silence."""
    return write_mic(
        tmp_path_factory.mktemp("mic") / "talking.wav",
        np.concatenate([silence(2.5, MIC_RATE), vowel(0.7), silence(10, MIC_RATE)]),
    )


def vowel(seconds: float) -> Pcm:
    """A buzz of 140 Hz through the formants of an "a", its pitch moving as a voice's does."""
    times = np.arange(round(seconds * MIC_RATE)) / MIC_RATE
    phase = 2 * np.pi * np.cumsum(140 + 15 * np.sin(2 * np.pi * 4 * times)) / MIC_RATE
    wave = np.zeros(len(times))
    for harmonic in range(1, 30):
        hz = 140 * harmonic
        gain = sum(1 / (1 + ((hz - formant) / 120) ** 2) for formant in (730, 1090, 2440)) + 0.02
        wave += gain * np.sin(harmonic * phase)
    return to_int16(0.4 * wave / np.abs(wave).max())


async def test_a_call_is_heard_and_a_typed_question_cuts_it_off_within_milliseconds(quiet_mic: Path) -> None:
    async with a_desk(mic=quiet_mic) as desk:
        page = desk.page
        await desk.call()
        # the agent's words appear while it speaks
        log = page.get_by_role("log")
        await expect(log).to_contain_text("Agent one two three")
        level = page.get_by_role("meter", name="Agent level")
        await expect(level).not_to_have_attribute("aria-valuenow", "0")
        await expect(log).not_to_contain_text("interrupted")

        await desk.type("When are you open?")
        await until(page, "sparkvoice.marks.some(mark => mark.name === 'caption cut')")
        cut, *_ = await marks(page, "cut")
        await page.wait_for_timeout(1200)
        await desk.hang_up()

        sound = await heard(page, cut["page_ms"] - 500)
        assert sound.loudest(sound.heard, cut["page_ms"] - 400, cut["page_ms"]) > 0.1
        # the gain is down; what was under way still arrives and is not heard
        assert cut["page_ms"] - cut["sent_ms"] < 100
        assert sound.loudest(sound.heard, cut["page_ms"] + 20, cut["page_ms"] + 60) < SOUND
        # captions of both sides, the unheard rest gone, and a mark where it was cut
        await expect(log).not_to_contain_text("sixteen")
        await expect(log).to_contain_text("interrupted")
        await expect(log).to_contain_text("You When are you open?")
        await expect(log).to_contain_text("You wrote When are you open?")
        # and the answer was heard
        opened = [mark for mark in await marks(page, "heard") if mark["page_ms"] > cut["page_ms"]]
        assert len(opened) == 1
        await expect(page.get_by_label("Latency")).to_contain_text("ms")
        async with asyncio.timeout(2):
            assert await desk.parrot.calls[0].ended() == "hung up"


async def test_the_callers_voice_silences_the_agent(talking_mic: Path) -> None:
    async with a_desk(mic=talking_mic) as desk:
        page = desk.page
        await desk.call()
        level = page.get_by_role("meter", name="Microphone level")
        await expect(level).not_to_have_attribute("aria-valuenow", "0", timeout=10_000)
        await until(page, "sparkvoice.latency.barge_ms.length")
        cut, *_ = await marks(page, "cut")
        await page.wait_for_timeout(150)
        sound = await heard(page, cut["page_ms"] - 1000)
        assert sound.loudest(sound.heard, cut["page_ms"] - 300, cut["page_ms"]) > 0.1
        assert sound.loudest(sound.heard, cut["page_ms"] + 20, cut["page_ms"] + 60) < SOUND
        barge_ms = (await page.evaluate("sparkvoice.latency"))["barge_ms"]
        assert 20 < barge_ms[0] < 1000
        await expect(page.get_by_role("log")).to_contain_text("interrupted")
        # it answers when the caller is silent
        await until(page, "sparkvoice.marks.filter(mark => mark.name === 'heard').length", lambda n: n >= 2)
        reply_ms = (await page.evaluate("sparkvoice.latency"))["reply_ms"]
        assert 100 < reply_ms[-1] < 3000


async def test_without_a_microphone_the_page_says_how_to_fix_it_and_goes_on_by_typing() -> None:
    async with a_desk("Hello", allowed=False) as desk:
        page = desk.page
        await page.get_by_role("button", name="Call", exact=True).click()
        await expect(page.get_by_role("alert")).to_contain_text("The microphone is blocked")
        await expect(page.get_by_role("button", name="Call", exact=True)).to_be_visible()
        await page.get_by_role("button", name="Continue by typing").click()
        await until(page, "sparkvoice.marks.some(mark => mark.name === 'heard')")
        await expect(page.get_by_label("Message to the agent")).to_be_focused()
        await page.keyboard.type("Can you hear me?")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("log")).to_contain_text("You wrote Can you hear me?")
        # nothing but pings comes from such a page, and the call stays
        await page.wait_for_timeout(3000)
        assert desk.parrot.why_ended == []


async def test_typing_into_an_idle_page_starts_a_call() -> None:
    async with a_desk("", allowed=False) as desk:
        await desk.type("Hello?")
        await expect(desk.page.get_by_role("log")).to_contain_text("You wrote Hello?", timeout=8000)


async def test_an_insecure_page_says_so_and_can_still_be_typed_to() -> None:
    # not localhost, not https
    flags = ["--host-resolver-rules=MAP page.example 127.0.0.1"]
    async with a_desk("Hello", "page.example", Doors(hosts=("page.example",)), flags=flags) as desk:
        page = desk.page
        await expect(page.get_by_role("alert")).to_contain_text("https pages and to localhost only")
        await page.get_by_role("button", name="Continue by typing").click()
        await desk.type("Hello?")
        await expect(page.get_by_role("log")).to_contain_text("You wrote Hello?")


async def test_a_connection_that_breaks_is_made_again_by_itself(quiet_mic: Path) -> None:
    async with a_desk(mic=quiet_mic) as desk:
        await desk.call()
        silence_of(desk.parrot.calls[0])
        await until(desk.page, "sparkvoice.stateLog.some(entry => entry.state === 'reconnecting')")
        await until(desk.page, "sparkvoice.marks.filter(mark => mark.name === 'connected').length === 2")
        await until(desk.page, "sparkvoice.state", lambda state: state == "speaking")
        assert len(desk.parrot.calls) == 2


def silence_of(call: WebRtcCall) -> None:
    """As when the network goes: the server's socket falls silent without a goodbye."""
    assert call._channel is not None
    for protocol in call._channel.transport.transport.transport.iceGatherer._connection._protocols:
        protocol.transport.close()


@pytest.mark.parametrize(
    ("why", "state", "hint"),
    [
        ("the agent hung up", "The agent hung up.", "Press Call to talk again."),
        ("closing time", "Call ended", "Closing time. Press Call to talk again."),
    ],
)
async def test_when_the_agent_ends_the_call_the_page_says_so_once_and_stays_down(
    quiet_mic: Path, why: str, state: str, hint: str
) -> None:
    async with a_desk(mic=quiet_mic) as desk:
        await desk.call()
        desk.parrot.calls[0].hang_up(why)
        await expect(desk.page.get_by_role("status")).to_have_text(state)
        await expect(desk.page.locator("#hint")).to_have_text(hint)
        await expect(desk.page.get_by_role("log")).not_to_contain_text("ended")
        await desk.page.wait_for_timeout(800)
        assert len(desk.parrot.calls) == 1


async def test_an_agent_that_cannot_be_reached_is_said_with_one_full_stop(quiet_mic: Path) -> None:
    async with a_desk(mic=quiet_mic) as desk:
        await desk.page.route("**/offer", lambda route: route.abort())
        await desk.page.get_by_role("button", name="Call", exact=True).click()
        hint = desk.page.locator("#hint")
        await expect(hint).to_have_text("The agent cannot be reached. Trying again…")
        await expect(desk.page.get_by_role("status")).to_have_text("Reconnecting…")


async def test_what_the_page_says_fits_together_while_it_connects(quiet_mic: Path) -> None:
    async with a_desk(mic=quiet_mic) as desk:
        page = desk.page
        await page.evaluate(
            """() => {
                globalThis.said = [];
                const read = (id) => document.getElementById(id).textContent;
                new MutationObserver(() => said.push([read("state"), read("hint")]))
                    .observe(document.querySelector(".status"), { childList: true, subtree: true });
            }"""
        )
        await desk.call()
        silence_of(desk.parrot.calls[0])
        await until(page, "sparkvoice.marks.filter(mark => mark.name === 'connected').length === 2")
        await until(page, "sparkvoice.state", lambda state: state == "speaking")
        said = [tuple(pair) for pair in await page.evaluate("said")]
    assert {hint for state, hint in said if state in ("Speaking", "Listening")} <= {
        f"0:0{n}" for n in range(10)
    }
    waiting = {state for state, hint in said if "moment" in hint or "again…" in hint or "Attempt" in hint}
    assert waiting == {"Connecting…", "Reconnecting…"}


async def test_a_voice_that_is_added_is_offered_without_a_reload_and_the_choice_is_kept() -> None:
    there = [Offered("hibari", "Hibari", "en-US", default=True), Offered("ava", "Ava", "und")]

    async def listed() -> list[Offered]:
        return there

    async with a_desk("Hello", allowed=False, listed=listed) as desk:
        voice = desk.page.get_by_label("Voice")
        options = voice.locator("option")
        await expect(options).to_have_text(["Hibari (en-US)", "Ava"])
        await voice.select_option("ava")
        there.insert(0, Offered("ada", "Ada", "en"))
        await voice.hover()
        await expect(options).to_have_text(["Ada (en)", "Hibari (en-US)", "Ava"])
        await expect(voice).to_have_value("ava")
        there.append(Offered("zoe", "Zoe", "en"))
        await desk.type("Hello?")  # which begins a call
        await expect(options).to_have_count(4)
        await until(desk.page, "sparkvoice.marks.some(mark => mark.name === 'connected')")
        assert desk.parrot.chosen == ["ava"]


async def test_a_window_that_turns_keeps_the_last_words_in_sight(quiet_mic: Path) -> None:
    async with a_desk("", mic=quiet_mic) as desk:
        page = desk.page
        await page.set_viewport_size({"width": 900, "height": 700})
        for _ in range(8):
            await desk.type("Something long enough to fill more than a line of the conversation, and more.")
            await page.wait_for_timeout(100)
        log = page.get_by_role("log")
        await expect(log.locator(".said.user")).to_have_count(8, timeout=8000)
        hidden = "(log) => log.scrollHeight - log.scrollTop - log.clientHeight"
        for width, height in ((390, 700), (390, 480), (844, 390), (320, 568)):
            await page.set_viewport_size({"width": width, "height": height})
            await page.wait_for_timeout(150)
            assert await log.evaluate(hidden) < 2, f"{width} by {height}"
        # who reads old lines is left there
        await log.evaluate(
            """(log) => new Promise((done) => {
                log.addEventListener("scroll", () => setTimeout(done), {once: true});
                log.scrollTop = 0;
            })"""
        )
        await page.wait_for_timeout(150)
        await page.set_viewport_size({"width": 390, "height": 600})
        await page.wait_for_timeout(150)
        assert await log.evaluate("(log) => log.scrollTop") == 0


async def test_what_moves_the_end_before_the_event_of_a_scroll_changes_nothing_for_the_reader(
    quiet_mic: Path,
) -> None:
    async with a_desk(mic=quiet_mic) as desk:
        await desk.page.evaluate(
            """async () => {
                const {Captions} = await import("/captions.js");
                const log = document.getElementById("log");
                const captions = new Captions(log, document.getElementById("empty"));
                let said = 0;
                window.say = () => captions.show({id: said++, role: "agent", text: "word ".repeat(150)});
                window.painted = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
                for (let n = 0; n < 9; n++) say();
                await painted();
            }"""
        )
        hidden = """async () => {
            await painted(); await painted();
            const log = document.getElementById("log");
            return log.scrollHeight - log.scrollTop - log.clientHeight;
        }"""
        # words scroll to the end; before that is told, the window is narrower, then wider
        for width in ("250px", "", "320px"):
            await desk.page.evaluate("w => { say(); document.getElementById('log').style.width = w; }", width)
            assert await desk.page.evaluate(hidden) < 2, width
        # the reader goes up; before that is told, words come, or the window turns
        for then in ("say()", "log.style.width = '250px'", "log.style.height = '200px'"):
            top = await desk.page.evaluate(
                f"""async () => {{
                    const log = document.getElementById("log");
                    log.scrollTop = log.scrollHeight;
                    await painted(); await painted();
                    log.scrollTop = 0;
                    {then};
                    await painted(); await painted();
                    return log.scrollTop;
                }}"""
            )
            assert top == 0, then


async def test_a_busy_agent_is_asked_again_and_then_said_to_be_busy(quiet_mic: Path) -> None:
    async with a_desk(mic=quiet_mic, doors=Doors(max_calls=1)) as desk:
        await desk.call()
        async with chromium_page(desk.page.url, mic=quiet_mic) as second:
            await second.get_by_role("button", name="Call", exact=True).click()
            await expect(second.locator("#hint")).to_contain_text("All 1 lines are busy")
            await desk.hang_up()
            await until(second, "sparkvoice.state", lambda state: state == "speaking")


async def test_a_closed_tab_ends_the_call(quiet_mic: Path) -> None:
    async with a_desk(mic=quiet_mic) as desk:
        await desk.call()
        await desk.page.close()
        async with asyncio.timeout(3):
            assert await desk.parrot.calls[0].ended()


async def test_mute_voice_and_keyboard(quiet_mic: Path) -> None:
    async with a_desk(mic=quiet_mic) as desk:
        page = desk.page
        voice = page.get_by_label("Voice")
        await voice.select_option("tone")
        call = page.get_by_role("button", name="Call", exact=True)
        await call.focus()
        await page.keyboard.press("Enter")
        # who pressed it by keyboard can hang up with the same key
        await expect(page.get_by_role("button", name="Hang up", exact=True)).to_be_focused()
        await until(page, "sparkvoice.state", lambda state: state == "speaking")
        assert desk.parrot.chosen == ["tone"]
        await voice.select_option("hibari")
        mute = page.get_by_role("button", name="Mute microphone")
        await mute.click()
        await expect(mute).to_have_attribute("aria-pressed", "true")
        await expect(page.locator("#hint")).to_contain_text("microphone muted")
        assert desk.parrot.calls[0].mic_muted
        assert desk.parrot.chosen == ["tone", "hibari"]
        await mute.click()
        await expect(mute).to_have_attribute("aria-pressed", "false")
        options = await page.get_by_label("Microphone", exact=True).locator("option").all_inner_texts()
        assert options[0] == "System default"
        assert any("Fake" in option for option in options[1:])
        await page.get_by_label("Microphone", exact=True).select_option(index=1)
        await page.wait_for_timeout(300)
        await page.get_by_role("button", name="Hang up", exact=True).focus()
        await page.keyboard.press("Space")
        await expect(call).to_be_focused()


WIDTHS = (320, 390, 600, 768, 820, 900, 1000, 1100, 1280, 1600)
HEIGHTS = (500, 568, 640, 720, 844, 1000)

# What is cut off, covered or squeezed: a sentence each. room: height that the conversation needs.
FAULTS = """(room) => {
    const faults = [];
    const name = (e) => e.id || e.className || e.tagName;
    const within = (a, b) => a.left >= b.left - 1 && a.top >= b.top - 1
        && a.right <= b.right + 1 && a.bottom <= b.bottom + 1;
    const apart = (a, b) => a.left >= b.right - 1 || b.left >= a.right - 1
        || a.top >= b.bottom - 1 || b.top >= a.bottom - 1;
    const page = document.documentElement;
    if (page.scrollWidth > innerWidth || page.scrollHeight > innerHeight) faults.push("the page scrolls");
    const screen = { left: 0, top: 0, right: innerWidth, bottom: innerHeight };
    const shown = [...document.querySelectorAll(
        "button, select, input, label:not(.sr), h1, #state, #hint, #notice-text, .side, dt, dd, #trace, #log"
    )].filter((e) => e.checkVisibility() && e.getBoundingClientRect().width > 1);
    const boxes = shown.map((e) => e.getBoundingClientRect());
    shown.forEach((e, i) => {
        const card = e.closest("section, header").getBoundingClientRect();
        if (!within(boxes[i], card) || !within(boxes[i], screen)) faults.push(`${name(e)} is cut off`);
        if (e.matches("button, p, dt, dd, label") && e.scrollWidth > e.clientWidth + 1)
            faults.push(`the text of ${name(e)} is cut off`);
        shown.slice(i + 1).forEach((other, j) => {
            if (!apart(boxes[i], boxes[i + 1 + j])) faults.push(`${name(e)} meets ${name(other)}`);
        });
    });
    const size = (selector) => document.querySelector(selector).getBoundingClientRect();
    if (size("#log").height < room) faults.push("the conversation has no room");
    if (size("#mic").width < 70) faults.push("the microphone's name has no room");
    for (const e of document.querySelectorAll("button, select, input"))
        if (e.checkVisibility() && size(`#${e.id}`).height < 24) faults.push(`${name(e)} is too small`);
    return faults;
}"""


async def test_everything_fits_on_the_screen(quiet_mic: Path) -> None:
    async with a_desk("Hello " * 60, mic=quiet_mic) as desk:
        assert await faults_at_every_size(desk.page) == {}
        await desk.call()
        assert await faults_at_every_size(desk.page) == {}


async def test_a_notice_fits_too() -> None:
    async with a_desk("Hello", allowed=False) as desk:
        await desk.page.get_by_role("button", name="Call", exact=True).click()
        await expect(desk.page.get_by_role("alert")).to_be_visible()
        assert await faults_at_every_size(desk.page, room=60) == {}


async def faults_at_every_size(page: Page, room: int = 100) -> dict[str, list[str]]:
    sizes = [(width, height) for width in WIDTHS for height in HEIGHTS]
    found = {}
    for width, height in [*sizes, (667, 375), (844, 390), (1000, 420)]:
        await page.set_viewport_size({"width": width, "height": height})
        if faults := await page.evaluate(FAULTS, room):
            found[f"{width} by {height}"] = faults
    return found

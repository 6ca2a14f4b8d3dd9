"""Calls over AudioSocket, from a TCP connection to a line and back."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from uuid import UUID, uuid4

import numpy as np
import pytest

from agent.line import MediaLine, TransferFailed
from agent.media_io import PlayoutOutput
from agent.transports import audiosocket
from agent.transports.audiosocket import Doors, listening
from agent.transports.audiosocket_wire import HANGUP, audio, digit, hello
from agent.transports.pacer import BEAT_S, CATCH_UP_S, Pacer
from tests.conformance.test_transport import audible_s, tone
from tests.far_asterisk import Asterisk, calling, waiting
from tests.test_dtmf import dialled
from tts_plugin.audio import Pcm, samples_of
from tts_plugin.errors import ConfigError


async def until(true: object, within_s: float = 5.0) -> None:
    assert callable(true)
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.005)


async def raw(port: int, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    return reader, writer


# ------------------------------------------------------------------------------- beginning
async def test_a_call_is_named_by_its_uuid_and_runs_at_8_khz() -> None:
    async with waiting() as (server, lines), calling(server) as far:
        line = await asyncio.wait_for(lines.get(), 5)
        assert (line.kind, line.call.id) == ("audiosocket", str(far.uuid))
        assert (line.playout.rate, line.audio.rate) == (8000, 8000)


@pytest.mark.parametrize("rate", [12000, 24000, 44100, 48000, 192000])
async def test_the_caller_s_first_audio_tells_the_rate(rate: int) -> None:
    async with waiting() as (server, lines), calling(server, Asterisk(server.port, rate)) as far:
        line = await asyncio.wait_for(lines.get(), 5)
        assert (line.playout.rate, line.audio.rate) == (rate, rate)
        await until(lambda: len(far.blocks) > 5)


async def test_an_asterisk_that_waits_for_us_hears_silence_at_once() -> None:
    async with waiting() as (server, lines):
        async with calling(server, Asterisk(server.port, talks=False)) as far:
            await until(lambda: len(far.blocks) > 3, 0.4)
            assert lines.empty()
            line = await asyncio.wait_for(lines.get(), 5)  # and is a call at 8 kHz in the end
            assert line.playout.rate == 8000


async def test_a_rate_that_changes_in_the_call_is_heard_at_the_call_s() -> None:
    async with waiting() as (server, lines), calling(server) as far:
        line = await asyncio.wait_for(lines.get(), 5)
        heard: list[int] = []

        async def listen() -> None:
            async for frame in line.audio:
                heard.extend(samples_of(bytes(frame.data.cast("b"))))

        listening_ = asyncio.create_task(listen())
        far.talks = False
        wide = tone(0.4, 16000, hz=1000)
        for at in range(0, len(wide), 320):
            await far.send(audio(wide[at : at + 320], 16000))
        await until(lambda: audible_s(np.array(heard, np.int16), 8000) > 0.3)
        listening_.cancel()
        await asyncio.gather(listening_, return_exceptions=True)


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n\r\n", audio(np.zeros(160, np.int16), 8000)])
async def test_what_is_no_audiosocket_is_closed_and_logged(
    start: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with waiting() as (server, lines):
        reader, writer = await raw(server.port, start)
        assert await asyncio.wait_for(reader.read(), 2) == b""
        writer.close()
        assert lines.empty()
    assert "no AudioSocket" in caplog.text


async def test_whoever_says_nothing_is_closed_in_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audiosocket, "HELLO_S", 0.1)
    async with waiting() as (server, lines):
        for start in (b"", hello(uuid4())[:10]):
            reader, writer = await raw(server.port, start)
            assert await asyncio.wait_for(reader.read(), 2) == b""
            writer.close()
        assert lines.empty()
    assert caplog.text.count("said nothing of use within") == 2


async def test_only_the_uuids_named_may_call(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = uuid4(), uuid4()
    answered: list[str] = []

    async def answer(line: MediaLine) -> None:
        answered.append(line.call.id)
        await line.ended()

    async with listening("127.0.0.1", 0, answer, Doors(uuids=frozenset({ours}))) as server:
        reader, writer = await raw(server.port, hello(theirs))
        assert await asyncio.wait_for(reader.read(), 2) == HANGUP
        writer.close()
        async with calling(server, Asterisk(server.port, uuid=ours)):
            await until(lambda: answered)
    assert answered == [str(ours)]
    assert "unknown UUID" in caplog.text


def test_only_the_addresses_named_may_call() -> None:
    doors = Doors(peers=("10.0.0.5", "192.168.7.0/24", "fd00::/8"))
    admitted = ["127.0.0.1", "::1", "10.0.0.5", "192.168.7.9", "fd00::1%eth0"]
    assert [doors.admits(address) for address in admitted] == [True] * 5
    assert not any(doors.admits(address) for address in ("10.0.0.6", "192.168.8.1", "8.8.8.8", "2001:db8::1"))
    with pytest.raises(ConfigError, match=r"10\.0\.0\.5"):
        Doors(peers=("asterisk.example",))


async def test_a_listener_that_others_can_reach_wants_to_know_who_may_call() -> None:
    async def answer(line: MediaLine) -> None:
        raise AssertionError(line)

    with pytest.raises(ConfigError, match="name the addresses that may call"):
        async with listening("0.0.0.0", 0, answer):
            pass


async def test_a_taken_port_is_a_config_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(ConfigError, match="cannot listen on port"):
            async with waiting(taken.getsockname()[1]):
                pass


# ---------------------------------------------------------------------------------- ending
@pytest.mark.parametrize("politely", [True, False])
async def test_the_caller_s_hanging_up_ends_the_line(politely: bool) -> None:
    async with waiting() as (server, lines), calling(server) as far:
        line = await asyncio.wait_for(lines.get(), 5)
        await far.hang_up(politely=politely)
        assert await asyncio.wait_for(line.ended(), 1) == "the caller hung up"


async def test_a_connection_that_breaks_in_a_message_ends_the_line() -> None:
    async with waiting() as (server, lines):
        _, writer = await raw(
            server.port, hello(uuid4()) + audio(np.zeros(160, np.int16), 8000) + b"\x10\x01"
        )
        line = await asyncio.wait_for(lines.get(), 5)
        writer.transport.abort()
        assert await asyncio.wait_for(line.ended(), 1) == "the caller hung up"


async def test_asterisk_s_error_ends_the_line_and_is_its_reason() -> None:
    async with waiting() as (server, lines), calling(server) as far:
        line = await asyncio.wait_for(lines.get(), 5)
        await far.send(struct.pack(">BHB", 0xFF, 1, 2))
        assert await asyncio.wait_for(line.ended(), 1) == "Asterisk reports error 02"


async def test_hanging_up_tells_asterisk_at_once_and_the_first_reason_stays() -> None:
    async with waiting() as (server, lines), calling(server) as far:
        line = await asyncio.wait_for(lines.get(), 5)
        line.hang_up("closing time")
        line.hang_up("another reason")
        await asyncio.wait_for(far.hung_up.wait(), 0.5)
        assert await line.ended() == "closing time"


async def test_an_answer_that_returns_or_fails_hangs_up(caplog: pytest.LogCaptureFixture) -> None:
    lines: list[MediaLine] = []

    async def answer(line: MediaLine) -> None:
        lines.append(line)
        if len(lines) == 2:
            raise RuntimeError("out of order")

    async with listening("127.0.0.1", 0, answer) as server:
        for _ in range(2):
            async with calling(server) as far:
                await asyncio.wait_for(far.hung_up.wait(), 2)
    assert [await line.ended() for line in lines] == ["the agent hung up", "the agent failed"]
    assert "out of order" in caplog.text


async def test_closing_the_listener_ends_its_calls_and_whoever_has_said_nothing() -> None:
    before = asyncio.all_tasks()
    async with waiting() as (server, lines):
        _, writer = await raw(server.port, b"")
        far = Asterisk(server.port)
        await far.connect()
        running = asyncio.create_task(far.run())
        line = await asyncio.wait_for(lines.get(), 5)
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 1
    assert await line.ended() == "the agent is closing down"
    await asyncio.wait_for(running, 1)
    writer.close()
    await far.hang_up()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before


async def test_an_asterisk_that_does_not_read_holds_the_playout_and_nothing_piles_up() -> None:
    async with waiting() as (server, lines):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
        _, writer = await asyncio.open_connection(sock=sock, limit=1024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # a read transport
        writer.write(hello(uuid4()) + audio(np.zeros(960, np.int16), 192000))
        line = await asyncio.wait_for(lines.get(), 5)
        line.playout.put(tone(60, 192000))
        held_s: list[float] = []

        async def held() -> bool:
            held_s.append(line.playout.heard_s)
            return len(held_s) > 20 and held_s[-1] == held_s[-20]

        async with asyncio.timeout(20):
            while not await held():
                await asyncio.sleep(0.02)
        assert held_s[-1] < 15
        began_s = time.monotonic()
        line.hang_up("enough")
        writer.transport.abort()
    assert time.monotonic() - began_s < 3


# ---------------------------------------------------------------------------------- keys
async def test_keys_are_told_once_in_order_those_before_the_callback_too() -> None:
    async with waiting() as (server, lines), calling(server) as far:
        line = await asyncio.wait_for(lines.get(), 5)
        pressed: list[str] = []
        for key in "12":
            await far.press(key)
        await asyncio.sleep(0.1)
        line.on_digit(pressed.append)
        assert pressed == ["1", "2"]
        for key in "#ad*":
            await far.press(key)
        await far.send(digit("x"))  # no key of a telephone
        await far.send(struct.pack(">BH", 0x03, 0))
        await until(lambda: len(pressed) >= 6)
        await asyncio.sleep(0.05)
        assert "".join(pressed) == "12#AD*"


@pytest.mark.parametrize("rate", [8000, 16000])
async def test_keys_that_are_only_tones_are_told_and_not_heard_as_speech(rate: int) -> None:
    async with waiting() as (server, lines), calling(server, Asterisk(server.port, rate)) as far:
        line = await asyncio.wait_for(lines.get(), 5)
        pressed: list[str] = []
        line.on_digit(pressed.append)
        far.say(dialled("147*", rate, on_s=0.2))
        heard = []
        async with asyncio.timeout(5):
            async for frame in line.audio:
                heard.append(samples_of(bytes(frame.data.cast("b"))))
                if len(heard) > 80:
                    break
        assert "".join(pressed) == "147*"
        assert audible_s(np.concatenate(heard), rate) < 4 * 0.08


async def test_a_key_that_is_tone_and_event_is_told_once() -> None:
    async with waiting() as (server, lines), calling(server) as far:
        line = await asyncio.wait_for(lines.get(), 5)
        pressed: list[str] = []
        line.on_digit(pressed.append)
        far.say(dialled("5"))
        await until(lambda: pressed)
        await far.press("5")
        await far.press("6")
        await until(lambda: "6" in pressed)
        assert pressed == ["5", "6"]


# -------------------------------------------------------------------------------- handing over
async def agi(port: int, uuid: UUID | str, **told: str) -> dict[str, str]:
    """What a dialplan's AGI(agi://127.0.0.1:port/UUID) sets."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = {"agi_network": "yes", "agi_network_script": str(uuid), **told}
    writer.write("".join(f"{name}: {value}\n" for name, value in lines.items()).encode() + b"\n")
    variables = {}
    while line := (await asyncio.wait_for(reader.readline(), 2)).decode():
        command, name, value = line.rstrip("\n").split(" ", 3)[1:] if line.startswith("SET") else ("", "", "")
        assert command == "VARIABLE"
        variables[name] = value.strip('"')
        writer.write(b"200 result=1\n")
    writer.close()
    return variables


async def test_the_dialplan_tells_who_calls_and_learns_where_to_send_the_caller() -> None:
    async with waiting() as (server, lines):
        uuid = uuid4()
        assert await agi(server.port, uuid, agi_callerid="+431234567", agi_extension="100") == {}
        async with calling(server, Asterisk(server.port, uuid=uuid)) as far:
            line = await asyncio.wait_for(lines.get(), 5)
            assert (line.call.caller, line.call.called) == ("+431234567", "100")
            await line.transfer("2001")
            await asyncio.wait_for(far.hung_up.wait(), 1)
            assert await line.ended() == "handed over to 2001"
            with pytest.raises(TransferFailed, match="over"):
                await line.transfer("2002")
        assert await agi(server.port, uuid, agi_callerid="+431234567") == {
            "SPARKVOICE_WHY": "handed over to 2001",
            "SPARKVOICE_TRANSFER": "2001",
        }


async def test_a_call_that_just_ended_leaves_its_reason_and_no_target() -> None:
    async with waiting() as (server, lines), calling(server) as far:
        line = await asyncio.wait_for(lines.get(), 5)
        assert (line.call.caller, line.call.called) == (None, None)
        line.hang_up('said "goodbye"\n${EVIL}')
        await asyncio.wait_for(far.hung_up.wait(), 1)
        told = await agi(server.port, far.uuid)
    assert told == {"SPARKVOICE_WHY": "said goodbye EVIL", "SPARKVOICE_TRANSFER": ""}


async def test_a_withheld_number_is_no_number() -> None:
    async with waiting() as (server, lines):
        uuid = uuid4()
        await agi(server.port, uuid, agi_callerid="unknown", agi_extension="100")
        async with calling(server, Asterisk(server.port, uuid=uuid)):
            line = await asyncio.wait_for(lines.get(), 5)
            assert (line.call.caller, line.call.called) == (None, "100")


@pytest.mark.parametrize("target", ["", "2001&PJSIP/evil", "2001,60,g", "${EVIL}", '2001"', "a b", "1\n2"])
async def test_what_a_dialplan_would_read_as_more_than_a_destination_is_refused(target: str) -> None:
    async with waiting() as (server, lines), calling(server):
        line = await asyncio.wait_for(lines.get(), 5)
        with pytest.raises(TransferFailed):
            await line.transfer(target)


async def test_agi_without_a_uuid_says_what_to_write(caplog: pytest.LogCaptureFixture) -> None:
    async with waiting() as (server, _):
        assert await agi(server.port, "hello") == {}
    assert "AGI(agi://host:port/${CALL})" in caplog.text


# ----------------------------------------------------------------------------------- pace
class Hands:
    """A clock that the test turns; a sleep of its task turns it, too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        own, real = asyncio.current_task(), asyncio.sleep

        async def sleep(seconds: float) -> None:
            if asyncio.current_task() is own:
                self.now_s += seconds
            else:  # a server that other tests left running in its thread
                await real(seconds)

        monkeypatch.setattr("agent.transports.pacer.asyncio.sleep", sleep)

    def __call__(self) -> float:
        return self.now_s


async def test_beats_do_not_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Hands(monkeypatch)
    pacer = Pacer(clock=clock)
    for turn in range(3000):
        await pacer.beat()
        assert clock.now_s == pytest.approx(100 + turn * BEAT_S, abs=0.004)
        clock.now_s += 0.003  # the work of each beat
    assert pacer.stalls == 0


async def test_a_short_lateness_is_made_good_and_a_long_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Hands(monkeypatch)
    pacer = Pacer(clock=clock)
    for stall_s, at_once in ((CATCH_UP_S - 0.005, 2), (1.0, 0)):
        await pacer.beat()
        clock.now_s += BEAT_S + stall_s
        before_s = clock.now_s
        beats = 0
        await pacer.beat()
        while clock.now_s == before_s:
            await pacer.beat()
            beats += 1
        assert beats - 1 <= at_once
    assert pacer.stalls == 1


@pytest.mark.parametrize("cut", ["clear", "pause"])
async def test_not_a_sample_is_written_after_an_interruption(cut: str) -> None:
    async with waiting() as (server, lines), calling(server) as far:
        line = await asyncio.wait_for(lines.get(), 5)
        output = PlayoutOutput(line.playout, rate=8000)
        for turn in range(5):
            line.playout.put(tone(5, 8000))
            begun = len(far.blocks)
            await until(lambda begun=begun: audible_s(far.said(begun), 8000) > 0.2)
            await asyncio.sleep(0.003 * turn)  # anywhere between two beats
            written: list[Pcm] = []
            line.playout.tap(written.append)
            at = len(far.blocks)
            if cut == "clear":
                output.clear_buffer()
            else:
                output.pause()
            await until(lambda at=at: len(far.blocks) > at + 10)
            assert not np.concatenate(written).any()
            # written before: what is left of it is heard within 20 ms
            assert audible_s(far.said(at), 8000) <= BEAT_S
            line.playout.clear()
            output.resume()
            line.playout.tap(None)


async def test_twenty_calls_at_once_keep_their_pace() -> None:
    async with waiting() as (server, lines):
        far_ends = [Asterisk(server.port) for _ in range(20)]
        for far in far_ends:
            await far.connect()
        tasks = [asyncio.create_task(far.run()) for far in far_ends]
        for _ in far_ends:
            (await asyncio.wait_for(lines.get(), 5)).playout.put(tone(3, 8000))
        await asyncio.sleep(2)
        for far in far_ends:
            await far.hang_up()
        await asyncio.gather(*tasks)
    for far in far_ends:
        gaps = np.diff(far.arrived_s)
        assert far.complaints == []
        assert len(gaps) * BEAT_S == pytest.approx(far.arrived_s[-1] - far.arrived_s[0], abs=0.2)
        assert np.median(np.abs(gaps - BEAT_S)) < 0.01


async def test_a_call_says_nothing_in_the_log_of_who_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "sparkvoice"):
        async with waiting() as (server, lines):
            uuid = uuid4()
            await agi(server.port, uuid, agi_callerid="+431234567", agi_extension="100")
            async with calling(server, Asterisk(server.port, uuid=uuid)) as far:
                await asyncio.wait_for(lines.get(), 5)
                await far.press("7")
                await asyncio.sleep(0.05)
    assert "1234567" not in caplog.text

"""The WebRTC transport against a real aiortc peer in the same process, all on loopback."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import av
import numpy as np
import pytest
from aiortc import RTCConfiguration, RTCIceServer, RTCPeerConnection
from aiortc.jitterbuffer import JitterBuffer
from aiortc.rtp import RtpPacket

from agent.playout import Playout
from agent.transports import webrtc
from agent.transports.ice import IceOptions, ice_connections, ice_servers, offer_loopback, without_mdns
from agent.transports.track import BLOCK, RATE, PlayoutTrack
from agent.transports.webrtc import answered, mono, parsed, shorten_jitter_buffer
from tests.far_browser import LOOPBACK, Browser, a_call
from tests.leftovers import held_now
from tts_plugin.audio import Pcm, level_dbfs, to_int16
from tts_plugin.errors import BadRequest


def tone(seconds: float, hz: float = 440.0, rate: int = RATE) -> Pcm:
    return to_int16(0.3 * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate))


def a_mic(pcm: Pcm) -> PlayoutTrack:
    playout = Playout(RATE)
    playout.put(pcm)
    return PlayoutTrack(playout)


# the track


async def frames_of(track: PlayoutTrack, count: int) -> list[av.AudioFrame]:
    return [await track.recv() for _ in range(count)]


async def test_every_frame_is_20_ms_of_mono_s16_with_timestamps_960_apart() -> None:
    playout = Playout(RATE)
    track = PlayoutTrack(playout)
    playout.put(tone(0.05))
    frames = await frames_of(track, 2)
    playout.clear()
    playout.put(tone(0.05))
    frames += await frames_of(track, 3)
    assert [frame.pts for frame in frames] == [0, 960, 1920, 2880, 3840]
    for frame in frames:
        assert (frame.samples, frame.sample_rate, frame.format.name, frame.layout.name) == (
            BLOCK,
            RATE,
            "s16",
            "mono",
        )


async def test_a_track_is_paced_by_the_clock_and_idle_is_silence() -> None:
    began_s = time.monotonic()
    frames = await frames_of(PlayoutTrack(Playout(RATE)), 11)
    assert 0.19 <= time.monotonic() - began_s < 1.0
    assert not any(frame.to_ndarray().any() for frame in frames)


async def test_after_a_stall_the_timestamps_jump_with_the_clock_and_no_speech_is_lost() -> None:
    now_s = 100.0
    playout = Playout(RATE)
    speech = tone(0.08)
    playout.put(speech)
    track = PlayoutTrack(playout, clock=lambda: now_s)
    heard = [await track.recv()]
    now_s += 0.51
    heard += [await track.recv()]
    assert heard[1].pts == 25 * BLOCK  # 510 ms after the first, to a whole frame
    now_s += 0.03
    heard += [await track.recv()]
    assert heard[2].pts == 26 * BLOCK  # 20 ms late is caught up, not skipped
    now_s += 0.02
    heard += [await track.recv()]
    assert track.stalls == 1
    assert np.array_equal(np.concatenate([frame.to_ndarray()[0] for frame in heard]), speech)


async def test_a_playout_that_fails_is_logged_and_heard_as_silence(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Playout):
        def read(self, samples: int) -> Pcm:
            raise RuntimeError("no more sound")

    with caplog.at_level(logging.ERROR):
        frame = await PlayoutTrack(Broken(RATE)).recv()
    assert not frame.to_ndarray().any()
    assert "no more sound" in caplog.text


def test_a_playout_at_another_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="48000"):
        PlayoutTrack(Playout(24_000))


def test_received_stereo_is_averaged_to_mono_and_mono_stays() -> None:
    left, right = np.full(BLOCK, 30_000, np.int16), np.full(BLOCK, 20_000, np.int16)
    both = np.stack([left, right], axis=1).reshape(1, -1)
    stereo = av.AudioFrame.from_ndarray(both, format="s16", layout="stereo")
    assert np.array_equal(mono(stereo), np.full(BLOCK, 25_000, np.int16))
    single = av.AudioFrame.from_ndarray(left.reshape(1, -1), format="s16", layout="mono")
    assert np.array_equal(mono(single), left)


# aiortc's inside


def packets(count: int, lost: int) -> list[RtpPacket]:
    kept = [RtpPacket(sequence_number=n, timestamp=n * BLOCK) for n in range(count) if n != lost]
    for packet in kept:
        packet._data = b"opus"  # type: ignore[attr-defined]  # what aiortc's receiver sets
    return kept


def lag_packets(buffer: JitterBuffer, lost: int) -> tuple[int, int]:
    """How many packets a frame waits for: before the loss, and the most after it."""
    before, after = 0, 0
    for packet in packets(60, lost):
        _, frame = buffer.add(packet)
        if frame is not None:
            lag = packet.sequence_number - frame.timestamp // BLOCK
            before, after = (
                (max(before, lag), after) if packet.sequence_number < lost else (before, max(after, lag))
            )
    return before, after


async def test_our_jitter_buffer_holds_20_ms_and_recovers_from_a_loss_that_stock_aiortc_keeps_as_lag() -> (
    None
):
    pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    receiver = pc.addTransceiver("audio").receiver
    stock = getattr(receiver, webrtc._JITTER_BUFFER)
    assert lag_packets(stock, lost=30) == (4, 14)
    shorten_jitter_buffer(receiver)
    ours = getattr(receiver, webrtc._JITTER_BUFFER)
    before, after = lag_packets(ours, lost=30)
    assert before == 1
    assert after <= 3
    await pc.close()


async def test_a_box_with_only_lo_gets_its_127_0_0_1_and_another_box_does_not() -> None:
    pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    pc.createDataChannel("ctl")
    (connection,) = ice_connections(pc)
    offer_loopback(connection, always=False)
    for addresses, offered in (([], ["127.0.0.1"]), (["127.0.0.2"], ["127.0.0.2"])):
        found = await connection.get_component_candidates(component=1, addresses=addresses)
        assert [candidate.host for candidate in found] == offered
    await connection.close()
    await pc.close()


def test_mdns_candidates_and_the_lists_end_are_taken_out_of_the_offer() -> None:
    kept = "a=candidate:1 1 udp 2113937151 192.0.2.2 41000 typ host\r\n"
    mdns = "a=candidate:2 1 udp 2113937151 0ffd-11ab.local 41001 typ host generation 0\r\n"
    assert without_mdns(f"v=0\r\n{mdns}{kept}a=end-of-candidates\r\n") == f"v=0\r\n{kept}"


async def test_a_browser_that_tells_no_address_is_answered_with_ours_and_connects() -> None:
    browser = Browser(None)
    offer = "".join(
        line for line in (await browser.offer()).splitlines(keepends=True) if "a=candidate" not in line
    )
    async with answered(offer, LOOPBACK) as call:
        assert " 127.0.0.1 " in call.answer
        await browser.accept(call.answer)
        async with asyncio.timeout(5):
            assert await call.connected()
    await browser.close()


# messages


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"\x00\x01", "not bytes"),
        ("", "JSON object"),
        ("[" * 10_000, "JSON object"),
        ("[]", '"type"'),
        ('{"type": 3}', '"type"'),
        ('{"text": "' + "x" * 20_000 + '"}', "at most 16384"),
        ('{"type": "text", "text": "half a pair: \\ud83d"}', "JSON object"),
    ],
)
def test_a_message_that_is_none_is_refused_with_the_reason(data: str | bytes, complaint: str) -> None:
    with pytest.raises(BadRequest, match=complaint):
        parsed(data)


# whole calls


async def test_the_browser_hears_the_playout_and_the_agent_hears_the_microphone() -> None:
    async with a_call(a_mic(tone(3.0, hz=300))) as (call, browser):
        call.playout.put(tone(0.5, hz=1000))
        call.playout.end()

        def sounding(frames: list[av.AudioFrame]) -> bool:
            return sum(level_dbfs(mono(frame)) > -20 for frame in frames) >= 20

        await browser.hears(sounding)
        loud = np.concatenate([mono(frame) for frame in browser.frames if level_dbfs(mono(frame)) > -20])
        assert pitch_hz(loud) == pytest.approx(1000, abs=60)

        async with asyncio.timeout(5):
            heard = [await anext(call.audio) for _ in range(30)]
        assert {(frame.sample_rate, frame.num_channels, frame.samples_per_channel) for frame in heard} == {
            (RATE, 1, BLOCK)
        }
        voice = np.concatenate([np.frombuffer(frame.data, np.int16) for frame in heard[10:]])
        assert pitch_hz(voice) == pytest.approx(300, abs=30)


def pitch_hz(pcm: Pcm) -> float:
    spectrum = np.abs(np.fft.rfft(pcm.astype(np.float64) * np.hanning(len(pcm))))
    return float(np.argmax(spectrum) * RATE / len(pcm))


async def test_a_300_ms_utterance_arrives_whole() -> None:
    async with a_call() as (call, browser):
        await browser.hears(lambda frames: len(frames) > 5)
        call.playout.put(tone(0.3))
        call.playout.end()
        await browser.hears(lambda frames: len(frames) > 40)
        loud = sum(level_dbfs(mono(frame)) > -25 for frame in browser.frames)
        assert 14 <= loud <= 16


async def test_messages_go_both_ways_and_early_ones_wait() -> None:
    browser = Browser(None)
    async with answered(await browser.offer(), LOOPBACK) as call:
        call.send({"type": "state", "state": "listening"})  # long before the channel
        got: list[dict[str, Any]] = []
        await browser.accept(call.answer)
        assert await browser.told("state") == {"type": "state", "state": "listening"}
        browser.channel.send('{"type": "text", "text": "Hi"}')  # before the agent listens
        browser.channel.send('{"type": "mic", "muted": true}')
        browser.channel.send('{"type": "ping", "t": 12.5}')
        pong = await browser.told("pong")
        assert pong["t"] == 12.5
        assert pong["at"] <= time.monotonic() * 1000
        call.on_message(got.append)
        assert got == [{"type": "text", "text": "Hi"}]
        assert call.mic_muted
        browser.channel.send("nonsense")
        error = await browser.told("error")
        assert error["code"] == "bad_request"
        browser.channel.send('{"type": "voice", "id": "ava"}')
        browser.channel.send('{"type": "ping"}')
        await browser.told("pong")
        assert got[1:] == [{"type": "voice", "id": "ava"}]
    assert (await browser.told("ended"))["why"] == "the agent hung up"
    await browser.close()


async def test_half_a_surrogate_pair_ends_no_call_either_way() -> None:
    async with a_call() as (call, browser):
        for nonsense in ('{"type": "\\ud800"}', '{"type": "ping", "t": "\\udfff"}'):
            browser.channel.send(nonsense)
            assert (await browser.told("error"))["code"] == "bad_request"
        call.send({"type": "caption", "text": "as a model may write it: \ud83d"})
        assert (await browser.told("caption"))["text"].endswith("\ud83d")
        browser.channel.send('{"type": "ping"}')
        await browser.told("pong")


async def test_a_muted_microphone_is_silence_even_if_the_page_sends_sound() -> None:
    async with a_call(a_mic(tone(5.0))) as (call, browser):
        browser.channel.send('{"type": "mic", "muted": true}')
        browser.channel.send('{"type": "ping"}')
        await browser.told("pong")
        async with asyncio.timeout(5):
            heard = [await anext(call.audio) for _ in range(20)]
        assert not np.frombuffer(heard[-1].data, np.int16).any()


async def test_hanging_up_ends_the_call_at_once() -> None:
    async with a_call() as (call, browser):
        browser.channel.send('{"type": "bye"}')
        async with asyncio.timeout(1):
            assert await call.ended() == "hung up"


async def test_a_browser_that_vanishes_is_noticed_within_3_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webrtc, "LOST_S", 0.4)  # the same rule on a shorter clock
    async with a_call(a_mic(tone(1.0))) as (call, browser):
        # as a killed tab does: its socket falls silent without a goodbye
        for connection in ice_connections(browser.pc):
            for protocol in connection._protocols:
                protocol.transport.close()
        async with asyncio.timeout(3):
            assert "nothing heard" in await call.ended()


async def test_a_microphone_that_cannot_be_read_ends_the_call_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: av.AudioFrame) -> Pcm:
        raise RuntimeError("no such layout")

    async with a_call(a_mic(tone(1.0))) as (call, _):
        monkeypatch.setattr(webrtc, "mono", broken)
        async with asyncio.timeout(3):
            assert await call.ended() == "the agent failed"
    assert "no such layout" in caplog.text


async def test_an_offer_that_never_connects_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webrtc, "CONNECT_S", 0.2)
    browser = Browser(None)
    async with answered(await browser.offer(), LOOPBACK) as call, asyncio.timeout(3):
        assert not await call.connected()
        assert "no connection" in await call.ended()
    await browser.close()


@pytest.mark.parametrize("offer", ["", "hello", "v=0\r\nm=audio x y z\r\n", "v=0\r\n"])
async def test_an_unusable_offer_is_a_bad_request(offer: str) -> None:
    with pytest.raises(BadRequest, match="offer"):
        async with answered(offer, LOOPBACK):
            pytest.fail("answered nonsense")


async def test_an_offer_without_audio_is_a_bad_request() -> None:
    pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    pc.createDataChannel("ctl")
    await pc.setLocalDescription(await pc.createOffer())
    with pytest.raises(BadRequest, match="audio"):
        async with answered(pc.localDescription.sdp, LOOPBACK):
            pytest.fail("answered an offer without audio")
    await pc.close()


async def test_an_offer_with_a_line_missing_or_mangled_is_answered_or_a_bad_request() -> None:
    browser = Browser(None)
    lines = (await browser.offer()).splitlines()
    await browser.close()
    refused = 0
    for at, line in enumerate(lines):
        for mangled in ([], [line, line], [line.replace("UDP", "TCP").replace("0", "-1")]):
            offer = "\r\n".join([*lines[:at], *mangled, *lines[at + 1 :], ""])
            try:
                async with answered(offer, LOOPBACK):
                    pass
            except BadRequest:  # any other error fails the test
                refused += 1
    assert refused > 10


async def test_a_silent_stun_server_is_never_asked() -> None:
    browser = Browser(None)
    offer = await browser.offer()
    began_s = time.monotonic()
    async with answered(offer, LOOPBACK):
        assert time.monotonic() - began_s < 2.0  # aiortc's own default waits 5 s for it
    await browser.close()
    assert ice_servers(IceOptions()) == []
    assert ice_servers(IceOptions(("stun:127.0.0.1:3478",))) == [RTCIceServer(["stun:127.0.0.1:3478"])]


async def test_ten_calls_leave_no_task_thread_or_socket_behind_and_close_within_a_second() -> None:
    loads = []
    for _ in range(10):
        browser = Browser(a_mic(tone(0.2)))
        async with answered(await browser.offer(), LOOPBACK) as call:
            await browser.accept(call.answer)
            assert await call.connected()
            call.playout.put(tone(1.0))
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 1.5
        await browser.close()
        await asyncio.sleep(0.05)
        loads.append(held_now())
    assert loads[-1].more_than(loads[1]) == {}

"""Carriers' webhooks and media websockets: who is let in, what a call may ask for, and how it ends."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, get_args
from xml.etree import ElementTree

import aiohttp
import numpy as np
import pytest

from agent.calls import Calls
from agent.line import MediaLine, TransferFailed
from agent.phone_server import PhoneDoors, PhoneServer
from agent.serving import serving
from agent.transports import media_streams
from agent.transports.dialect import Kind
from agent.transports.tickets import Tickets
from agent.transports.twilio import Twilio
from tests.far_carrier import BLOCK, CALLED, CALLER, MANNERS, FarCarrier, Office, office
from tts_plugin.errors import ConfigError, Overloaded
from tts_plugin.listener import listen

KINDS: tuple[Kind, ...] = get_args(Kind)
POLICY = 1008


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


class Desk:
    """An Answer that keeps the lines and leaves them alone."""

    def __init__(self) -> None:
        self.lines: list[MediaLine] = []
        self.over: list[str] = []
        self._changed = asyncio.Event()

    async def __call__(self, line: MediaLine) -> None:
        self.lines.append(line)
        self._changed.set()
        try:
            self.over.append(await line.ended())
        finally:
            self._changed.set()

    async def line(self) -> MediaLine:
        await self.until(lambda: self.lines)
        return self.lines[-1]

    async def until(self, true: Callable[[], Any]) -> Any:
        async with asyncio.timeout(5):
            while not (found := true()):
                self._changed.clear()
                await self._changed.wait()
        return found


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def a_call(kind: Kind) -> AsyncIterator[tuple[Office, Desk, MediaLine, FarCarrier]]:
    desk = Desk()
    async with office(kind, desk) as place, place.dialled() as far:
        yield place, desk, await desk.line(), far


async def refused(place: Office, *texts: str | bytes) -> int | None:
    """The close code of a media websocket that says this."""
    async with place.http.ws_connect(f"{place.url}/{place.kind}/media") as ws:
        for text in texts:
            await (ws.send_bytes(text) if isinstance(text, bytes) else ws.send_str(text))
        async with asyncio.timeout(5):
            while (await ws.receive()).type is aiohttp.WSMsgType.TEXT:
                pass
        return ws.close_code


def start_of(place: Office, token: str, call: str | None = None) -> str:
    form = place.manners.form
    own = form.get("CallSid") or form["CallUUID"]
    return json.dumps(place.manners.start("S", call or own, token))


# ------------------------------------------------------------------------------------ who comes in
async def test_a_call_tells_who_is_on_the_line(kind: Kind) -> None:
    async with a_call(kind) as (_, _, line, _):
        assert (line.kind, line.call.caller, line.call.called) == (kind, CALLER, CALLED)
        assert not line.call.outbound


async def test_a_webhook_that_the_carrier_has_not_signed_is_refused(
    kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk()
    async with office(kind, desk) as place:
        form = place.manners.form
        signed = place.manners.headers(f"{place.url}/{kind}/voice", form)
        for headers, said in (
            ({}, form),
            (signed, {**form, "From": "+15550999"}),
            (place.manners.headers(f"{place.url}/{kind}/other", {**form, "To": ""}), form),
            (dict.fromkeys(signed, "AAAA"), form),
        ):
            status, text = await place.ring(said, headers)
            assert (status, "signature" in text) == (403, True)
    assert CALLER not in caplog.text


async def test_a_carrier_without_a_secret_is_served_only_where_that_is_wished() -> None:
    desk = Desk()
    for doors, wanted in ((PhoneDoors(), 403), (PhoneDoors(unsigned=True), 200)):
        server = PhoneServer({"twilio": Twilio(None)}, desk, Calls(), doors)
        async with serving(server.app, listen("127.0.0.1", 0)) as port, aiohttp.ClientSession() as http:
            url = f"http://127.0.0.1:{port}/twilio/voice"
            async with http.post(url, data=MANNERS["twilio"].form) as response:
                text = await response.text()
                assert response.status == wanted
    assert f"ws://127.0.0.1:{port}/twilio/media" in text


def test_open_doors_are_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"phone\.unsigned is for loopback"):
        PhoneDoors(unsigned=True).require_closed("0.0.0.0", {"twilio": Twilio(None)})
    with pytest.raises(ConfigError, match=r"phone\.public_url is not set"):
        PhoneDoors().require_closed("127.0.0.1", {"twilio": Twilio("secret")})
    PhoneDoors("https://x").require_closed("0.0.0.0", {"twilio": Twilio("secret")})


async def test_a_token_lets_one_stream_in_once(kind: Kind) -> None:
    desk = Desk()
    async with office(kind, desk) as place:
        _, token = await place.invited()
        async with place.http.ws_connect(f"{place.url}/{kind}/media") as ws:
            await ws.send_str(start_of(place, token))
            await desk.line()
            assert await refused(place, start_of(place, token)) == POLICY
        for wrong in ("", "0" * 32):
            assert await refused(place, start_of(place, wrong)) == POLICY
        _, token = await place.invited()
        assert await refused(place, start_of(place, token, call="CA-of-another")) == POLICY
        assert await refused(place, start_of(place, token)) == POLICY  # it was shown already
        await desk.until(lambda: desk.over)
    assert len(desk.lines) == 1


async def test_a_ticket_expires_and_is_worth_nothing_then() -> None:
    expired: list[str] = []
    tickets = Tickets[str](0.02, expired.append)
    kept, taken = tickets.issue("kept"), tickets.issue("taken")
    assert kept != taken
    assert tickets.take(taken) == "taken"
    await asyncio.sleep(0.1)
    assert tickets.take(kept) is None
    assert expired == ["kept"]
    assert len(tickets) == 0


@pytest.mark.parametrize(
    "first",
    ["no json", "[1]", '{"event": "media", "media": {"payload": "/w=="}}', b"\x00\x01", '{"event": "start"}'],
)
async def test_a_stream_that_begins_with_anything_else_is_closed(kind: Kind, first: str | bytes) -> None:
    async with office(kind, Desk()) as place:
        assert await refused(place, first) == POLICY


async def test_a_stream_that_never_starts_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_streams, "START_S", 0.1)
    async with office("twilio", Desk()) as place:
        assert await refused(place, '{"event": "connected"}') == POLICY


async def test_all_else_is_not_there() -> None:
    async with office("twilio", Desk()) as place:
        for path, wanted in (("/", 404), ("/telnyx/media", 404), ("/twilio/voice", 405), ("/healthz", 200)):
            async with place.http.get(place.url + path) as response:
                assert response.status == wanted
        signed = place.manners.headers(f"{place.url}/twilio/document/none", {})
        async with place.http.post(f"{place.url}/twilio/document/none", headers=signed) as response:
            assert response.status == 404
        async with place.http.post(f"{place.url}/twilio/voice", data=b"a" * 70_000) as response:
            assert response.status == 413


# ------------------------------------------------------------------------------------ how many
async def test_the_caller_who_is_one_too_many_hears_the_busy_signal(kind: Kind) -> None:
    desk, calls = Desk(), Calls(max_calls=1)
    other = {**MANNERS[kind].form, "CallUUID" if kind == "plivo" else "CallSid": "another"}
    async with office(kind, desk, calls) as place:
        async with place.dialled():
            await desk.line()
            status, text = await place.ring(other)
            assert (status, place.manners.busy in text) == (200, True)
        await until(lambda: calls.taken == 0)
        await place.invited(other)
        assert f'sparkvoice_calls_refused_total{{transport="{kind}"}} 1.0' in calls.exposition().decode()


async def test_a_webhook_sent_again_takes_no_second_place() -> None:
    calls = Calls(max_calls=1)
    async with office("twilio", Desk(), calls) as place:
        _, first = await place.invited()
        _, second = await place.invited()
        assert first != second
        assert calls.taken == 1
        assert await refused(place, start_of(place, first)) == POLICY
    assert calls.taken == 0


async def test_a_webhook_sent_again_in_the_call_shares_its_place_and_the_new_stream_takes_over(
    kind: Kind,
) -> None:
    desk, calls = Desk(), Calls(max_calls=1)
    other = {**MANNERS[kind].form, "CallUUID" if kind == "plivo" else "CallSid": "another"}
    async with office(kind, desk, calls) as place:
        async with place.dialled() as first:
            await desk.line()
            media, token = await place.invited()
            assert calls.taken == 1
            assert place.manners.busy in (await place.ring(other))[1]
            async with place.streamed(media, token) as second:
                await asyncio.wait_for(first.closed.wait(), 5)
                assert await desk.until(lambda: desk.over) == ["the call goes on in another stream"]
                await second.press("7")
                pressed: list[str] = []
                desk.lines[-1].on_digit(pressed.append)
                await until(lambda: pressed == ["7"])
                assert (len(desk.lines), calls.taken, place.rest) == (2, 1, [])  # nobody was hung up
        await until(lambda: calls.taken == 0)
    assert desk.over[1:] == ["the caller hung up"]


async def test_a_webhook_sent_again_may_say_more_of_the_call_than_the_first() -> None:
    calls = Calls(max_calls=1)
    async with office("twilio", Desk(), calls) as place:
        _, first = await place.invited()
        _, second = await place.invited({**place.manners.form, "From": ""})
        assert await refused(place, start_of(place, first)) == POLICY
        assert calls.taken == 1
        assert second != first


def test_a_call_that_asks_twice_has_one_place_until_both_are_given_back() -> None:
    calls = Calls(max_calls=1)
    first, again = calls.place("twilio", "CA0"), calls.place("twilio", "CA0")
    first.give_back()
    first.give_back()
    with pytest.raises(Overloaded):
        calls.place("telnyx", "CA0")  # another carrier's call of that name
    again.give_back()
    assert calls.taken == 0


def test_a_place_is_given_back_once() -> None:
    calls = Calls(max_calls=1)
    place = calls.place("twilio")
    with pytest.raises(Overloaded, match="all 1 lines are busy"):
        calls.place("twilio")
    place.give_back()
    place.give_back()
    assert calls.taken == 0
    with calls.place("twilio"):
        assert calls.taken == 1
    assert calls.taken == 0


def test_metrics_count_by_transport_and_name_nobody() -> None:
    now = 10.0
    calls = Calls(clock=lambda: now)
    with calls.measured("twilio") as meter:
        now = 10.4
        meter.spoke()
        now = 12.0
        meter.spoke()
        meter.barged_in()
        assert 'sparkvoice_calls_active{transport="twilio"} 1.0' in calls.exposition().decode()
    text = calls.exposition().decode()
    for line in (
        'sparkvoice_calls_active{transport="twilio"} 0.0',
        'sparkvoice_call_seconds_sum{transport="twilio"} 2.0',
        'sparkvoice_barge_ins_total{transport="twilio"} 1.0',
        'sparkvoice_first_word_seconds_count{transport="twilio"} 1.0',
        'sparkvoice_first_word_seconds_bucket{le="0.5",transport="twilio"} 1.0',
    ):
        assert line in text
    labels = {word.split("=")[0] for line in text.splitlines() for word in _labels(line)}
    assert labels == {"transport", "le"}


def _labels(line: str) -> list[str]:
    return [] if line.startswith("#") else line.partition("{")[2].partition("}")[0].split(",")


async def test_metrics_are_for_this_machine_or_for_who_has_the_token() -> None:
    for doors, headers, wanted in (
        (PhoneDoors(), {}, 200),
        (PhoneDoors("https://x"), {}, 401),
        (PhoneDoors("https://x", "t"), {}, 401),
        (PhoneDoors("https://x", "t"), {"Authorization": "Bearer t"}, 200),
        (PhoneDoors(None, "t"), {"Authorization": "Bearer u"}, 401),
    ):
        server = PhoneServer({}, Desk(), Calls(), doors)
        async with serving(server.app, listen("127.0.0.1", 0)) as port, aiohttp.ClientSession() as http:
            async with http.get(f"http://127.0.0.1:{port}/metrics", headers=headers) as response:
                assert response.status == wanted


# ------------------------------------------------------------------------------------ in a call
async def test_keys_are_handed_over_those_pressed_before_anyone_asked_included(kind: Kind) -> None:
    async with a_call(kind) as (_, _, line, far):
        for digit in "12":
            await far.press(digit)
        pressed: list[str] = []
        await asyncio.sleep(0.05)
        line.on_digit(pressed.append)
        assert pressed == ["1", "2"]
        for digit in "#9*":
            await far.press(digit)
        await until(lambda: len(pressed) == 5)
        assert pressed == ["1", "2", "#", "9", "*"]


async def test_odd_messages_are_survived_and_told_once(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    async with a_call(kind) as (place, desk, line, far):
        manners = place.manners
        await far.send_text("no json")
        await far.send_text("[" * 5000)
        await far.send_bytes(b"\x00" * 160)
        await far.send(manners.start(far.stream, "CA0", "t"))
        await far.send(manners.media("another stream", 0, "AAAA"))
        await far.send(manners.media(far.stream, 0, "not base64!"))
        await far.send(manners.digit(far.stream, "x"))
        await far.send(manners.mark(far.stream, "never sent"))
        await far.send({"event": "invented", manners.stream_key: far.stream})
        await far.send({})
        await far.press("7")
        pressed: list[str] = []
        line.on_digit(pressed.append)
        await until(lambda: pressed == ["7"])
        line.playout.put(np.full(BLOCK * 5, 5000, dtype=np.int16))
        line.playout.end()
        await until(lambda: np.count_nonzero(np.abs(far.heard) > 1000) == BLOCK * 5)
        assert desk.over == []
    assert caplog.text.count("an odd message") == 1


async def test_a_message_that_is_too_large_ends_the_call(kind: Kind) -> None:
    async with a_call(kind) as (_, desk, _, far):
        await far.send_text("x" * 70_000)
        await desk.until(lambda: desk.over)
        await asyncio.wait_for(far.closed.wait(), 5)


async def test_only_silence_is_heard_until_someone_speaks_and_nothing_is_sent_for_it(kind: Kind) -> None:
    async with a_call(kind) as (_, _, _, far):
        await asyncio.sleep(0.2)
        assert far.arrivals == []


# ------------------------------------------------------------------------------------ how it ends
REST = {
    "twilio": ("POST", "/2010-04-01/Accounts/AC0/Calls/CA0.json", {"Status": "completed"}, "Basic "),
    "telnyx": ("POST", "/texml/Accounts/AC0/Calls/v3:c-0_A", {"Status": "completed"}, "Bearer 12345"),
    "plivo": ("DELETE", "/Account/AC0/Call/u-0/", {}, "Basic "),
}


async def test_the_agent_hangs_up_at_the_carrier_and_closes_the_stream(kind: Kind) -> None:
    async with a_call(kind) as (place, desk, line, far):
        line.hang_up("that was all")
        line.hang_up("the second reason is ignored")
        await asyncio.wait_for(far.closed.wait(), 5)
        assert desk.over == ["that was all"]
        ((method, path, form, auth),) = place.rest
        wanted = REST[kind]
        assert (method, path, form) == wanted[:3]
        assert str(auth).startswith(wanted[3])


async def test_the_stream_is_closed_where_the_carriers_interface_fails(
    kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_call(kind) as (place, _, line, far):
        place.rest_status = 500
        line.hang_up("that was all")
        await asyncio.wait_for(far.closed.wait(), 5)
    assert "it answered 500" in caplog.text


async def test_a_caller_who_hangs_up_is_not_hung_up_again(kind: Kind) -> None:
    async with a_call(kind) as (place, desk, line, far):
        await far.hang_up()
        assert await desk.until(lambda: desk.over) == ["the caller hung up"]
        async with asyncio.timeout(5):
            async for _ in line.audio:
                pass
    assert place.rest == []


async def test_the_end_of_the_server_ends_its_calls(kind: Kind) -> None:
    desk = Desk()
    async with office(kind, desk) as place:
        _, token = await place.invited()
        ws = await place.http.ws_connect(f"{place.url}/{kind}/media")
        await ws.send_str(start_of(place, token))
        await desk.line()
    assert len(place.rest) == 1
    async with asyncio.timeout(5):
        async for _ in desk.lines[0].audio:
            pass


async def test_a_call_is_handed_over(kind: Kind) -> None:
    async with a_call(kind) as (place, desk, line, far):
        await line.transfer("+15550123")
        assert await desk.until(lambda: desk.over) == ["handed over"]
        await asyncio.wait_for(far.closed.wait(), 5)
        ((method, path, form, _),) = place.rest  # and it is not hung up
        assert (method, path) == ("POST", REST[kind][1])
        if kind == "plivo":
            assert form["legs"] == "aleg"
            url = form["aleg_url"]
            headers = place.manners.headers(url, {"CallUUID": "u-0"})
            async with place.http.post(url, data={"CallUUID": "u-0"}) as response:
                assert response.status == 403
            async with place.http.post(url, data={"CallUUID": "u-0"}, headers=headers) as response:
                document = await response.text()
            async with place.http.post(url, data={"CallUUID": "u-0"}, headers=headers) as response:
                assert response.status == 404
        else:
            document = form["Twiml" if kind == "twilio" else "Texml"]
        (dial,) = ElementTree.fromstring(document)
        assert (dial.tag, dial[0].tag, dial[0].text) == ("Dial", "Number", "+15550123")


async def test_a_stop_before_the_answer_to_a_handover_is_the_handover(kind: Kind) -> None:
    async with a_call(kind) as (place, desk, line, far):
        place.rest_answers.clear()
        handing_over = asyncio.create_task(line.transfer("+15550123"))
        await until(lambda: place.rest)
        await far.hang_up()  # until the server has read that
        assert desk.over == []
        place.rest_answers.set()
        await handing_over
        assert await desk.until(lambda: desk.over) == ["handed over"]
    assert len(place.rest) == 1


async def test_a_caller_who_hangs_up_while_a_handover_is_refused_has_hung_up(kind: Kind) -> None:
    async with a_call(kind) as (place, desk, line, far):
        place.rest_answers.clear()
        place.rest_status = 404
        handing_over = asyncio.create_task(line.transfer("+15550123"))
        await until(lambda: place.rest)
        await far.hang_up()
        place.rest_answers.set()
        with pytest.raises(TransferFailed, match="it answered 404"):
            await handing_over
        assert await desk.until(lambda: desk.over) == ["the caller hung up"]
        with pytest.raises(TransferFailed, match="the call is over: the caller hung up"):
            await line.transfer("+15550123")
    assert len(place.rest) == 1


async def test_a_stop_before_the_answer_to_a_hang_up_is_the_agents(kind: Kind) -> None:
    async with a_call(kind) as (place, desk, line, far):
        place.rest_answers.clear()
        line.hang_up("that was all")
        await until(lambda: place.rest)
        await far.hang_up()
        place.rest_answers.set()
        assert await desk.until(lambda: desk.over) == ["that was all"]
        assert await line.ended() == "that was all"


async def test_a_sip_address_can_be_dialled_too() -> None:
    async with a_call("twilio") as (place, _, line, _):
        await line.transfer("sip:desk@pbx.example.org")
        (dial,) = ElementTree.fromstring(place.rest[0][2]["Twiml"])
        assert (dial[0].tag, dial[0].text) == ("Sip", "sip:desk@pbx.example.org")


async def test_a_call_that_cannot_be_handed_over_stays(kind: Kind) -> None:
    async with a_call(kind) as (place, desk, line, far):
        with pytest.raises(TransferFailed, match="can be handed over to"):
            await line.transfer('"/><Say>boo</Say>')
        assert place.rest == []
        place.rest_status = 404
        with pytest.raises(TransferFailed, match="it answered 404"):
            await line.transfer("+15550123")
        await far.press("1")
        pressed: list[str] = []
        line.on_digit(pressed.append)
        await until(lambda: pressed == ["1"])
        assert desk.over == []


async def test_an_answer_that_fails_ends_the_call(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    async def answer(_: MediaLine) -> None:
        raise RuntimeError("no")

    calls = Calls()
    with caplog.at_level(logging.CRITICAL, "aiohttp.server"):
        async with office(kind, answer, calls) as place, place.dialled() as far:
            await asyncio.wait_for(far.closed.wait(), 5)
            await until(lambda: calls.taken == 0)
            assert len(place.rest) == 1


async def test_a_secret_that_is_missing_is_said_where_a_call_is_to_be_handed_over() -> None:
    desk = Desk()
    carrier = replace(MANNERS["telnyx"].make("http://127.0.0.1"), api_key=None)  # type: ignore[type-var]
    async with office("telnyx", desk, carrier=carrier) as place, place.dialled():
        with pytest.raises(TransferFailed, match="SPARKVOICE_TELNYX_API_KEY is not set"):
            await (await desk.line()).transfer("+15550123")

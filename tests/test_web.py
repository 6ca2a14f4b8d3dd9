"""The media process's web app: its files, its doors, and what it answers to nonsense."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiortc import RTCConfiguration, RTCPeerConnection

from agent.serving import serving
from agent.transports.webrtc import WebRtcCall
from agent.web import Calls, Doors, Stranger, build_app, require_own_name, require_own_origin
from tests.parrot import Parrot, voices
from tts_plugin.errors import Overloaded, SynthesisFailed
from tts_plugin.listener import listen

STATIC = Path(__file__).parents[1] / "demo" / "static"


@asynccontextmanager
async def the_page(doors: Doors | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    app = build_app(STATIC, Parrot(), voices, doors or Doors())
    async with (
        serving(app, listen("127.0.0.1", 0)) as port,
        aiohttp.ClientSession(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        yield http


async def an_offer() -> str:
    pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    pc.createDataChannel("ctl")
    pc.addTransceiver("audio", direction="recvonly")
    await pc.setLocalDescription(await pc.createOffer())
    sdp = pc.localDescription.sdp
    await pc.close()
    return str(sdp)


async def refused(http: aiohttp.ClientSession, **request: Any) -> tuple[int, str]:
    async with http.post("/offer", **request) as response:
        body = await response.json()
        return response.status, body["error"]["message"]


async def test_every_file_of_the_page_is_served_with_its_type_and_a_strict_policy() -> None:
    async with the_page() as http:
        for name, kind in (
            ("", "text/html"),
            ("app.js", "text/javascript"),
            ("style.css", "text/css"),
            ("mark.svg", "image/svg+xml"),
        ):
            async with http.get(f"/{name}") as response:
                assert (response.status, response.content_type) == (200, kind)
                policy = response.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                etag = response.headers["ETag"]
            async with http.get(f"/{name}", headers={"If-None-Match": etag}) as again:
                assert (again.status, await again.read()) == (304, b"")


def test_the_page_loads_nothing_from_elsewhere() -> None:
    for file in STATIC.iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text, file
        assert "https:" not in text, file
        assert "//cdn" not in text, file


@pytest.mark.parametrize("path", ["/nothing", "/../agent/web.py", "/static/app.js", "/.git/config"])
async def test_nothing_else_is_served(path: str) -> None:
    async with the_page() as http, http.get(path) as response:
        assert response.status == 404


async def test_the_voices_are_listed() -> None:
    async with the_page() as http, http.get("/voices") as response:
        listed = await response.json()
    assert listed[0] == {"id": "hibari", "name": "Hibari", "language": "en-US", "default": True}


@pytest.mark.parametrize(
    ("request_", "status", "complaint"),
    [
        ({"json": {"sdp": "hello"}}, 400, "the offer needs an audio track"),
        ({"json": {"sdp": 3}}, 400, "an offer is"),
        ({"json": {}}, 400, "an offer is"),
        ({"json": []}, 400, "not a JSON object"),
        ({"json": {"sdp": "v=0", "voice": "hibary"}}, 404, 'did you mean "hibari"'),
        ({"data": "{", "headers": {"Content-Type": "application/json"}}, 400, "not JSON"),
        ({"data": "[" * 50_000, "headers": {"Content-Type": "application/json"}}, 400, "not JSON"),
        ({"data": b"\xff\xfe", "headers": {"Content-Type": "application/json"}}, 400, "not JSON"),
        ({"data": "{}", "headers": {"Content-Type": "application/json; charset=nope"}}, 400, "not JSON"),
        ({"data": "{}", "headers": {"Content-Type": "application/json; charset=rot13"}}, 400, "not JSON"),
        (
            {"data": "{}", "headers": {"Content-Type": "application/json", "Content-Encoding": "gzip"}},
            400,
            "not JSON",
        ),
        ({"data": {"sdp": "v=0"}}, 415, "application/json"),
        ({"json": {"sdp": "x" * 100_000}}, 413, ""),
        (
            {"json": {"sdp": "v=0"}, "headers": {"Origin": "https://elsewhere.example"}},
            403,
            "may not start calls",
        ),
        ({"json": {"sdp": "v=0"}, "headers": {"Origin": "null"}}, 403, "may not start calls"),
        (
            {"json": {"sdp": "v=0"}, "headers": {"Host": "rebound.example"}},
            403,
            "start it with --name rebound.example",
        ),
    ],
)
async def test_a_bad_offer_is_refused_with_the_reason(
    request_: dict[str, Any], status: int, complaint: str
) -> None:
    async with the_page() as http:
        got, message = await refused(http, **request_)
        assert got == status
        assert complaint in message


async def test_a_good_offer_is_answered_and_one_too_many_is_told_so() -> None:
    offer = await an_offer()
    async with the_page(Doors(max_calls=1)) as http:
        async with http.post("/offer", json={"sdp": offer, "voice": None}) as response:
            assert response.status == 200
            assert "m=audio" in (await response.json())["sdp"]
        assert await refused(http, json={"sdp": offer}) == (
            503,
            "all 1 lines are busy; try again in a minute",
        )


async def test_an_answer_has_loopback_for_a_browser_on_this_machine() -> None:
    async with the_page() as http, http.post("/offer", json={"sdp": await an_offer()}) as response:
        assert " 127.0.0.1 " in (await response.json())["sdp"]


async def test_with_a_token_only_the_page_itself_is_open() -> None:
    async with the_page(Doors(token="open sesame")) as http:
        async with http.get("/") as response:
            assert response.status == 200
        async with http.get("/voices") as response:
            assert response.status == 401
        async with http.get("/voices", headers={"Authorization": "Bearer open sesame"}) as response:
            assert response.status == 200
        assert (await refused(http, json={"sdp": "v=0"}))[0] == 401
        assert (await refused(http, json={"sdp": "v=0"}, headers={"Authorization": "Bearer ünknown"}))[
            0
        ] == 401


async def test_a_token_that_is_no_text_is_a_wrong_token() -> None:
    app = build_app(STATIC, Parrot(), voices, Doors(token="open sesame"))
    async with serving(app, listen("127.0.0.1", 0)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        lines = (
            b"GET /voices HTTP/1.1",
            b"Host: localhost",
            b"Authorization: Bearer \xff",
            b"Connection: close",
        )
        writer.write(b"\r\n".join((*lines, b"", b"")))
        assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 401 ")
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    "host", ["localhost:8080", "127.0.0.1", "[::1]:8080", "192.0.2.7:80", "app.localhost", "call.example"]
)
def test_our_own_names_are_let_in(host: str) -> None:
    require_own_name(host, ("call.example",))
    require_own_origin(f"http://{host}", host)
    require_own_origin(f"https://{host}", host)
    require_own_origin(None, host)


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "[::1", "[zz]"]
)
def test_other_names_are_not(host: str) -> None:
    with pytest.raises(Stranger):
        require_own_name(host, ("call.example",))


async def test_ending_the_app_ends_its_calls() -> None:
    parrot = Parrot()
    async with Calls(parrot, Doors()) as calls:
        await calls.start(await an_offer(), None, loopback=True)
        assert len(calls) == 1
    assert len(calls) == 0


async def test_a_conversation_that_fails_ends_its_call_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    over = asyncio.Event()

    async def fail(call: WebRtcCall, voice: str | None) -> None:
        if voice is None:
            raise SynthesisFailed("the voice broke")
        await call.ended()
        over.set()

    async with Calls(fail, Doors(max_calls=2)) as calls:
        await calls.start(await an_offer(), "hibari", loopback=True)
        await calls.start(await an_offer(), None, loopback=True)
        await asyncio.wait(calls._tasks, timeout=3, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0)
        assert len(calls) == 1
        assert "the voice broke" in caplog.text
        assert not over.is_set()
        await calls.start(await an_offer(), "hibari", loopback=True)
        with pytest.raises(Overloaded):
            await calls.start(await an_offer(), "hibari", loopback=True)

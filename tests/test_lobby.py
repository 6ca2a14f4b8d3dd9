"""A LiveKit worker takes as many calls as it has places, and tells of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from livekit import api
from livekit.agents import JobRequest
from livekit.agents.job import JobAcceptArguments
from livekit.protocol import agent, models, room

from agent import lobby as lobbies
from agent.calls import Calls
from agent.exposition import metrics_app
from agent.lobby import FULL, lobby
from agent.serving import serving
from agent.shared_calls import counted, measured
from agent.transports.switchboard import Switchboard
from agent.worker import Worker, load_of
from tests.far_room import TELEPHONE
from tests.stub_livekit import KEY, KIND, SECRET, StubRoom, stub_server
from tts_plugin.listener import listen

BUSY = 'sparkvoice_calls_refused_total{transport="livekit"}'


class Offer:
    """A job as LiveKit's server offers it; accepting it takes as long as the test says."""

    def __init__(self, name: str) -> None:
        self.accepted = asyncio.Event()
        self.started = asyncio.Event()
        self.rejected: list[bool] = []
        self.request = JobRequest(
            job=agent.Job(id=f"AJ_{name}", room=models.Room(name=name)),
            on_reject=self._reject,
            on_accept=self._accept,
        )

    async def _reject(self, terminate: bool) -> None:
        self.rejected.append(terminate)

    async def _accept(self, _: JobAcceptArguments) -> None:
        self.accepted.set()
        await self.started.wait()


async def until(true: Callable[[], object], within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.005)


async def test_calls_are_taken_while_there_are_places_and_then_offered_to_others() -> None:
    calls, away = Calls(max_calls=2), list[str]()

    async def turn_away(name: str) -> None:
        away.append(name)

    async with lobby(calls, turn_away) as desk:
        first, second, third, fourth = (Offer(name) for name in "abcd")
        entering = asyncio.create_task(desk.answer(first.request, 1))
        await first.accepted.wait()
        # one runs and one is about to: the job of neither may be in the worker's list yet
        await desk.answer(second.request, 1)
        assert second.rejected == [False]  # another worker may take it
        first.started.set()
        await entering
        await desk.answer(third.request, 2)
        assert third.rejected == [False]
        fourth.started.set()
        await desk.answer(fourth.request, 1)
        assert fourth.rejected == []
    assert away == []  # the worker ended before their time was up
    assert f"{BUSY} 2.0" in calls.exposition().decode()


async def test_a_job_that_fails_to_start_gives_its_place_back() -> None:
    async def nobody(_: str) -> None:
        raise AssertionError

    async with lobby(Calls(max_calls=1), nobody) as desk:
        offer = Offer("a")
        entering = asyncio.create_task(desk.answer(offer.request, 0))
        await offer.accepted.wait()
        entering.cancel()
        await asyncio.gather(entering, return_exceptions=True)
        again = Offer("b")
        again.started.set()
        await desk.answer(again.request, 0)
        assert again.rejected == []


async def test_whoever_is_refused_is_hung_up_after_a_while_even_if_another_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lobbies, "ELSEWHERE_S", 0.05)
    away: list[str] = []

    async def turn_away(name: str) -> None:
        away.append(name)
        if name == "a":
            raise RuntimeError("no line")

    async with lobby(Calls(max_calls=1), turn_away) as desk:
        for name in "ab":
            await desk.answer(Offer(name).request, 1)
        assert away == []
        await until(lambda: away == ["a", "b"])
    assert "could not be hung up" in caplog.text


async def test_the_load_tells_how_full_it_is_and_a_full_worker_is_still_asked() -> None:
    async def nobody(_: str) -> None:
        raise AssertionError

    async with lobby(Calls(max_calls=4), nobody) as desk:
        assert desk.load(0, 0.1) == 0.1
        assert desk.load(2, 0.1) == FULL / 2
        assert desk.load(4, 0.1) == FULL < 0.7  # of LiveKit's server
        assert desk.load(1, 0.9) == 0.9


def test_a_worker_that_does_not_run_yet_reports_the_processor_s_load() -> None:
    assert 0.0 <= load_of(Worker()) <= 1.0


@pytest.mark.parametrize("taken", [True, False])
async def test_a_telephone_is_hung_up_unless_another_agent_has_come(taken: bool) -> None:
    async with stub_server() as server, api.LiveKitAPI(server.url, KEY, SECRET) as client:
        stub = server.add(StubRoom("lab", kind=KIND.SIP, attributes=TELEPHONE))
        if taken:
            stub.agent_connected.set()
        await Switchboard(client, "lab").turn_away()
        wanted = [] if taken else [room.RoomParticipantIdentity(room="lab", identity="caller")]
        assert server.asked == wanted


async def test_a_browser_that_finds_no_place_stays_in_its_room() -> None:
    async with stub_server() as server, api.LiveKitAPI(server.url, KEY, SECRET) as client:
        server.add(StubRoom("lab"))
        await Switchboard(client, "lab").turn_away()
        assert server.asked == []


# what the jobs tell


async def test_a_call_is_counted_while_its_job_is_connected_and_its_first_word_once() -> None:
    calls = Calls()

    def told() -> str:
        return calls.exposition().decode()

    async with counted(calls) as path:
        async with measured(path) as meter:
            await until(lambda: 'sparkvoice_calls_active{transport="livekit"} 1.0' in told())
            meter.spoke()
            meter.spoke()
            meter.barged_in()
            await until(lambda: 'sparkvoice_barge_ins_total{transport="livekit"} 1.0' in told())
        await until(lambda: 'sparkvoice_calls_active{transport="livekit"} 0.0' in told())
        assert 'sparkvoice_first_word_seconds_count{transport="livekit"} 1.0' in told()
        assert 'sparkvoice_call_seconds_count{transport="livekit"} 1.0' in told()


async def test_a_call_goes_on_where_nobody_counts(tmp_path: Path) -> None:
    for path in (None, tmp_path / "gone"):
        async with measured(path) as meter:
            meter.spoke()
            meter.barged_in()
    calls = Calls()
    async with AsyncExitStack() as job:
        async with counted(calls) as path:
            meter = await job.enter_async_context(measured(path))
            await until(lambda: 'calls_active{transport="livekit"} 1.0' in calls.exposition().decode())
        meter.spoke()


@pytest.mark.parametrize("token", [None, "a secret"])
async def test_the_metrics_are_for_this_machine_or_for_whoever_has_the_token(token: str | None) -> None:
    app: web.Application = metrics_app(Calls(), token)
    async with serving(app, listen("127.0.0.1", 0)) as port, aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{port}/metrics"
        async with http.get(url) as response:
            assert response.status == (200 if token is None else 401)
        async with http.get(url, headers={"Authorization": "Bearer a secret"}) as response:
            assert response.status == 200
            assert "sparkvoice_calls_active" in await response.text()

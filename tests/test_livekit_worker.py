"""The LiveKit worker as its processes: at the console, and with jobs from a server's stand-in."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import numpy as np
import psutil
import pytest
from livekit.protocol.agent_pb import agent_session as console
from livekit.protocol.room import RoomParticipantIdentity

from agent.bench.caller import spoken
from agent.config import load_settings
from agent.ears import new_recogniser
from agent.recogniser_process import RecogniserProcess
from agent.transports.switchboard import Outbound
from agent.worker import outbound_of
from tests.far_room import TELEPHONE
from tests.stub_livekit import KEY, KIND, SECRET, StubRoom, stub_server
from tts_plugin.audio import Pcm, bytes_of, level_dbfs, samples_of, silence
from tts_plugin.config import load_settings as load_engine_side
from tts_plugin.errors import BadRequest, ConfigError
from tts_plugin.listener import listen
from tts_plugin.resample import StreamResampler
from tts_plugin.server.local import LocalServer

ROOT = Path(__file__).parents[1]
WIRE_RATE = 48_000
BLOCK = WIRE_RATE // 50
LOUD_DBFS = -40.0
# what each process of the worker imports first: a model of livekit-local-inference leaves a file behind
FORBIDDEN = """
import os, pathlib, livekit.local_inference as models

def built(*args, **kwargs):
    pathlib.Path(os.environ["BUILT"]).touch()
    raise AssertionError("a model of livekit-local-inference was built")

models.VAD = models.EOT = models.init_vad = models.init_eot = built
"""

Message = console.AgentSessionMessage


# its settings


def test_a_job_s_metadata_asks_for_an_outbound_call_or_for_none() -> None:
    order = '{"phone_number": "+15550123", "sip_trunk_id": "ST_out", "customer": 7}'
    assert outbound_of(order) == Outbound("+15550123", "ST_out")
    for other in ("", "null", "[]", "vip", '{"customer": 7}'):
        assert outbound_of(other) is None
    with pytest.raises(BadRequest, match="sip_trunk_id"):
        outbound_of('{"phone_number": "+15550123"}')
    with pytest.raises(BadRequest, match="ring_s"):
        outbound_of('{"phone_number": "+1", "sip_trunk_id": "ST_out", "ring_s": 900}')


def test_the_yaml_is_that_of_sparkvoice_config_unless_an_argument_names_another(tmp_path: Path) -> None:
    named, argument = tmp_path / "named.yaml", tmp_path / "argument.yaml"
    named.write_text("agent: {greeting: Named.}\nengine: {lead_s: 2.0}\n")
    argument.write_text("agent: {greeting: Argued.}\n")
    environ = {"SPARKVOICE_CONFIG": str(named)}
    assert load_settings(environ=environ).agent.greeting == "Named."
    assert load_engine_side(environ=environ).engine.lead_s == 2.0
    assert load_settings(argument, environ=environ).agent.greeting == "Argued."
    assert load_settings(environ={}).agent.greeting is None
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        load_settings(environ={"SPARKVOICE_CONFIG": str(tmp_path / "gone.yaml")})


async def test_a_server_whose_address_was_told_comes_back_at_it_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    server = LocalServer(keep_port=True)
    try:
        with listen("127.0.0.1", 0) as taken:
            port = server._port = taken.getsockname()[1]  # as after a death
            with pytest.raises(ConfigError, match="in use"):
                await server.address()
        assert (await server.address()).url == f"http://127.0.0.1:{port}"
    finally:
        server.close()


# its processes


@asynccontextmanager
async def a_process(folder: Path, *command: str, **environ: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python process of the worker in an empty folder; told to end, and gone, at the end of the block."""
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(FORBIDDEN)
    ours = ("SPARKVOICE", "LIVEKIT")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    with (folder / "log").open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            cwd=folder,
            env=kept | {"PYTHONPATH": f"{site}:{ROOT}", "BUILT": str(folder / "built")} | environ,
            stdout=out,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            await process.wait()
        assert not (folder / "built").exists()
    finally:
        if process.returncode is None:
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for one in family:
                one.kill()
            await process.wait()


class Far:
    """What somebody hears, in blocks of 20 ms, and says."""

    def __init__(self) -> None:
        self.blocks: list[Pcm] = []
        self.to_say: list[Pcm] = []

    def hear(self, pcm: Pcm) -> None:
        self.blocks.append(pcm)

    def say(self, pcm: Pcm) -> None:
        self.to_say += np.split(pcm[: len(pcm) // BLOCK * BLOCK], len(pcm) // BLOCK)


async def said_after(blocks: Callable[[], list[Pcm]], start: int, within_s: float = 60.0) -> int:
    """Wait until there was speech from block `start` on, and no more of it for a second; where that is."""
    last, loud, quiet_s = start, 0, 0.0
    async with asyncio.timeout(within_s):
        while loud < 25 or quiet_s < 1.0:
            await asyncio.sleep(0.05)
            now = blocks()
            new = sum(level_dbfs(pcm) > LOUD_DBFS for pcm in now[last:])
            quiet_s = 0.0 if new else quiet_s + 0.05
            loud, last = loud + new, len(now)
    return last


async def words(judge: RecogniserProcess, blocks: list[Pcm]) -> str:
    down = StreamResampler(WIRE_RATE, 16_000)
    pcm = np.concatenate([down.push(np.concatenate(blocks)), down.flush()])
    return (await judge.recognise(pcm[: 28 * 16_000])).text.lower()


class Console:
    """The end that LiveKit's console has: plays the agent's audio in real time, gives the microphone's."""

    def __init__(self) -> None:
        self.far = Far()
        self.played = asyncio.Event()
        self._plays_until_s = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        talking = asyncio.create_task(self._talk(writer))
        try:
            while True:
                (size,) = struct.unpack(">I", await reader.readexactly(4))
                message = Message.FromString(await reader.readexactly(size))
                if message.HasField("audio_output"):
                    pcm = samples_of(message.audio_output.data)
                    self.far.hear(pcm)
                    self._plays_until_s = max(self._plays_until_s, loop.time()) + len(pcm) / WIRE_RATE
                elif message.HasField("audio_playback_flush"):
                    loop.call_at(self._plays_until_s, self._finished, writer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            talking.cancel()
            writer.close()

    def _finished(self, writer: asyncio.StreamWriter) -> None:
        done = Message.ConsoleIO.AudioPlaybackFinished()
        self._send(writer, Message(audio_playback_finished=done))
        self.played.set()

    async def _talk(self, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            pcm = self.far.to_say.pop(0) if self.far.to_say else silence(0.02, WIRE_RATE)
            frame = Message.ConsoleIO.AudioFrame(
                data=bytes_of(pcm), sample_rate=WIRE_RATE, num_channels=1, samples_per_channel=BLOCK
            )
            self._send(writer, Message(audio_input=frame))
            due_s += 0.02
            await asyncio.sleep(max(0.0, due_s - loop.time()))

    def _send(self, writer: asyncio.StreamWriter, message: Message) -> None:
        data = message.SerializeToString()
        writer.write(struct.pack(">I", len(data)) + data)


@pytest.mark.ears
async def test_at_livekit_s_console_the_agent_greets_and_answers(tmp_path: Path) -> None:
    (question,) = await spoken(("When are you open?",), WIRE_RATE)
    end, judge = Console(), new_recogniser(None)
    server = await asyncio.start_server(end.serve, "127.0.0.1", 0)
    where = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    command = ("-m", "livekit.agents", "console", str(ROOT / "agent" / "worker.py"), "--connect-addr", where)
    try:
        async with a_process(tmp_path, *command):
            greeted = await said_after(lambda: end.far.blocks, 0)
            assert "this is harbo" in await words(judge, end.far.blocks)
            async with asyncio.timeout(20):
                await end.played.wait()
            end.far.say(question)
            await said_after(lambda: end.far.blocks, greeted)
            assert "from 9 to 6" in await words(judge, end.far.blocks[greeted:])
    finally:
        server.close()
        await judge.aclose()


def engine_of(worker: int) -> psutil.Process | None:
    """The engine server below the worker's main process, once it listens."""
    for child in psutil.Process(worker).children():
        with suppress(psutil.NoSuchProcess):  # killed a moment ago
            if "tts_plugin.server" in child.cmdline() and child.net_connections(kind="tcp"):
                return child
    return None


def port_of(process: psutil.Process) -> int:
    return int(next(one.laddr.port for one in process.net_connections(kind="tcp") if one.status == "LISTEN"))


@pytest.mark.ears
async def test_two_jobs_share_one_engine_server_which_when_killed_is_back_at_its_url(tmp_path: Path) -> None:
    """There are places for two, a third caller is refused; the worker tells of both calls."""
    (question,) = await spoken(("When are you open?",), 16_000)
    judge = new_recogniser(None)
    with listen("127.0.0.1", 0) as free:
        metrics_port = free.getsockname()[1]
    config = tmp_path / "two.yaml"
    config.write_text(f"phone: {{max_calls: 2, metrics_port: {metrics_port}}}\n")
    try:
        async with stub_server() as server:
            account = {
                "LIVEKIT_URL": server.url,
                "LIVEKIT_API_KEY": KEY,
                "LIVEKIT_API_SECRET": SECRET,
                "SPARKVOICE_CONFIG": str(config),
            }
            async with a_process(tmp_path, "-m", "agent.worker", "dev", **account) as worker:
                async with asyncio.timeout(60):
                    await server.registered.wait()
                rooms = [server.add(StubRoom(n, kind=KIND.SIP, attributes=TELEPHONE)) for n in ("one", "two")]
                for room in rooms:
                    await server.dispatch(room.name)
                    async with asyncio.timeout(60):
                        await room.agent_connected.wait()
                    await room.publish()

                def ear(room: StubRoom) -> list[Pcm]:
                    return [pcm for _, pcm in room.ear.blocks]

                greeted = [await said_after(lambda room=room: ear(room), 0) for room in rooms]  # type: ignore[misc]
                for room in rooms:
                    assert "this is harbo" in await words(judge, ear(room))

                server.add(StubRoom("three", kind=KIND.SIP, attributes=TELEPHONE))
                await server.dispatch("three")
                async with asyncio.timeout(20):
                    while not server.asked:
                        await asyncio.sleep(0.1)
                assert server.refused == [("three", False)]
                assert server.asked == [RoomParticipantIdentity(room="three", identity="caller")]
                told = await metrics(metrics_port)
                assert 'sparkvoice_calls_active{transport="livekit"} 2.0' in told
                assert 'sparkvoice_first_word_seconds_count{transport="livekit"} 2.0' in told
                assert 'sparkvoice_calls_refused_total{transport="livekit"} 1.0' in told

                killed = engine_of(worker.pid)
                assert killed is not None
                url = port_of(killed)
                killed.kill()
                async with asyncio.timeout(60):
                    while (again := engine_of(worker.pid)) is None or again.pid == killed.pid:
                        await asyncio.sleep(0.1)
                assert port_of(again) == url

                async def asks(room: StubRoom, start: int) -> str:
                    room.speak(question)
                    await said_after(lambda: ear(room), start)
                    return await words(judge, ear(room)[start:])

                answers = await asyncio.gather(*map(asks, rooms, greeted))
                for room, answer in zip(rooms, answers, strict=True):
                    # a busy machine can cut a caller's sentence in two: who is not understood asks again
                    again_said = answer if "from 9 to 6" in answer else await asks(room, len(ear(room)))
                    assert "from 9 to 6" in again_said
                for room in rooms:
                    await room.leave()
                    async with asyncio.timeout(30):
                        await room.agent_left.wait()
                assert 'sparkvoice_call_seconds_count{transport="livekit"} 2.0' in await metrics(metrics_port)
    finally:
        await judge.aclose()


async def metrics(port: int) -> str:
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/metrics") as response:
        return await response.text()

"""The LiveKit worker: `python -m agent.worker dev|start|console|download-files`, as any LiveKit agent.

A job is one call. The main process runs what its jobs share: the engine server, whose address they find in
SPARKVOICE_URL, and one recogniser. Settings: the YAML of SPARKVOICE_CONFIG, since LiveKit's commands take no
option for it. LIVEKIT_URL, LIVEKIT_API_KEY, LIVEKIT_API_SECRET and LIVEKIT_AGENT_NAME are LiveKit's own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

from livekit import api
from livekit.agents import AgentServer, AutoSubscribe, JobContext, JobProcess, JobRequest, cli
from livekit.agents.worker import ServerOptions
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent.assistant import Assistant
from agent.calls import Calls
from agent.config import Settings, load_settings, tell_jobs
from agent.desk.bot import open_desk
from agent.ears import STT, new_recogniser
from agent.exposition import metrics_app
from agent.limiter import TELEPHONE_DBFS
from agent.lobby import Lobby, lobby
from agent.media_io import Control, PlayoutOutput
from agent.phone import Bot, PlainBot, Tally, until_over
from agent.serving import serving, settle
from agent.session import Seat, build_llm, build_session, build_vad, converse
from agent.shared_calls import counted, measured
from agent.shared_ears import SharedEars, served
from agent.transports.room import RATE, RoomCall, answered
from agent.transports.switchboard import Outbound, Switchboard
from tts_plugin import TTS
from tts_plugin.config import config_file
from tts_plugin.config import load_settings as load_engine_side
from tts_plugin.errors import BadRequest, TTSError
from tts_plugin.link import Address
from tts_plugin.listener import listen
from tts_plugin.server.local import LocalServer

KEEP_S = 5.0  # between two looks whether the engine server was given up

log = logging.getLogger("sparkvoice.worker")


class Worker(AgentServer):
    """An AgentServer that runs what its jobs share while it runs itself, and takes no more calls than there
    are places."""

    def __init__(self) -> None:
        super().__init__(setup_fnc=prepare, preload_modules=["agent.worker"], load_fnc=load_of)
        self.lobby: Lobby | None = None  # while it runs

    async def run(self, *, devmode: bool = False, unregistered: bool = False) -> None:
        settings = load_settings()
        calls = Calls(settings.phone.max_calls)
        async with AsyncExitStack() as stack:
            if settings.phone.metrics_port is not None:
                listener = stack.enter_context(listen(settings.phone.host, settings.phone.metrics_port))
                shown = metrics_app(calls, load_engine_side().server.token)
                await stack.enter_async_context(serving(shown, listener))
            engine = await stack.enter_async_context(engine_server())
            ears = await stack.enter_async_context(ears_of_all(settings.agent.ears_model))
            told = await stack.enter_async_context(counted(calls)) if hasattr(socket, "AF_UNIX") else None
            tell_jobs(engine.url, engine.token, ears, told)
            self.lobby = await stack.enter_async_context(lobby(calls, turn_away))
            await super().run(devmode=devmode, unregistered=unregistered)


async def turn_away(room: str) -> None:
    """Hang up the telephones in a room that no agent has come to."""
    async with api.LiveKitAPI() as client:
        await Switchboard(client, room).turn_away()


def load_of(worker: AgentServer) -> float:
    """The load that is reported to LiveKit's server, from 0 to 1."""
    # LiveKit's own, of the processor; its type allows one without an argument, too
    others = cast("Callable[[AgentServer], float]", ServerOptions.load_fnc)(worker)
    if isinstance(worker, Worker) and worker.lobby is not None:
        return worker.lobby.load(len(worker.active_jobs), others)
    return others


async def let_in(request: JobRequest) -> None:
    """Take a job, or refuse it."""
    assert server.lobby is not None, "jobs are offered to a worker that runs"
    await server.lobby.answer(request, len(server.active_jobs))


@asynccontextmanager
async def engine_server() -> AsyncIterator[Address]:
    """The engine server of SPARKVOICE_URL, else one that is started, and kept at the same address, while in
    the block. TTSError if it does not come up."""
    settings = load_engine_side()
    if settings.url is not None:
        yield Address(settings.url, settings.server.token)
        return
    server = LocalServer(config_file(), keep_port=True)
    try:
        address = await server.address()
        keeper = asyncio.create_task(_keep(server), name="engine server's keeper")
        try:
            yield address
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
    finally:
        server.close()


async def _keep(server: LocalServer) -> None:
    """Start the server again when it was given up: a job cannot."""
    while True:
        await asyncio.sleep(KEEP_S)
        try:
            await server.address()
        except TTSError as error:
            log.error("the engine server is down: %s", error)


@asynccontextmanager
async def ears_of_all(model: Path | None) -> AsyncIterator[Path | None]:
    """The socket of a recogniser that all jobs share; None where there are no Unix sockets."""
    if not hasattr(socket, "AF_UNIX"):
        yield None
        return
    recogniser = new_recogniser(model)
    recogniser.start()
    async with served(recogniser) as path:
        yield path


class Order(BaseModel):
    """What a job's metadata (JSON) may ask for: to call `phone_number` through the trunk `sip_trunk_id`.

    from_number: of the trunk's numbers, the one the callee sees. ring_s: how long it may ring. Other keys are
    the deployment's own.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    phone_number: str = Field(min_length=1)
    sip_trunk_id: str = Field(min_length=1)
    from_number: str | None = None
    ring_s: int = Field(default=30, ge=1, le=80)  # LiveKit's own limit


def outbound_of(metadata: str) -> Outbound | None:
    """The call that a job's metadata asks for, None if it asks for none; BadRequest if it is wrong."""
    try:
        data = json.loads(metadata or "null")
    except ValueError:
        return None  # somebody's own metadata
    if not isinstance(data, dict) or "phone_number" not in data:
        return None
    try:
        order = Order.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadRequest(f"the job's metadata: {where}: {first['msg']}") from None
    return Outbound(order.phone_number, order.sip_trunk_id, order.from_number, order.ring_s)


def prepare(process: JobProcess) -> None:
    """What a job's process can do before it has a call."""
    settings = load_settings()
    process.userdata["parts"] = (settings, build_llm(settings))
    settle()


async def answer(ctx: JobContext) -> None:
    """One job: have the conversation in a task of its own, which ends the job and is ended with it."""
    settings, brain = ctx.proc.userdata["parts"]
    if not ctx.is_fake_job():
        await ctx.connect(auto_subscribe=AutoSubscribe.AUDIO_ONLY)
    work = _at_the_console(settings, brain) if ctx.is_fake_job() else _in_the_room(ctx, settings, brain)
    talking = asyncio.create_task(work, name="conversation")

    def over(task: asyncio.Task[str]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            log.error("a conversation failed", exc_info=error)
        ctx.shutdown(reason="the agent failed" if error is not None else task.result())

    async def end() -> None:
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)

    talking.add_done_callback(over)
    ctx.add_shutdown_callback(end)


async def _in_the_room(ctx: JobContext, settings: Settings, brain: Any) -> str:
    """Talk with the caller until the call is over; why it is."""
    switchboard = Switchboard(ctx.api, ctx.room.name)
    async with answered(ctx.room, switchboard, outbound_of(ctx.job.metadata)) as call:
        if await call.connected():
            await talk(call, settings, brain)
        return await call.ended()


async def talk(call: RoomCall, settings: Settings, brain: Any) -> None:
    """Greet the caller of a call that is connected, and answer until it is over."""
    async with AsyncExitStack() as stack:
        meter = await stack.enter_async_context(measured(settings.calls))
        desk = await stack.enter_async_context(open_desk(settings)) if settings.phone.desk else None
        bot: Bot = desk.bot(call) if desk else PlainBot(Assistant(settings.agent))
        stack.callback(bot.over)  # when the conversation, which is entered later, has been left
        mouth = await stack.enter_async_context(TTS(voice=settings.agent.voice, rate=RATE))
        ears = await stack.enter_async_context(ears_of(settings))
        session = build_session(
            tts=mouth,
            stt=ears,
            llm=brain,
            vad=build_vad(settings.agent, call.playout),
            settings=settings.agent,
        )
        output = PlayoutOutput(call.playout, rate=RATE, ceiling_dbfs=TELEPHONE_DBFS)
        output.on_control(lambda control: meter.spoke() if control is Control.START else None)
        tally = Tally(bot, meter)
        conversation = await stack.enter_async_context(
            converse(
                session,
                bot.agent,
                audio_in=call.audio,
                audio_out=output,
                tell=tally.tell,
                seat=Seat(call.room, call.identity),
            )
        )
        try:
            await until_over(call, conversation, bot)
        finally:
            tally.over = True
        call.hang_up("the conversation is over")


async def _at_the_console(settings: Settings, brain: Any) -> str:
    """Talk with whoever is at the console, whose audio LiveKit wires up; nobody knows what of it echoes."""
    async with TTS(voice=settings.agent.voice) as mouth, ears_of(settings) as ears:
        session = build_session(
            tts=mouth, stt=ears, llm=brain, vad=build_vad(settings.agent, None), settings=settings.agent
        )
        over = asyncio.Event()
        session.once("close", lambda _: over.set())
        try:
            await session.start(Assistant(settings.agent), record=False)
            await over.wait()
        finally:
            await session.aclose()
    return "the conversation is over"


def ears_of(settings: Settings) -> STT:
    """The worker's shared ears, else a recogniser of one's own."""
    shared = None if settings.ears is None else SharedEars(settings.ears)
    return STT(settings.agent.ears_model, recogniser=shared)


server = Worker()
server.rtc_session(answer, on_request=let_in)


if __name__ == "__main__":
    from agent.worker import server as worker  # jobs find its functions by this name

    cli.run_app(worker)

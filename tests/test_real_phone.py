"""A real telephone call: a caller on a noisy mu-law line asks three questions and is answered, each by voice.

Nothing is a stand-in but the line: AudioSocket, the ear for lines without echo cancelling, recognition,
the FAQ, the desk, the engine server as a child, the voice; what the far end heard is recognised, too.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from agent.bench.caller import spoken
from agent.calls import Calls
from agent.config import load_settings as load_agent_side
from agent.desk.bot import open_desk
from agent.ears import bundled_model
from agent.parts import open_parts
from agent.phone_command import receptionist
from agent.recogniser import Whisper
from agent.transports.audiosocket import listening
from tests.far_asterisk import Asterisk, calling
from tests.telephone import noisy, over_mulaw
from tts_plugin.audio import Pcm, level_dbfs
from tts_plugin.config import load_settings
from tts_plugin.resample import StreamResampler

pytestmark = [pytest.mark.ears]

RATE = 8000
SNR_DB = 20.0
CONFIG = Path(__file__).parents[1] / "configs" / "support-bot.yaml"
QUESTIONS = {
    "How long does delivery take?": "two or three working days",
    "Can I pay by card?": "bank transfers",
    "Where is your shop?": "lighthouse",
}
SOUND_DBFS = -45.0


def sounding(pcm: Pcm) -> bool:
    return level_dbfs(pcm) > SOUND_DBFS


class Caller:
    """Speaks after the agent has been silent for a while, as people do, and remembers what it heard."""

    def __init__(self, far: Asterisk) -> None:
        self._far = far
        self._from = 0

    async def listen(self, *, silent_s: float = 1.2, within_s: float = 40.0) -> Pcm:
        """What the agent said, once it has been silent so long."""
        wanted = round(silent_s / 0.02)
        async with asyncio.timeout(within_s):
            while True:
                heard = self._far.blocks[self._from :]
                loud = [at for at, block in enumerate(heard) if sounding(block)]
                if loud and len(heard) - loud[-1] > wanted:
                    break
                await asyncio.sleep(0.02)
        self._from = len(self._far.blocks)
        return np.concatenate(heard)

    def rest(self) -> Pcm:
        """What the agent has said since."""
        return np.concatenate(self._far.blocks[self._from :])


async def test_a_caller_on_a_noisy_line_asks_three_questions_and_understands_the_answers() -> None:
    questions = dict(zip(QUESTIONS, await spoken(tuple(QUESTIONS), RATE), strict=True))
    whisper = await asyncio.to_thread(Whisper, bundled_model(), language="en", threads=1)

    async def understood(pcm: Pcm) -> str:
        ear = StreamResampler(RATE, 16000)
        wave = np.concatenate([ear.push(pcm), ear.flush()])
        return (await asyncio.to_thread(whisper.recognise, wave)).text.lower()

    engine_side, agent_side = load_settings(CONFIG, environ={}), load_agent_side(CONFIG, environ={})
    async with open_parts(engine_side, agent_side, CONFIG) as parts, open_desk(agent_side) as desk:
        answer = receptionist(agent_side, parts, Calls(), desk)
        async with listening("127.0.0.1", 0, answer) as server, calling(server) as far:
            far.say(noisy(np.zeros(120 * RATE, np.int16), 40.0))  # the line's noise, about -60 dBFS
            caller = Caller(far)
            # the greeting of any hour ends so; the name is one that the recogniser may spell its own way
            assert "how can i help you" in await understood(await caller.listen())
            for question, answer_words in QUESTIONS.items():
                far.mic.clear()
                far.say(noisy(over_mulaw(questions[question]), SNR_DB))
                far.say(noisy(np.zeros(60 * RATE, np.int16), 40.0))
                assert answer_words in await understood(await caller.listen())
            await far.press("#")
            await asyncio.wait_for(far.hung_up.wait(), 20)
            assert "goodbye" in await understood(caller.rest())

"""Why a call is over."""

from __future__ import annotations

import asyncio

import pytest

from agent.ending import Ending
from agent.line import TransferFailed


def test_the_first_reason_stands_and_is_told_once() -> None:
    ends: list[str] = []
    ending = Ending(lambda: ends.append(ending.because))
    ending.end("the agent hung up")
    ending.left("the caller hung up")
    ending.end("again")
    assert (ending.over, ending.because, ends) == (True, "the agent hung up", ["the agent hung up"])


async def test_a_handover_is_the_end_whoever_tells_first() -> None:
    for gone_first in (True, False):
        ending = Ending(lambda: None)
        with ending.handing_over():
            if gone_first:
                ending.left("the caller hung up")
                ending.left("the connection was lost")
            assert not ending.over
        ending.left("the caller hung up")
        assert await ending.wait() == "handed over"


def test_a_handover_that_fails_leaves_the_call_and_shows_who_has_left_it() -> None:
    ending = Ending(lambda: None)
    with pytest.raises(TransferFailed, match="busy"), ending.handing_over():
        raise TransferFailed("busy")
    assert not ending.over
    with pytest.raises(asyncio.CancelledError), ending.handing_over():
        ending.left("the caller hung up")
        raise asyncio.CancelledError
    assert ending.because == "the caller hung up"


def test_a_call_that_is_over_is_not_handed_over() -> None:
    ending = Ending(lambda: None)
    ending.end("the caller hung up")
    with pytest.raises(TransferFailed, match="the call is over: the caller hung up"), ending.handing_over():
        raise AssertionError("the carrier is not asked")


def test_an_agent_that_hangs_up_meanwhile_has_ended_the_call() -> None:
    ending = Ending(lambda: None)
    with ending.handing_over():
        ending.end("the agent is closing down")
    assert ending.because == "the agent is closing down"

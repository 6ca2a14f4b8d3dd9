"""Ctrl-C while a command runs a coroutine: it is cancelled and cleaned up, whenever the signal comes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest

from tts_plugin import interrupt


@pytest.fixture(autouse=True)
def python_handles_the_signal() -> Iterator[None]:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Spoken:
    """A coroutine's life."""

    def __init__(self) -> None:
        self.begun = False
        self.cleaned_up = False

    async def speak(self, *, interrupts: int = 0) -> str:
        self.begun = True
        try:
            for _ in range(interrupts):
                signal.raise_signal(signal.SIGINT)
                await asyncio.sleep(0)
            if interrupts:
                await asyncio.sleep(60)
            return "done"
        finally:
            await asyncio.sleep(0)
            self.cleaned_up = True


class InterruptedAsTheLoopIsMade(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        loop = super().new_event_loop()
        signal.raise_signal(signal.SIGINT)
        return loop


def test_without_an_interrupt_it_gives_the_result() -> None:
    assert interrupt.run(Spoken().speak) == "done"


def test_an_interrupt_cancels_it_and_waits_for_its_cleaning_up() -> None:
    spoken = Spoken()
    with pytest.raises(KeyboardInterrupt):
        interrupt.run(lambda: spoken.speak(interrupts=1))
    assert spoken.cleaned_up


def test_one_that_comes_as_the_loop_is_made_leaves_nothing_half_made() -> None:
    spoken = Spoken()
    asyncio.set_event_loop_policy(InterruptedAsTheLoopIsMade())
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupt.run(spoken.speak)  # a loop left open would be a ResourceWarning, and so an error
    finally:
        asyncio.set_event_loop_policy(None)
    assert not spoken.begun


def test_one_that_comes_when_all_is_done_is_still_an_interrupt() -> None:
    async def speak() -> None:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        interrupt.run(speak)


def test_a_second_one_does_not_wait_for_what_does_not_end() -> None:
    async def stubborn() -> None:
        while True:
            try:
                signal.raise_signal(signal.SIGINT)
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass

    with pytest.raises(KeyboardInterrupt):
        interrupt.run(stubborn)


def test_an_error_is_its_own() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        interrupt.run(fail)

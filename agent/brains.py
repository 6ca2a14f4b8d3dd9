"""FaqBrain: a LiveKit LLM that answers from a Faq, with no model, key or network."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from livekit.agents import llm, utils
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS, NOT_GIVEN, APIConnectOptions, NotGivenOr

from agent.faq import Entry, Faq, Matcher, words_of
from agent.read_out import digit_by_digit


@dataclass(frozen=True, slots=True)
class Call:
    """A tool to be called, by its name."""

    tool: str


class FaqBrain(llm.LLM[str]):
    """Answers the last thing the user said, word by word.

    A context in which the user has said nothing gets the greeting, an empty question a request to repeat it,
    a question that no entry covers the fallback. An entry whose action is the name of a tool that there is
    calls that tool instead. word_s: seconds between words, as a fast model takes.
    """

    def __init__(self, faq: Faq, *, word_s: float = 0.004) -> None:
        super().__init__()
        self._faq = faq
        self._matcher = Matcher(faq)
        self._word_s = word_s

    @property
    def model(self) -> str:
        return "faq"

    @property
    def provider(self) -> str:
        return "sparkvoice"

    @property
    def greeting(self) -> str:
        return self._faq.greeting

    def answer(self, chat_ctx: llm.ChatContext) -> str:
        """What is to be said next in this conversation."""
        said = self.decided(chat_ctx, ())
        assert isinstance(said, str), "no tool is called where there is none"
        return said

    def decided(self, chat_ctx: llm.ChatContext, tools: Collection[str]) -> str | Call:
        """What is to be said next, or which of `tools` is to be called."""
        question = _last_question(chat_ctx)
        if question is None:
            return self.greeting
        if not words_of(question):
            return self._faq.again
        match = self._matcher.find(question)
        if match is None:
            return self._faq.lost
        entry = match.entry
        if entry.action is not None and entry.action in tools:
            return Call(entry.action)
        said = self._last_answer(chat_ctx)
        if entry.action == "repeat" and said:
            return said
        if entry.action == "spell" and (spelt := digit_by_digit(said)):
            return spelt
        return _in_turn(entry, chat_ctx)

    def _last_answer(self, chat_ctx: llm.ChatContext) -> str:
        """What the agent said last; whole, if it was cut off and is known."""
        for message in reversed(chat_ctx.messages()):
            said = message.text_content or ""
            if message.role == "assistant" and words_of(said):
                known = (self._faq.greeting, *(text for entry in self._faq.entries for text in entry.answer))
                return next((text for text in known if _begins(text, said)), said)
        return ""

    def chat(
        self,
        *,
        chat_ctx: llm.ChatContext,
        tools: list[llm.Tool] | None = None,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
        parallel_tool_calls: NotGivenOr[bool] = NOT_GIVEN,
        tool_choice: NotGivenOr[llm.ToolChoice] = NOT_GIVEN,
        extra_kwargs: NotGivenOr[dict[str, Any]] = NOT_GIVEN,  # LiveKit's signature
    ) -> llm.LLMStream:
        del parallel_tool_calls, tool_choice, extra_kwargs
        return _Answer(self, chat_ctx, tools or [], conn_options, self._word_s)


class _Answer(llm.LLMStream):
    """One answer on its way."""

    def __init__(
        self,
        brain: FaqBrain,
        chat_ctx: llm.ChatContext,
        tools: list[llm.Tool],
        conn_options: APIConnectOptions,
        word_s: float,
    ) -> None:
        self._brain = brain
        self._word_s = word_s
        super().__init__(brain, chat_ctx=chat_ctx, tools=tools, conn_options=conn_options)

    async def _run(self) -> None:
        request = utils.shortuuid("faq_")
        tools = {tool.id for tool in self._tools if isinstance(tool, llm.FunctionTool)}
        decided = self._brain.decided(self._chat_ctx, tools)
        if isinstance(decided, Call):
            call = llm.FunctionToolCall(name=decided.tool, arguments="{}", call_id=utils.shortuuid("call_"))
            delta = llm.ChoiceDelta(role="assistant", tool_calls=[call])
            self._event_ch.send_nowait(llm.ChatChunk(id=request, delta=delta))
            return
        words = re.findall(r"\S+\s*", decided)
        for word in words:
            delta = llm.ChoiceDelta(role="assistant", content=word)
            self._event_ch.send_nowait(llm.ChatChunk(id=request, delta=delta))
            await asyncio.sleep(self._word_s)
        asked = len(words_of(_last_question(self._chat_ctx) or ""))
        usage = llm.CompletionUsage(
            completion_tokens=len(words), prompt_tokens=asked, total_tokens=len(words) + asked
        )
        self._event_ch.send_nowait(llm.ChatChunk(id=request, usage=usage))


def _last_question(chat_ctx: llm.ChatContext) -> str | None:
    for message in reversed(chat_ctx.messages()):
        if message.role == "user":
            return message.text_content or ""
    return None


def _in_turn(entry: Entry, chat_ctx: llm.ChatContext) -> str:
    """The next of the entry's answers; one that was cut off counts as given."""
    said = (message.text_content or "" for message in chat_ctx.messages() if message.role == "assistant")
    given = sum(any(_begins(answer, text) for answer in entry.answer) for text in said)
    return entry.answer[given % len(entry.answer)]


def _begins(answer: str, said: str) -> bool:
    heard = words_of(said)
    return bool(heard) and words_of(answer)[: len(heard)] == heard

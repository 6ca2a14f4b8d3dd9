"""The brain finds the answer that a caller means, and says so when there is none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from livekit.agents import llm
from livekit.agents.metrics import LLMMetrics

from agent.brains import FaqBrain
from agent.faq import Entry, Faq, Matcher, likeness, load_faq, words_of
from tts_plugin.config import bundled
from tts_plugin.errors import ConfigError

FAQ = load_faq(bundled("configs") / "faq.yaml")

# (what the recogniser gives, a question of the entry that is meant); some are misheard on purpose
ASKED = [
    ("What are your opening hours?", "hours"),
    ("What are you're open in ours?", "hours"),
    ("Um, hi, I was wondering when you guys are open on Saturdays.", "hours"),
    ("what time do you clothes today", "hours"),
    ("So when do you open, actually?", "hours"),
    ("How long does the delivery take?", "delivery"),
    ("How long does deliver he take?", "delivery"),
    ("When will my lamp be delivered?", "delivery"),
    ("is the shipping for free", "delivery"),
    ("how fast can you ship it to me", "delivery"),
    ("Where's my order?", "where is my order"),
    ("Wears my order?", "where is my order"),
    ("I ordered two weeks ago and my parcel hasn't arrived.", "where is my order"),
    ("Can you track my parcels please", "where is my order"),
    ("Can I send a lamp back?", "can i send it back"),
    ("I'd like to return my lamp.", "can i send it back"),
    ("how do I get a re fund", "can i send it back"),
    ("What's your return policy?", "can i send it back"),
    ("My lamp arrived broken.", "my lamp is broken"),
    ("My lamb is broken.", "my lamp is broken"),
    ("The lamp stopped working last night.", "my lamp is broken"),
    ("How much does the plan cost?", "how much is the plan"),
    ("How much is the plane?", "how much is the plan"),
    ("What's the price of the light plan per month?", "how much is the plan"),
    ("What do I get with the plan?", "what is in the plan"),
    ("How do I cancel my subscription?", "cancel my subscription"),
    ("I want to council my subscription.", "cancel my subscription"),
    ("Can I pay with a credit card?", "how can i pay"),
    ("Do you accept bank transfers?", "how can i pay"),
    ("Where is your store?", "where is your shop"),
    ("Can I speak to a real person?", "can i speak to a human"),
    ("I want to talk to a human being, please.", "can i speak to a human"),
    ("Let me speak to a manager.", "can i speak to a human"),
    ("Are you a robot?", "are you a robot"),
    ("Am I talking to a machine or a computer?", "are you a robot"),
    ("What can you do for me?", "what can you do"),
    ("Tell me a long story.", "tell me a story"),
    ("Tell me along story about your company.", "tell me a story"),
    ("Explain to me what it is that you do.", "tell me a story"),
    ("Hello.", "hello"),
    ("Hi there, good morning!", "hello"),
    ("How are you today?", "how are you"),
    ("Thanks a lot, that was very helpful.", "thank you"),
    ("Thank you!", "thank you"),
    ("Good bye.", "goodbye"),
    ("Okay, that's all, bye bye.", "goodbye"),
    ("Wait, wait a second.", "stop"),
    ("Stop!", "stop"),
    ("When does the store open in the morning?", "hours"),
    ("Are you guys closed on Sundays?", "hours"),
    ("Until when are you open tonight?", "hours"),
    ("How quickly do you deliver?", "delivery"),
    ("What are the shipping costs?", "delivery"),
    ("Is delivery free of charge?", "delivery"),
    ("I'm waiting for my package.", "where is my order"),
    ("Has my order been shipped yet?", "where is my order"),
    ("What if I want to send the lamp back?", "can i send it back"),
    ("How does a refund work?", "can i send it back"),
    ("My new lamp doesn't work.", "my lamp is broken"),
    ("It came damaged.", "my lamp is broken"),
    ("Is there a guarantee on the lamps?", "my lamp is broken"),
    ("How much is it a month?", "how much is the plan"),
    ("What do you charge for the plan?", "how much is the plan"),
    ("What does the light plan include?", "what is in the plan"),
    ("How can I get out of my contract?", "cancel my subscription"),
    ("I want to stop my subscription.", "cancel my subscription"),
    ("Can I use my credit card?", "how can i pay"),
    ("What payment methods are there?", "how can i pay"),
    ("Where can I find your shop?", "where is your shop"),
    ("I'd rather speak with a person.", "can i speak to a human"),
    ("Put me through to a colleague.", "can i speak to a human"),
    ("Are you a machine?", "are you a robot"),
    ("Who am I talking to?", "are you a robot"),
    ("What can I ask you about?", "what can you do"),
    ("Tell me more about the company.", "tell me a story"),
    ("Good evening.", "hello"),
    ("Hello, can you hear me?", "hello"),
    ("Great, thanks.", "thank you"),
    ("No, that's everything, bye.", "goodbye"),
    ("Please be quiet.", "stop"),
    ("How are you doing?", "how are you"),
    ("What are your hours on Friday?", "hours"),
    ("Is the shop open this weekend?", "hours"),
    ("Tell me when you're open please.", "hours"),
    ("Do I pay for delivery?", "delivery"),
    ("How long will it take to arrive?", "delivery"),
    ("Can you deliver my lamp to Mexico?", "delivery"),
    ("I want to know where my package is.", "where is my order"),
    ("My lamp never arrived.", "where is my order"),
    ("How can I return the lamp?", "can i send it back"),
    ("Will I get my money back?", "can i send it back"),
    ("The bulb is broken.", "my lamp is broken"),
    ("My lamp arrived damaged.", "my lamp is broken"),
    ("How much is the light plan?", "how much is the plan"),
    ("What does the plan cost me each month?", "how much is the plan"),
    ("What is included?", "what is in the plan"),
    ("I want to cancel the plan.", "cancel my subscription"),
    ("How do I quit?", "cancel my subscription"),
    ("Do you take cash?", "how can i pay"),
    ("Can I pay with my bank account?", "how can i pay"),
    ("Where's the store?", "where is your shop"),
    ("Can I speak to somebody?", "can i speak to a human"),
    ("I want to talk to the manager.", "can i speak to a human"),
    ("Are you human?", "are you a robot"),
    ("What should I call you? What's your name?", "are you a robot"),
    ("What can you help me with?", "what can you do"),
    ("Can you tell me a long story?", "tell me a story"),
    ("Explain how your company started.", "tell me a story"),
    ("Hello there.", "hello"),
    ("Good afternoon to you.", "hello"),
    ("Thanks for your help.", "thank you"),
    ("Goodbye now.", "goodbye"),
    ("Wait a minute.", "stop"),
]

UNRELATED = [
    "What is the capital of France?",
    "Who won the football match last night?",
    "Can you write a poem about a penguin?",
    "How tall is the Eiffel tower?",
    "What's the weather going to be like tomorrow?",
    "My grandmother collects old stamps.",
    "Translate this sentence into Japanese.",
    "I think elephants are beautiful animals.",
    "How do I bake bread without yeast?",
    "Which planet is the largest one?",
    "The quick brown fox jumps over the lazy dog.",
    "Why is the sky blue?",
    "Can I book a flight to London?",
    "What did you eat for breakfast?",
    "My car has a flat tyre.",
    "How many people live in China?",
    "When was the moon landing?",
    "Is it going to snow this week?",
    "Where is the nearest pharmacy?",
    "Tell me a joke.",
]


def entry_of(question: str) -> Entry:
    (found,) = [entry for entry in FAQ.entries if question in entry.questions]
    return found


def asked(*texts: str) -> llm.ChatContext:
    """A conversation in which the user says each text and the agent answers all but the last."""
    brain, chat_ctx = FaqBrain(FAQ), llm.ChatContext.empty()
    chat_ctx.add_message(role="system", content="You are a helpful agent. What are your opening hours?")
    for text in texts[:-1]:
        chat_ctx.add_message(role="user", content=text)
        chat_ctx.add_message(role="assistant", content=brain.answer(chat_ctx))
    chat_ctx.add_message(role="user", content=texts[-1])
    return chat_ctx


def test_a_caller_gets_the_answer_that_is_meant() -> None:
    matcher = Matcher(FAQ)
    found = [(text, matcher.find(text), entry_of(question)) for text, question in ASKED]
    wrong = [(text, match) for text, match, entry in found if match is None or match.entry is not entry]
    assert len(ASKED) >= 40
    assert len(wrong) <= 0.05 * len(ASKED), wrong


def test_every_question_of_the_file_finds_its_own_entry() -> None:
    matcher = Matcher(FAQ)
    for entry in FAQ.entries:
        for question in entry.questions:
            match = matcher.find(question)
            assert match is not None
            assert match.entry is entry, question


@pytest.mark.parametrize("text", UNRELATED)
def test_an_unrelated_question_finds_nothing_and_is_told_what_there_is(text: str) -> None:
    assert Matcher(FAQ).find(text) is None
    said = FaqBrain(FAQ).answer(asked(text))
    assert said == FAQ.lost
    assert "our opening hours" in said
    assert "{" not in said


def test_short_forms_and_punctuation_make_no_difference() -> None:
    assert words_of("What’s your price?  Don't KNOW!") == words_of("what is your price do not know")


def test_short_words_are_never_nearly_the_same() -> None:
    assert likeness("how", "who") == 0
    assert likeness("deliver", "delivery") > 0.9


def test_answers_take_turns() -> None:
    thanks = entry_of("thank you").answer
    assert len(thanks) == 2
    brain = FaqBrain(FAQ)
    said = [brain.answer(asked(*["thank you"] * times)) for times in (1, 2, 3)]
    assert said == [thanks[0], thanks[1], thanks[0]]


def test_the_long_answer_leaves_time_to_interrupt_it() -> None:
    (story,) = entry_of("tell me a story").answer
    assert 55 <= len(story.split()) <= 90


def test_every_answer_can_be_spoken() -> None:
    texts = [FAQ.greeting, FAQ.again, FAQ.lost, *(text for entry in FAQ.entries for text in entry.answer)]
    for text in texts:
        assert text.isascii()
        assert not any(c.isdigit() or c in "*_#<>{}[]()/" for c in text), text


async def test_the_answer_comes_in_deltas_that_join_to_the_text() -> None:
    metrics: list[LLMMetrics] = []
    brain = FaqBrain(FAQ)
    brain.on("metrics_collected", metrics.append)
    async with brain.chat(chat_ctx=asked("hello", "what are your opening hours")) as stream:
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.delta.content or "" for chunk in chunks if chunk.delta]
    (answer,) = entry_of("hours").answer
    assert "".join(deltas) == answer
    assert len(deltas) == len(answer.split())
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(deltas)
    assert [metric.completion_tokens for metric in metrics] == [len(deltas)]
    collected = await brain.chat(chat_ctx=asked("where is my order")).collect()
    assert collected.text == entry_of("where is my order").answer[0]


async def test_closing_an_answer_half_way_ends_it_and_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    brain = FaqBrain(FAQ, word_s=3600)
    stream = brain.chat(chat_ctx=asked("tell me a story"))
    first = await anext(stream)
    assert first.delta is not None
    assert first.delta.content == "It "
    await stream.aclose()
    await stream.aclose()
    assert asyncio.all_tasks() == before
    assert [chunk async for chunk in stream] == []


async def test_two_answers_at_once_do_not_mix() -> None:
    brain = FaqBrain(FAQ)
    both = await asyncio.gather(
        brain.chat(chat_ctx=asked("tell me a story")).collect(), brain.chat(chat_ctx=asked("bye")).collect()
    )
    assert [one.text for one in both] == [entry_of("tell me a story").answer[0], entry_of("bye").answer[0]]


def test_a_conversation_without_the_user_gets_the_greeting() -> None:
    chat_ctx = llm.ChatContext.empty()
    assert FaqBrain(FAQ).answer(chat_ctx) == FAQ.greeting
    chat_ctx.add_message(role="system", content="Where is my order?")
    assert FaqBrain(FAQ).answer(chat_ctx) == FAQ.greeting


@pytest.mark.parametrize("text", ["", "   ", "...", "?!"])
def test_an_empty_question_is_asked_again(text: str) -> None:
    assert FaqBrain(FAQ).answer(asked(text)) == FAQ.again


GOOD = """\
greeting: Hello.
again: Again?
fallback: No. Ask for {topics}.
entries:
  - topic: time
    questions: [what time is it]
    answer: Noon.
"""


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            ("    answer: Noon.", "    answr: Noon."),
            r'faq\.yaml:7: unknown key "entries\.0\.answr".*"answer"',
        ),
        (("greeting: Hello.\n", "greting: Hello.\n"), r'faq\.yaml:1: unknown key "greting".*"greeting"'),
        (("[what time is it]", "[]"), r"faq\.yaml:6: entries\.0\.questions"),
        (("[what time is it]", "[12]"), r"faq\.yaml:6: entries\.0\.questions\.0 should be a valid string"),
        (("[what time is it]", '["?!"]'), "has no words"),
        (("answer: Noon.", 'answer: "  "'), r"faq\.yaml:7: entries\.0\.answer"),
        (("{topics}", "{topic}"), r"stands for nothing"),
        (("  - topic: time\n    questions", "  - questions"), "no entry has a topic"),
        (
            ("    answer: Noon.\n", "    answer: Noon.\n  - {questions: [What TIME is it], answer: One.}\n"),
            "both have",
        ),
        (("entries:", "synonyms: [[a b, c]]\nentries:"), "should be one word"),
        (("entries:", "synonyms: [[a, b], [b, c]]\nentries:"), "groups 1 and 2"),
        (("entries:", "entries"), r"faq\.yaml:\d+: not YAML"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(
    tmp_path: Path, change: tuple[str, str], complaint: str
) -> None:
    path = tmp_path / "faq.yaml"
    path.write_text(GOOD)
    assert load_faq(path).lost == "No. Ask for time."
    path.write_text(GOOD.replace(*change))
    with pytest.raises(ConfigError, match=complaint):
        load_faq(path)


def test_a_faq_made_in_code_is_checked_too() -> None:
    with pytest.raises(ValueError, match="entries"):
        Faq(greeting="a", fallback="b", again="c", entries=())

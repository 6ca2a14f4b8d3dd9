"""What the benches say: short sentences, replies as language models begin them, and their tokens."""

from __future__ import annotations

import re

import numpy as np

LLM_TOKENS_PER_S = 30.0
SHORT = (
    "Hello there.",
    "Sure, I can help you with that.",
    "Your order is on its way.",
    "Thanks for waiting.",
    "We are open until six.",
)
# first sentences as language models begin their answers
REPLIES = (
    "Sure, I can help you with that. Could you tell me your order number?",
    "Our office is open from nine to five, Monday to Friday, and on Saturdays until noon.",
    "I am sorry to hear that. Let me see what I can do for you.",
    "Yes, we deliver to every address in the country, usually within two working days.",
    "You can return anything within thirty days, as long as it is unused.",
    "Good question! The basic plan costs ten dollars a month, and you can cancel at any time.",
    "Of course. I will put you through to one of my colleagues right away.",
    "To change your address, please open your account and choose the settings page.",
    "Thank you for calling. How can I help you today?",
    "That depends on your plan, but most customers get a reply within an hour.",
)
LONG = (
    "The ferry to the island leaves at nine every morning, and it takes about two hours to cross the bay. "
    "You can buy a ticket at the kiosk by the old lighthouse. Please bring a coat, since it can be windy."
)


def tokens_of(text: str) -> list[str]:
    """The text in pieces about as long as a language model's tokens: a word with its space, a mark."""
    return re.findall(r"\s*\w{1,8}|\s*[^\w\s]", text)


def reply(draw: np.random.Generator) -> str:
    """What a turn may say: one to four sentences, mostly few."""
    count = int(draw.choice((1, 2, 3, 4), p=(0.4, 0.3, 0.2, 0.1)))
    pool = SHORT + REPLIES
    return " ".join(pool[int(index)] for index in draw.integers(0, len(pool), count))

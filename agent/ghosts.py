"""Ghosts: the words that Whisper imagines where nobody spoke, and how to tell them from real ones."""

from __future__ import annotations

from agent.recogniser import Recognition

# Measured: silence, noise, clicks, hum, coughs give 0.80 to 0.97, words at most 0.52 ("Yes.", cut short).
NO_SPEECH = 0.75
NO_SPEECH_UNSURE = (0.5, -1.0)  # or this much, with a mean log-probability below that
# What tiny.en makes of short noises; a caller who says one of them voices it for longer than this.
GHOSTS = frozenset({"you", "thank you", "thanks for watching", "bye", "beep", "okay"})
GHOST_VOICED_S = 0.25
# A tone in the middle comes out as one word over and over ("Beep beep beep ..."), with any confidence; a
# caller's "no, no, no" is shorter.
ONE_WORD_TIMES = 5


def heard_text(recognition: Recognition, voiced_s: float) -> str:
    """The words in a recognition of `voiced_s` seconds of voice, "" if it only imagined them."""
    text = recognition.text
    words = "".join(c for c in text.lower() if c.isalnum() or c.isspace()).strip()
    imagined = (
        not words
        or text[0] in "[(*"  # "[BLANK_AUDIO]", "(music)": a description, not speech
        or recognition.looped
        or recognition.no_speech > NO_SPEECH
        or (recognition.no_speech > NO_SPEECH_UNSURE[0] and recognition.logprob < NO_SPEECH_UNSURE[1])
        or (words in GHOSTS and voiced_s < GHOST_VOICED_S)
        or (len(words.split()) >= ONE_WORD_TIMES and len(set(words.split())) == 1)
    )
    return "" if imagined else text

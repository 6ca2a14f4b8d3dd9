"""What a deployment says of its telephone desk: `phone.desk` in the YAML."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, time
from pathlib import Path
from typing import Annotated, Self, TypeVar
from zoneinfo import ZoneInfo, available_timezones

from pydantic import Field, StringConstraints, field_validator, model_validator

from agent.line import DIGITS
from tts_plugin.config import Section
from tts_plugin.errors import did_you_mean

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


class HoursSettings(Section):
    """When people are there.

    timezone: of the times ("Europe/London"). monday .. sunday: "09:00-18:00", several with commas, None for
    closed all day. holidays: days that are closed whatever they are.
    """

    timezone: str = "UTC"
    monday: str | None = None
    tuesday: str | None = None
    wednesday: str | None = None
    thursday: str | None = None
    friday: str | None = None
    saturday: str | None = None
    sunday: str | None = None
    holidays: tuple[date, ...] = ()

    @field_validator("timezone")
    @classmethod
    def _known(cls, name: str) -> str:
        zones = available_timezones()
        if name not in zones:
            raise ValueError(f'"{name}" is no time zone{did_you_mean(name, zones)}')
        return name

    @field_validator(*WEEKDAYS)
    @classmethod
    def _readable(cls, day: str | None) -> str | None:
        spans(day)
        return day

    @property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.timezone)

    def of(self, weekday: int) -> tuple[tuple[time, time], ...]:
        """From and until; weekday 0 is Monday."""
        return spans(getattr(self, WEEKDAYS[weekday]))


def spans(day: str | None) -> tuple[tuple[time, time], ...]:
    """ "09:00-12:00, 13:00-18:00" as times; ValueError says what is wrong with it."""
    found: list[tuple[time, time]] = []
    for part in day.split(",") if day else ():
        first, dash, last = part.strip().partition("-")
        try:
            if not dash:
                raise ValueError
            span = (time.fromisoformat(first.strip()), _end(last.strip()))
        except ValueError:
            raise ValueError(f'"{part.strip()}" should be like "09:00-18:00"') from None
        if span[0] >= span[1] or (found and span[0] < found[-1][1]):
            raise ValueError(f'"{part.strip()}" ends before it begins, or before the one before it ends')
        found.append(span)
    return tuple(found)


def _end(text: str) -> time:
    return time.max if text == "24:00" else time.fromisoformat(text)


class HandOverSettings(Section):
    """To a person.

    to: the number or address that the carrier connects, None if there is nobody. say: said first. failed:
    said when the carrier refuses, or nobody is there to connect to. closed: said outside the hours.
    """

    to: Annotated[str | None, Field(min_length=1)] = None
    say: Text = "One moment please, I will connect you."
    failed: Text = "I am sorry, I cannot connect you right now."
    closed: Text = "I am sorry, nobody is here at this hour. Please call again when we are open."


class SilenceSettings(Section):
    """Each time nobody has said anything for after_s, the next prompt is said; after the last, `goodbye`, and
    the call ends."""

    after_s: Seconds = 10.0
    prompts: tuple[Text, ...] = ("Are you still there?", "I cannot hear you. Is there anything else?")
    goodbye: Text = "I will hang up now. Goodbye."


class LimitSettings(Section):
    """call_s: how long a call may last. warning: said warning_s before the end. goodbye: said at the end."""

    call_s: Seconds = 900.0
    warning_s: Annotated[float, Field(ge=0)] = 60.0
    warning: Text = "We have one more minute on this call."
    goodbye: Text = "I have to end the call here. Thank you for calling."

    @model_validator(mode="after")
    def _in_time(self) -> Self:
        if self.warning_s >= self.call_s:
            raise ValueError(f"warning_s {self.warning_s} should be less than call_s {self.call_s}")
        return self


class KeySettings(Section):
    """What a key of the telephone does, one of these.

    ask: as if the caller had said it. hand_over: connect a person. language: go on in that one.
    stop_recording: and delete what there is of it. hang_up: end the call.
    """

    ask: Text | None = None
    hand_over: bool = False
    language: str | None = None
    stop_recording: bool = False
    hang_up: bool = False

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(map(bool, (self.ask, self.hand_over, self.language, self.stop_recording, self.hang_up))) != 1:
            raise ValueError("a key does one thing: ask, hand_over, language, stop_recording or hang_up")
        return self


class HandOverTexts(Section):
    """What HandOverSettings says, in another language."""

    say: Text | None = None
    failed: Text | None = None
    closed: Text | None = None


class SilenceTexts(Section):
    """What SilenceSettings says, in another language; as many prompts as there are here."""

    prompts: tuple[Text, ...] | None = None
    goodbye: Text | None = None


class LimitTexts(Section):
    """What LimitSettings says, in another language."""

    warning: Text | None = None
    goodbye: Text | None = None


class LanguageSettings(Section):
    """A language beside the first: what is other in it. A text that is not here is said as the desk has it.

    greeting: said when it is chosen; closed: said instead outside the hours. voice: id. faq: answers without
    a language model. instructions: for one. ears_model: folder of a faster-whisper model that hears it;
    ears_language: its code ("zh"). goodbye, hand_over, silence, limit: the desk's texts of these names. asks:
    by key, what its `ask` is.
    """

    greeting: Text
    closed: Text | None = None
    voice: Text | None = None
    faq: Path | None = None
    instructions: Text | None = None
    ears_model: Path | None = None
    ears_language: Annotated[str, Field(pattern="^[a-z]{2,3}$")] = "en"
    goodbye: Text | None = None
    hand_over: HandOverTexts = HandOverTexts()
    silence: SilenceTexts = SilenceTexts()
    limit: LimitTexts = LimitTexts()
    asks: Mapping[str, Text] = Field(default_factory=dict)


class RecordingSettings(Section):
    """folder: where stereo WAV files go, caller left and agent right. consent: announced first; what is
    recorded begins after it."""

    folder: Path
    consent: Text = "This call is recorded."


class DeskSettings(Section):
    """A customer-service desk. closed: the greeting outside the hours (None: the usual one). goodbye: said
    before the agent hangs up. hours: None is always open. silence, limit: None for none. keys: by what is
    printed on them. language: what keys call the language of all that stands here; back: said when one leads
    back to it. log: folder of the conversation logs, a JSON-lines file a call; None for none.
    """

    closed: Text | None = None
    goodbye: Text = "Thank you for calling. Goodbye."
    hours: HoursSettings | None = None
    hand_over: HandOverSettings = HandOverSettings()
    silence: SilenceSettings | None = SilenceSettings()
    limit: LimitSettings | None = LimitSettings()
    keys: Mapping[str, KeySettings] = Field(default_factory=dict)
    language: Text = "en"
    back: Text = "We go on in English."
    languages: Mapping[str, LanguageSettings] = Field(default_factory=dict)
    log: Path | None = None
    recording: RecordingSettings | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = (self.language, *self.languages)
        for key, does in self.keys.items():
            if key not in DIGITS:
                raise ValueError(f'keys: "{key}" is on no telephone; one of {" ".join(sorted(DIGITS))}')
            if does.language is not None and does.language not in names:
                near = did_you_mean(does.language, names)
                raise ValueError(f'keys: "{key}" asks for the language "{does.language}"{near}')
            if does.stop_recording and self.recording is None:
                raise ValueError(f'keys: "{key}" stops a recording, but there is none')
        for name, told in self.languages.items():
            self._check_language(name, told)
        return self

    def _check_language(self, name: str, told: LanguageSettings) -> None:
        where = f"languages.{name}"
        if name == self.language:
            raise ValueError(f'{where}: "{name}" is the first language, whose texts stand beside "languages"')
        for section, texts in (("silence", told.silence), ("limit", told.limit)):
            if getattr(self, section) is None and texts.model_fields_set:
                raise ValueError(f"{where}.{section}: the desk has no {section}, so nothing of it is said")
        for key in told.asks:
            if key not in self.keys or self.keys[key].ask is None:
                asking = [one for one, does in self.keys.items() if does.ask is not None]
                known = f"these do: {' '.join(asking)}" if asking else "none does"
                raise ValueError(f'{where}.asks: the key "{key}" asks nothing; {known}')

    def spoken_in(self, language: str) -> DeskSettings:
        """This desk with its texts in `language`, those that there are; `language` is one of its own."""
        if language == self.language:
            return self
        told = self.languages[language]
        return self.model_copy(
            update={
                "goodbye": told.goodbye or self.goodbye,
                "hand_over": _with(self.hand_over, told.hand_over),
                "silence": self.silence and _with(self.silence, told.silence),
                "limit": self.limit and _with(self.limit, told.limit),
                "keys": {
                    key: does.model_copy(update={"ask": told.asks.get(key, does.ask)})
                    for key, does in self.keys.items()
                },
            }
        )


S = TypeVar("S", bound=Section)


def _with(section: S, texts: Section) -> S:
    return section.model_copy(update=texts.model_dump(exclude_none=True))

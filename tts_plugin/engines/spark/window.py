"""Window: which tokens of a segment to decode when, with how much context (no clock, no torch).

A token's samples depend on the tokens around it, so a piece is decoded with true context on both sides and
only its middle is emitted; nothing is cross-faded. Left context is free of waiting, so all that matters is
taken. The look-ahead on the right costs 20 ms of waiting a token, so the first piece of a turn looks ahead
a little, and the later ones, which have a playing buffer to wait in, as far as their quality asks.
"""

from __future__ import annotations

from dataclasses import dataclass

from tts_plugin.config import LatencySettings, WindowSettings
from tts_plugin.engines.spark.duration import TOKENS_PER_S
from tts_plugin.limits import Latency

MARGIN_S = 0.08  # of audio that a piece should find still playing: a frame, and what the clock may err


@dataclass(frozen=True, slots=True)
class Cut:
    """Decode the segment's tokens ctx_from .. ctx_to - 1, emit the samples of emit_from .. emit_to - 1."""

    ctx_from: int
    emit_from: int
    emit_to: int
    ctx_to: int

    @property
    def tokens(self) -> int:
        return self.emit_to - self.emit_from


@dataclass(frozen=True, slots=True)
class Shape:
    """Tokens. first, first_right: emitted by a turn's first piece, and its look-ahead; the first sound waits
    for both. right: look-ahead of the later pieces. least, most: that a later piece emits. dry: up to this
    the least is doubled with every piece in a row for which the listener had run dry: the context of short
    pieces is dear, so a model that cannot keep up would fall behind the more, and gap after gap."""

    first: int
    first_right: int
    right: int
    least: int = 4
    most: int = 50
    dry: int = 16


def shape_of(settings: LatencySettings, latency: Latency) -> Shape:
    """The windows of a turn by its `latency`. Later pieces never look less far ahead than the first."""
    chosen: WindowSettings = getattr(settings, latency)
    return Shape(chosen.first, chosen.ahead, max(settings.settled, chosen.ahead))


class Window:
    """The cuts of one segment, in order, each token emitted once.

    left: tokens of left context (the codec's reach makes it exact). s_per_token: seconds that decoding a
    token takes, from the decodes so far; the owner corrects it.
    """

    def __init__(self, shape: Shape, left: int, *, s_per_token: float = 0.01) -> None:
        self.s_per_token = s_per_token
        self._shape = shape
        self._left = left
        self._tokens = 0
        self._emitted = 0
        self._least = shape.least  # of the next piece, if it is for a listener who has run dry

    @property
    def tokens(self) -> int:
        """Tokens pushed so far."""
        return self._tokens

    def push(self, count: int, buffered_s: float | None) -> list[Cut]:
        """`count` more tokens; buffered_s: audio that the listener still has, None before the first sound.

        A later piece is cut when it is as large as may be, or when waiting for one more token would let the
        buffer run dry, and then it makes do with the first piece's look-ahead if need be.
        """
        self._tokens += count
        shape = self._shape
        if buffered_s is None:
            enough = not self._emitted and self._tokens >= shape.first + shape.first_right
            return [self._cut(shape.first, shape.first_right)] if enough else []
        cuts = []
        while self._tokens - self._emitted >= shape.most + shape.right:
            cuts.append(self._cut(shape.most, shape.right))
        return cuts or self._in_time(buffered_s)

    def flush(self) -> list[Cut]:
        """The segment has ended: what is left, its right edge being the true one."""
        left = self._tokens - self._emitted
        return [self._cut(left, 0)] if left else []

    def _in_time(self, buffered_s: float) -> list[Cut]:
        """What there is, if a piece begun one token later would come too late."""
        least = self._shape.least if buffered_s > 0 else self._least
        for look_ahead in (self._shape.right, self._shape.first_right):
            emitted = self._tokens - self._emitted - look_ahead
            cost_s = (emitted + look_ahead) * self.s_per_token
            if emitted >= least and buffered_s <= MARGIN_S + 1 / TOKENS_PER_S + cost_s:
                longer = max(least, min(2 * least, self._shape.dry))
                self._least = self._shape.least if buffered_s > 0 else longer
                return [self._cut(emitted, look_ahead)]
        return []

    def _cut(self, emitted: int, look_ahead: int) -> Cut:
        start = self._emitted
        self._emitted += emitted
        return Cut(
            max(0, start - self._left), start, self._emitted, min(self._tokens, self._emitted + look_ahead)
        )

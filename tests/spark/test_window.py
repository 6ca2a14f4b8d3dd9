"""Which tokens are decoded when: every token once, in order, never too late."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_plugin.config import LatencySettings
from tts_plugin.engines.spark.duration import TOKENS_PER_S
from tts_plugin.engines.spark.window import Cut, Shape, Window, shape_of
from tts_plugin.limits import Latency

REACH = 67
BALANCED = shape_of(LatencySettings(), "balanced")
shapes = st.builds(
    Shape,
    first=st.integers(1, 20),
    first_right=st.integers(0, 67),
    right=st.integers(0, 67),
    least=st.integers(1, 8),
    most=st.integers(8, 80),
)


@given(shapes, st.lists(st.tuples(st.integers(1, 9), st.none() | st.floats(0, 3)), max_size=120))
def test_every_token_is_emitted_once_and_in_order(
    shape: Shape, pushes: list[tuple[int, float | None]]
) -> None:
    window = Window(shape, REACH)
    cuts: list[Cut] = []
    for count, buffered_s in pushes:
        cuts += window.push(count, buffered_s)
    cuts += window.flush()
    total = sum(count for count, _ in pushes)
    assert [cut.emit_from for cut in cuts] == [0, *[cut.emit_to for cut in cuts]][: len(cuts)]
    assert (cuts[-1].emit_to if cuts else 0) == total
    for cut in cuts:
        assert 0 <= cut.ctx_from <= cut.emit_from < cut.emit_to <= cut.ctx_to <= total
        assert cut.ctx_from == max(0, cut.emit_from - REACH)


@given(shapes, st.integers(1, 300))
def test_pieces_see_their_look_ahead_unless_the_segment_ends(shape: Shape, tokens: int) -> None:
    window = Window(shape, REACH)
    for cut in [cut for _ in range(tokens) for cut in window.push(1, 10.0)]:
        assert cut.ctx_to - cut.emit_to == shape.right
        assert cut.tokens == shape.most


@pytest.mark.parametrize(("latency", "tokens"), [("low", 10), ("balanced", 14), ("quality", 48)])
def test_the_first_sound_waits_for_so_many_tokens(latency: Latency, tokens: int) -> None:
    window = Window(shape_of(LatencySettings(), latency), REACH)
    assert [window.push(1, None) for _ in range(tokens - 1)] == [[]] * (tokens - 1)
    (cut,) = window.push(1, None)
    assert cut.ctx_to == tokens


@pytest.mark.parametrize("tokens_per_s", [55, 75, 150, 1000])
def test_a_listener_never_runs_dry_while_tokens_come_faster_than_they_are_heard(tokens_per_s: int) -> None:
    """A virtual call: tokens and decoding take time, the buffer is what was emitted less what was heard."""
    cost_s = 0.001
    window = Window(BALANCED, REACH, s_per_token=cost_s)
    now_s, dry_at_s = 0.0, None
    sizes: list[int] = []
    for _ in range(1500):
        now_s += 1 / tokens_per_s
        buffered_s = None if dry_at_s is None else max(0.0, dry_at_s - now_s)
        for cut in window.push(1, buffered_s):
            ready_s = now_s + (cut.ctx_to - cut.emit_from) * cost_s
            assert dry_at_s is None or ready_s <= dry_at_s, f"dry at token {cut.emit_from}"
            dry_at_s = max(ready_s, dry_at_s or ready_s) + cut.tokens / TOKENS_PER_S
            sizes.append(cut.tokens)
    assert sizes[0] == 6
    assert max(sizes) <= 50
    if tokens_per_s >= 150:
        assert max(sizes) == 50  # they grow as far as the buffer allows


def test_a_buffer_that_runs_low_is_filled_with_what_there_is() -> None:
    window = Window(BALANCED, REACH)
    window.push(14, None)
    assert window.push(4, 0.0) == [Cut(0, 6, 10, 18)]  # with the first piece's look-ahead of 8
    assert window.push(12, 1.0) == []  # no hurry
    assert window.push(1, 0.05) == [Cut(0, 10, 15, 31)]  # and with the full one of 16 where it fits


def test_a_listener_who_runs_dry_again_and_again_gets_longer_pieces_until_there_is_sound_left() -> None:
    window = Window(BALANCED, REACH)
    window.push(14, None)
    sizes = [cut.tokens for _ in range(60) for cut in window.push(1, 0.0)]
    assert sizes == [4, 8, 16, 16, 16]
    assert [cut.tokens for _ in range(4) for cut in window.push(1, 0.05)] == [4]
    assert [cut.tokens for _ in range(12) for cut in window.push(1, 0.0)] == [4, 8]

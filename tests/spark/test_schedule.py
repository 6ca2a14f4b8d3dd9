"""Who is decoded next: the most urgent, with those like it, and nobody waits for ever."""

from __future__ import annotations

import random

from tts_plugin.engines.spark.schedule import Order, Schedule

FREE = 0.0  # seconds a token: batches cost nothing
DEAR = 1.0  # no second row fits


def later(due_s: float, tokens: int = 40) -> Order:
    return Order(tokens, tokens, due_s, is_first=False)


def first(asked_s: float, tokens: int = 16) -> Order:
    return Order(tokens, tokens, asked_s, is_first=True)


def schedule_of(*orders: Order, most: int = 8) -> Schedule[Order]:
    schedule: Schedule[Order] = Schedule(most=most)
    for order in orders:
        schedule.add(order)
    return schedule


def emptied(schedule: Schedule[Order], now_s: float, s_per_token: float) -> list[list[Order]]:
    batches = []
    while batch := schedule.take(now_s, s_per_token):
        batches.append(batch)
    return batches


def test_the_earliest_to_run_dry_comes_first_and_equals_in_the_order_they_asked() -> None:
    orders = [later(12.0), later(11.0), later(13.0), later(11.0)]
    taken = emptied(schedule_of(*orders), 10.0, DEAR)
    assert taken == [[orders[1]], [orders[3]], [orders[0]], [orders[2]]]


def test_a_first_window_goes_ahead_of_all_who_still_have_audio_and_behind_who_has_run_dry() -> None:
    dry, nearly, new, newer = later(9.5), later(10.1), first(10.0), first(10.05)
    taken = emptied(schedule_of(nearly, newer, new, dry), 10.06, DEAR)
    assert taken == [[dry], [new], [newer], [nearly]]


def test_who_is_due_is_batched_with_no_one_who_can_wait() -> None:
    new, newer, buffered = first(10.0), first(10.0), later(10.5, tokens=16)
    assert emptied(schedule_of(buffered, new, newer), 10.1, FREE) == [[new, newer], [buffered]]


def test_windows_of_like_length_are_batched_and_others_wait() -> None:
    short, like, long = later(11.0, 20), later(11.1, 30), later(11.2, 31)
    assert emptied(schedule_of(short, like, long), 10.0, FREE) == [[short, like], [long]]
    assert emptied(schedule_of(long, short, like), 10.0, FREE) == [[short, like], [long]]


def test_a_batch_has_no_more_rows_than_it_may() -> None:
    orders = [later(11.0) for _ in range(10)]
    assert [len(batch) for batch in emptied(schedule_of(*orders, most=4), 10.0, FREE)] == [4, 4, 2]


def test_a_batch_takes_no_longer_than_newcomers_may_be_kept_waiting() -> None:
    orders = [later(20.0) for _ in range(8)]
    sizes = [len(batch) for batch in emptied(schedule_of(*orders), 10.0, 0.03 / 40)]  # 30 ms a row
    assert sizes == [2, 2, 2, 2]
    assert [len(batch) for batch in emptied(schedule_of(*orders), 10.0, 0.3 / 40)] == [1] * 8


def test_others_are_not_taken_along_at_the_cost_of_the_most_urgent_ones_deadline() -> None:
    urgent, other = later(10.05), later(20.0)
    assert emptied(schedule_of(urgent, other), 10.0, 0.03 / 40) == [[urgent], [other]]
    assert emptied(schedule_of(urgent, other), 10.0, 0.02 / 40) == [[urgent, other]]


def test_one_that_left_is_never_taken() -> None:
    stays, leaves = later(11.0), later(10.5)
    schedule = schedule_of(leaves, stays)
    schedule.drop(leaves)
    schedule.drop(leaves)
    assert emptied(schedule, 10.0, FREE) == [[stays]]


def test_nobody_starves_behind_newcomers_that_use_the_whole_device() -> None:
    """Each decode takes 0.1 s and brings a new turn's first window; a window waits no longer than its
    listener can, and that of a turn which nobody hears yet no longer than those who were there before it."""
    dice, now_s = random.Random(1), 10.0
    patient = later(now_s + 3.0)
    schedule = schedule_of(patient)
    while patient in schedule.waiting:
        schedule.add(first(now_s))
        if dice.random() < 0.5:
            schedule.add(later(now_s + dice.random() * 3))
        schedule.take(now_s, DEAR)
        now_s += 0.1
        assert now_s < 10.0 + 3.0 * 3, "it starves"
    assert now_s > 13.0, "and it let those go first who needed it more"


def test_every_window_is_taken_exactly_once() -> None:
    dice = random.Random(2)
    schedule, asked, taken, now_s = schedule_of(), list[Order](), list[Order](), 0.0
    for _ in range(500):
        now_s += dice.random() * 0.1
        new = first(now_s, dice.randrange(8, 48)) if dice.random() < 0.3 else None
        asked.append(new or later(now_s + dice.random() * 3 - 0.2, dice.randrange(20, 130)))
        schedule.add(asked[-1])
        if dice.random() < 0.6:
            taken += schedule.take(now_s, dice.choice((FREE, 0.0005, DEAR)))
    taken += [order for batch in emptied(schedule, now_s, FREE) for order in batch]
    assert len(taken) == len(asked) == 500
    assert {id(order) for order in taken} == {id(order) for order in asked}

"""What a loop's state depends on after some iterations, from what it depends on after one."""

from __future__ import annotations

from weft_functionalize.loop_reach import reached_after

X, Y = 10, 11  # outside of the state


def after(*reached: set[int]) -> dict[int, frozenset[int]]:
    return {k: frozenset(positions) for k, positions in enumerate(reached)}


def test_a_recurrence_depends_on_the_same_after_any_iteration() -> None:
    once = after({0, X}, {1})
    assert reached_after(once, 1, None) == [once]
    assert reached_after(once, 20, 20) == [once]
    assert reached_after(once, 0, None) == [after({0}, {1}), once]


def test_a_state_that_others_reach_later() -> None:
    once = after({0, 1}, {1, X})
    assert reached_after(once, 1, 1) == [once]
    assert reached_after(once, 2, 2) == [after({0, 1, X}, {1, X})]


def test_states_that_change_places() -> None:
    once = after({1}, {0})
    assert reached_after(once, 2, 2) == [after({0}, {1})]
    assert reached_after(once, 3, 3) == [once]
    assert all(one in reached_after(once, 1, None) for one in (once, after({0}, {1})))


def test_what_is_lost() -> None:
    assert reached_after(after({Y}), 0, 5) == [after({0}), after({Y})]

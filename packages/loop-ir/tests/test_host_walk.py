"""When a walk over a schedule frees what has memory of its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from scheduling import scheduled
from weft_loop_ir import ExternCall, Kernel
from weft_loop_ir.host_walk import HostWalk


class Freed(HostWalk):
    """Notes, by step, what was held before it and what is freed behind it."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.events: list[tuple[int, list[str], list[str]]] = []
        self.gone: list[str] = []

    def kernel(self, kernel: Kernel) -> None: ...

    def call(self, call: ExternCall) -> None: ...

    def allocate(self, name: str) -> None: ...

    def free(self, names: Sequence[str]) -> None:
        self.gone += names

    def outermost(self, step: object) -> None:
        self.gone = []
        super().outermost(step)
        self.events.append((self.number, list(self.gone), list(self.held)))


def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    kept: list[torch.Tensor] = []
    for k in range(6):  # calls that make their results themselves, each read once or twice
        kept += torch.linalg.qr(x + k)
        kept.append((kept[k] @ kept[-1]).sort(-1).values)
    return kept[3] @ kept[-1], kept[0], kept[-2]


@pytest.mark.parametrize("left_out", [0, 3, 4])
def test_buffers_are_freed_behind_their_last_uses_in_the_order_in_which_they_came(left_out) -> None:
    schedule = scheduled(program, [torch.rand(4, 4)])
    walk = Freed(schedule)
    steps = range(len(schedule.steps))
    walk.walk([k for k in steps if k % left_out] if left_out else None)
    assert sum(len(gone) for _, gone, _ in walk.events) > 1
    held: list[str] = []
    for number, gone, after in walk.events:
        came = [name for name in (*gone, *after) if name not in held]
        before = held + [name for name in came if name in gone] + [n for n in came if n in after]
        assert gone == [name for name in before if walk.last_uses.get(name, -1) <= number]
        assert set(after) == set(before) - set(gone)
        assert not any(walk.last_uses.get(name, -1) <= number for name in after)
        held = after


def test_nothing_is_freed_of_what_was_held_before_beginning_anew() -> None:
    schedule = scheduled(program, [torch.rand(4, 4)])
    walk = Freed(schedule)
    walk.hold(["x", "y"])
    walk.hold_nothing()
    walk.hold(["y"])
    walk.walk(range(1))
    assert walk.gone == ["y"]
    assert "x" not in walk.held

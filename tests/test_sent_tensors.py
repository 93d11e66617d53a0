"""What is made on the CPU and sent to a GPU: before all kernels, so that the rest can be recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from weft_codegen_triton.recordable import head_length, is_recordable
from weft_loop_ir import ExternCall, Loop, Schedule, all_items

from tests.elsewhere import META, elsewhere

ROWS, WIDTH = 6, 8
TABLE, VECTOR, ORDER = torch.randn(1, ROWS, WIDTH), torch.randn(WIDTH), torch.randperm(ROWS)
NUMBER = torch.tensor(2.5)

Sent = Callable[[torch.Tensor], torch.Tensor]
"""A function of ``h``, a tensor elsewhere, that takes something from the CPU."""

SENT: dict[str, Sent] = {
    "to": lambda h: h + TABLE.to(h.device, h.dtype),
    "type_as": lambda h: h + TABLE.detach().type_as(h).to(device=h.device, copy=True),
    "not blocking": lambda h: h * VECTOR.to(h, non_blocking=True),
    "two": lambda h: h * VECTOR.to(h) + TABLE.to(h),
    "computed": lambda h: h * (TABLE * 2 + 1).cos()[:, :1].to(h) + TABLE.cumsum(1).to(h),
    "mask": lambda h: h.masked_fill((TABLE > 0).to(h.device), 0),
    "order": lambda h: h[:, ORDER.to(h.device)],
    "order there": lambda h: h[:, ORDER],
    "places": lambda h: h.index_put((torch.tensor([0]), ORDER[:3]), h.new_ones(())),
    "embedding": lambda h: h + F.embedding(ORDER, TABLE[0]).to(h),
    "number": lambda h: h * NUMBER,
    "number and table": lambda h: h * NUMBER + TABLE.to(h),
    "number of a table": lambda h: h * TABLE.max() + torch.tensor(0.5),
    "chosen": lambda h: torch.where(h > 0, h, NUMBER.to(h.dtype)) + TABLE.to(h),
}
MADE_THERE: dict[str, Sent] = {
    "counted": lambda h: h + torch.arange(h.shape[-1]).to(h.device),
    "list": lambda h: h * torch.tensor([1.0, 2.0] * 4).to(h),
}
"""What is copied once, when the program is compiled."""

DRAWN: dict[str, Sent] = {
    "drawn": lambda h: h + torch.rand(ROWS, WIDTH).to(h),
    "drawn as": lambda h: h + torch.rand_like(TABLE).to(h) * torch.randn(WIDTH).to(h),
    "drawn order": lambda h: h[:, torch.randperm(ROWS)],
    "drawn mask": lambda h: h * (torch.rand(2, 1, 1) < 0.5).to(h),
}


def layers(sent: Sent, x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """Linear layers in 16 bits as under autocast, with what is ``sent`` behind the first of them."""
    h = x.bfloat16()
    for number, weight in enumerate(weights):
        h = F.gelu(F.linear(h, weight.bfloat16()))
        if number == 0:
            h = sent(h)
    return h


def given(device: torch.device | str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    weights = [torch.randn(WIDTH, WIDTH, requires_grad=True) for _ in range(3)]
    return [
        t.detach().to(device).requires_grad_(t.requires_grad)
        for t in (torch.randn(2, ROWS, WIDTH), *weights)
    ]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", [*SENT, *MADE_THERE, *DRAWN])
def test_programs_that_send_are_recorded(name: str, training: bool) -> None:
    function = functools.partial(layers, {**SENT, **MADE_THERE, **DRAWN}[name])
    schedules = elsewhere(function, *given(META), training=training).schedules
    assert all(map(is_recordable, schedules))
    if training:  # forward keeps what it has sent
        assert head_length(schedules[1]) == 0


@pytest.mark.parametrize("name", [*SENT, *DRAWN])
def test_values_are_eagers(name: str) -> None:
    """Those of the schedule, run on the CPU; what the CPU draws too."""
    function = functools.partial(layers, {**SENT, **DRAWN}[name])
    there, here = given(META), given("cpu")
    found = elsewhere(function, *there, training=False)
    torch.manual_seed(1)
    (result,) = found.evaluate(dict(zip(there, here, strict=True)))
    torch.manual_seed(1)
    torch.testing.assert_close(result, function(*here).detach())
    drawn = torch.rand(2)
    torch.manual_seed(1)
    found.evaluate(dict(zip(there, here, strict=True)))
    torch.testing.assert_close(torch.rand(2), drawn, rtol=0, atol=0)


def outside_loops(schedule: Schedule) -> list[str]:
    return [step.operator.name() for step in schedule.steps if isinstance(step, ExternCall)]


def in_loops(schedule: Schedule) -> list[str]:
    loops = [step for step in schedule.steps if isinstance(step, Loop)]
    calls = (item for item in all_items(loops) if isinstance(item, ExternCall))
    return [call.operator.name() for call in calls]


LONG = 200
"""Iterations of a loop that is kept."""


def sends_one(h: torch.Tensor) -> torch.Tensor:
    for _ in range(LONG):
        h = torch.relu(h + 1) * NUMBER + (VECTOR * 2).to(h.device)
    return h


def sends_each(h: torch.Tensor) -> torch.Tensor:
    for k in range(LONG):
        h = torch.relu(h + 1) * 0.5 + LONG_TABLE[k].cos().to(h.device)
    return h


def sends_sums(h: torch.Tensor) -> torch.Tensor:
    for k in range(LONG):
        h = torch.relu(h + 1) * 0.5 + LONG_TABLE[k].cumsum(0).to(h.device)
    return h


def samples(h: torch.Tensor) -> torch.Tensor:
    """As a diffusion model's sampler: its levels are numbers on the CPU."""
    for k in range(LONG - 1, 0, -1):
        level, next_level = LEVELS[k], LEVELS[k - 1]
        noise = torch.tanh(h)
        clean = (h - (1 - level).sqrt() * noise) / level.sqrt()
        h = next_level.sqrt() * clean + (1 - next_level).sqrt() * noise
    return h


def sends_drawn(h: torch.Tensor) -> torch.Tensor:
    for _ in range(LONG):
        h = torch.relu(h + 1) * 0.5 + torch.rand(WIDTH).to(h.device)
    return h


LONG_TABLE = torch.randn(LONG, WIDTH)
LEVELS = torch.linspace(0.99, 0.01, LONG)


@pytest.mark.parametrize(
    ("function", "is_sent_once"),
    [
        *((sends_one, True), (sends_each, True), (samples, True)),
        *((sends_sums, False), (sends_drawn, False)),
    ],
)
def test_loops_send_once(function: Sent, is_sent_once: bool) -> None:
    """What is the same in each iteration, and small tables of which iterations take parts."""
    x, value = torch.empty(2, WIDTH, device=META), torch.randn(2, WIDTH)
    found = elsewhere(function, x, training=False)
    (schedule,) = found.schedules
    assert len(schedule.steps) < 8  # a loop, or the kernel that is one
    assert is_recordable(schedule) is is_sent_once
    assert (in_loops(schedule) == []) is is_sent_once
    torch.manual_seed(1)
    (result,) = found.evaluate({x: value})
    torch.manual_seed(1)
    torch.testing.assert_close(result, function(value))


def test_draws_stay_behind_what_may_raise_and_other_draws() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        h = torch.linalg.inv(w)
        return x @ h + torch.rand(WIDTH).to(x)

    x, w = torch.empty(WIDTH, WIDTH, device=META), torch.empty(WIDTH, WIDTH, device=META)
    (schedule,) = elsewhere(function, x, w, training=False).schedules
    names = outside_loops(schedule)
    checks = [n for n, name in enumerate(names) if "check_errors" in name]
    assert checks and max(checks) < names.index("aten::rand")


def test_what_is_written_between_is_read_as_it_is_then() -> None:
    def function(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        h = x @ x + table.to(x)
        table += 1
        return (h @ x) * table.to(x)

    x, value, table = torch.empty(4, 4, device=META), torch.randn(4, 4), torch.randn(4, 4)
    found = elsewhere(function, x, table.clone(), training=False)
    assert is_recordable(found.schedules[0])
    wanted = function(value, table)  # which writes to it
    results = found.evaluate({x: value})
    for one in (wanted, table):
        assert any(torch.allclose(result, one) for result in results)


LISTS: dict[str, Sent] = {
    "new": lambda h: h * h.new_tensor([1.0, 2.0] * 4),
    "list of places": lambda h: h[:, :, [k ^ 1 for k in range(WIDTH)]],
}


def test_numbers_of_one_table_are_one_copy() -> None:
    def function(h: torch.Tensor) -> torch.Tensor:
        for k in range(3):
            h = torch.tanh(h @ h) * (1 - LEVELS[k]).sqrt() + VECTOR[k] * LEVELS[k + 1]
        return h

    x, value = torch.empty(8, 8, device=META), torch.randn(8, 8)
    found = elsewhere(function, x, training=False)
    assert outside_loops(found.schedules[0]).count("aten::_to_copy") == 2
    assert is_recordable(found.schedules[0])
    torch.testing.assert_close(found.evaluate({x: value})[0], function(value))


def test_what_is_returned_or_large_is_computed_on_the_cpu() -> None:
    large = torch.randn(200, 200)

    def function(x: torch.Tensor) -> Any:
        y = LEVELS * 2
        return x + y[0], y, x + (large * 2)[:2, :2].to(x.device)

    x, value = torch.empty(2, 2, device=META), torch.randn(2, 2)
    found = elsewhere(function, x, training=False)
    assert outside_loops(found.schedules[0]).count("aten::mul.Tensor") == 2
    torch.testing.assert_close(found.evaluate({x: value}), tuple(function(value)))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("name", [*SENT, *MADE_THERE, *LISTS])
def test_training_beside_eager(name: str, mode: str) -> None:
    function = functools.partial(layers, {**SENT, **MADE_THERE, **LISTS}[name])
    compiled = weft.compile(function, mode=mode, fullgraph=True)
    for _ in range(4):
        x, *weights = given("cuda")
        wanted = function(x, *weights)
        gradients = torch.autograd.grad(wanted.square().sum(), weights)
        got = compiled(x, *weights)
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)
        for one, other in zip(
            torch.autograd.grad(got.square().sum(), weights), gradients, strict=True
        ):
            torch.testing.assert_close(one, other, rtol=5e-2, atol=5e-1)

"""Which form of a matmul is chosen, by times that the tests give; kernels run in Triton's interpreter."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import weft_loop_ir
from compiled_beside_eager import assert_equals_eager, schedule_of
from matmul_cases import channels_last, randn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.gpu import REFERENCE
from weft_codegen_triton.kernel.frame import RowLimits
from weft_codegen_triton.kernel.kernel_printer import Function
from weft_codegen_triton.matmuls import choose_matmuls
from weft_codegen_triton.matmuls.choose_matmuls import MatmulChooser
from weft_codegen_triton.matmuls.find_matmuls import MatmulKernel
from weft_codegen_triton.matmuls.fuse_matmuls import all_forms, fuse_matmuls
from weft_codegen_triton.matmuls.precision import Precision
from weft_codegen_triton.matmuls.tiles import TileShape, tiles_for
from weft_codegen_triton.runtime.interpreter import InterpretedDevice
from weft_loop_ir import ExternCall, Kernel, LoopBody, Schedule, ScheduleOptions, SizeFloat
from weft_loop_ir.bodies import operation_named

LIMITS = RowLimits(8192, 4096)


class Device:
    """The CPU, on which functions that ``fails`` says so of cannot be compiled."""

    name = "a device"
    gpu = REFERENCE

    def __init__(self, folder: Path, fails: Callable[[Function], bool] = lambda f: False) -> None:
        self._device = InterpretedDevice(folder)
        self._fails = fails
        self.loaded: list[int] = []

    def stream(self) -> int:
        return 0

    def load_each(self, functions: Mapping[str, Function]) -> dict[str, Any]:
        self.loaded.append(len(functions))
        made = self._device.load({n: f for n, f in functions.items() if not self._fails(f)})
        return {**dict.fromkeys(functions), **made}


class Clock:
    """Gives ``times`` one after another, and runs what it is asked about once."""

    def __init__(self, *times: float) -> None:
        self.times = list(times)

    def __call__(self, runs: Sequence[Callable[[], None]], device: torch.device) -> float:
        runs[0]()
        return self.times.pop(0)


@pytest.fixture
def schedule(codegen: TritonCodegen) -> Schedule:
    inputs = torch.empty(32, 64), torch.empty(64, 48)
    return schedule_of(lambda x, w: (x.relu() @ w).tanh(), inputs, codegen)


def chooser(device: Device, folder: Path, schedule: Schedule, clock: Clock) -> MatmulChooser:
    return MatmulChooser(device, folder, schedule.buffers, LIMITS, Precision(), clock)


def tiles_of(forms: Sequence[MatmulKernel]) -> tuple[TileShape, ...]:
    return tiles_for(forms[0].contraction, REFERENCE)


def test_the_forms(schedule: Schedule) -> None:
    """With what is before and after it, with what is after it, with what is before it, alone."""
    (forms,) = all_forms(schedule, REFERENCE)
    assert [len(form.replaces) for form in forms] == [3, 2, 2, 1]
    assert all(form.call is forms[0].call for form in forms)


def test_the_fastest_tile_and_form(schedule: Schedule, tmp_path: Path) -> None:
    (forms,) = all_forms(schedule, REFERENCE)
    device, tiles = Device(tmp_path), [5.0] * (len(tiles_of(forms)) - 1) + [4.0]
    clock = Clock(10.0, *tiles, 3.0, 6.0, 6.0)
    choose = chooser(device, tmp_path, schedule, clock)
    chosen = choose(forms)
    assert chosen is not None and clock.times == []
    assert chosen.replaces == forms[1].replaces and chosen.tile != forms[0].tile
    # what was found is read from disk, by another chooser too, and nothing is compiled
    before = list(device.loaded)
    again = chooser(device, tmp_path, schedule, Clock())
    again.decide([forms])
    assert again(forms) == chosen and device.loaded == before
    fused = fuse_matmuls(schedule, again, ScheduleOptions(), REFERENCE)
    assert not any(isinstance(step, ExternCall) for step in fused.steps)


@pytest.mark.parametrize("apart", [4.0, 4.1, 1.0])
def test_the_library_is_a_candidate(schedule: Schedule, tmp_path: Path, apart: float) -> None:
    (forms,) = all_forms(schedule, REFERENCE)
    clock = Clock(apart, *[4.0] * (len(tiles_of(forms)) + 3))
    choose = chooser(Device(tmp_path), tmp_path, schedule, clock)
    assert choose(forms) is None
    (path,) = tmp_path.glob("*.matmul")
    stamp = path.stat().st_mtime_ns
    assert chooser(Device(tmp_path), tmp_path, schedule, Clock())(forms) is None
    assert path.stat().st_mtime_ns == stamp


def test_kernels_that_fail_are_skipped_and_counted(schedule: Schedule, tmp_path: Path) -> None:
    (forms,) = all_forms(schedule, REFERENCE)

    def fails(function: Function) -> bool:
        return function.stages > 3

    left = sum(tile.stages <= 3 for tile in tiles_of(forms))
    clock = Clock(10.0, *[5.0] * left, *[6.0] * 3)
    chosen = chooser(Device(tmp_path, fails), tmp_path, schedule, clock)(forms)
    assert chosen is not None and clock.times == [] and chosen.tile.stages <= 3
    (path,) = tmp_path.glob("*.matmul")
    assert f'"failed": {len(tiles_of(forms)) - left}' in path.read_text()


def test_without_a_kernel_that_compiles_the_library_is_chosen(
    schedule: Schedule, tmp_path: Path
) -> None:
    (forms,) = all_forms(schedule, REFERENCE)
    choose = chooser(
        Device(tmp_path, lambda function: "tl.dot" in function.template),
        tmp_path,
        schedule,
        Clock(10.0),
    )
    assert choose(forms) is None


def test_sizes_that_vary_are_timed_twice(codegen: TritonCodegen, tmp_path: Path) -> None:
    """A kernel that is slower for small sizes is not taken."""
    inputs = torch.empty(32, 64), torch.empty(64, 48)
    schedule = schedule_of(lambda x, w: (x @ w).tanh(), inputs, codegen, dynamic=True)
    (forms,) = all_forms(schedule, REFERENCE)
    times = [10.0, *[5.0] * len(tiles_of(forms)), 6.0]
    for number, (ours, librarys) in enumerate([(3.0, 2.0), (2.0, 3.0)]):
        folder = tmp_path / str(number)
        device = Device(folder)
        device.load_each = _without_running(device)  # type: ignore[method-assign]
        chosen = chooser(device, folder, schedule, Idle(*times, librarys, ours))(forms)
        assert (chosen is not None) == (ours < librarys)


class Idle(Clock):
    """A clock that runs nothing: the interpreter takes long for large matrices."""

    def __call__(self, runs: Sequence[Callable[[], None]], device: torch.device) -> float:
        return self.times.pop(0)


def _without_running(device: Device) -> Callable[[Mapping[str, Function]], dict[str, Any]]:
    return lambda functions: dict.fromkeys(functions, lambda *arguments: None)


def test_matmuls_with_numbers_of_the_call_are_the_librarys(
    schedule: Schedule, tmp_path: Path
) -> None:
    """A float that varies has no value to time a kernel with."""
    (forms,) = all_forms(schedule, REFERENCE)
    number = SizeFloat("constant", (1.0,))
    body = LoopBody(
        (operation_named("scalar").instruction((number, torch.float32), torch.float32),)
    )
    stage = replace(forms[0].stages[0], body=body)
    form: MatmulKernel = replace(forms[0], stages=(stage,))
    assert chooser(Device(tmp_path), tmp_path, schedule, Clock())([form]) is None


def test_precision_is_part_of_a_problem(codegen: TritonCodegen, tmp_path: Path) -> None:
    inputs = randn(32, 64), randn(64, 48)
    schedule = schedule_of(lambda x, w: x @ w, inputs, codegen)
    (forms,) = all_forms(schedule, REFERENCE)
    for matmuls in ("ieee", "tf32"):
        clock = Clock(1.0, *[4.0] * len(tiles_of(forms)))
        device = Device(tmp_path)
        precision = Precision(matmuls=matmuls)
        choose = MatmulChooser(device, tmp_path, schedule.buffers, LIMITS, precision, clock)
        assert choose(forms) is None
    assert len(list(tmp_path.glob("*.matmul"))) == 2


def test_what_does_most_is_timed_as_far_as_candidates_go(
    codegen: TritonCodegen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is chosen as it is where nothing is timed: 16 rows are a kernel of ours, 64 the library's."""
    inputs = [torch.empty(n, 64, dtype=torch.float16) for n in (16, 64, 256)]
    inputs.append(torch.empty(64, 64, dtype=torch.float16))

    def function(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *lefts, right = tensors
        return tuple((left @ right).relu() for left in lefts)

    schedule = schedule_of(function, tuple(inputs), codegen)
    problems = all_forms(schedule, REFERENCE)
    most = max(problems, key=lambda forms: forms[0].contraction.rows)
    count = len(tiles_of(most)) + len(most) - 1
    monkeypatch.setattr(choose_matmuls, "MAX_CANDIDATES", count)
    made = [5.0] * (len(tiles_of(most)) - 1) + [4.0] + [6.0] * (len(most) - 1)
    for clock in (Clock(10.0, *made), Clock()):  # the second process times nothing
        choose = chooser(Device(tmp_path), tmp_path, schedule, clock)
        choose.prepare(problems)
        assert clock.times == []
        chosen = {int(forms[0].contraction.rows): choose(forms) for forms in problems}
        assert chosen[64] is None and chosen[16] is not None
        assert chosen[256] is not None and chosen[256].tile == tiles_of(most)[-1]


def block(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A gated layer with a residual, and the mean of its rows."""
    gate, up, down, bias = weights
    y = x + (F.silu(x @ gate) * (x @ up)) @ down
    return y, F.relu(torch.addmm(bias, y, gate)).mean(1)


def images(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Convolutions of all channels and of each, with what follows them."""
    narrow, each, wide, bias = weights
    y = F.relu(F.conv2d(x, narrow))
    y = F.hardswish(F.conv2d(y, each, bias, padding=1, groups=len(each)))
    return (x + F.conv2d(y, wide, padding=1),)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (block, (randn(20, 32), randn(32, 48), randn(32, 48), randn(48, 32), randn(48))),
        (
            images,
            (
                channels_last(1, 16, 5, 6),
                randn(24, 16, 1, 1),
                randn(24, 1, 3, 3),
                channels_last(16, 24, 3, 3),
                randn(24),
            ),
        ),
    ],
)
def test_results_are_right_whatever_is_chosen(
    codegen: TritonCodegen,
    tmp_path: Path,
    function: Callable[..., Any],
    inputs: tuple[torch.Tensor, ...],
    seed: int,
) -> None:
    draw = random.Random(seed)
    schedule = schedule_of(function, inputs, codegen)
    device = Device(tmp_path, lambda f: f.stages > 1 and draw.random() < 0.2)
    choose = MatmulChooser(
        device,
        tmp_path,
        schedule.buffers,
        LIMITS,
        Precision(),
        lambda runs, device: draw.random(),
    )
    choose.prepare(all_forms(schedule, REFERENCE))
    chosen = fuse_matmuls(schedule, choose, codegen.schedule_options, REFERENCE)
    assert any(isinstance(step, MatmulKernel) for step in chosen.steps)
    assert_equals_eager(codegen.compile(chosen, {})(*inputs), function, inputs)


def test_rows_that_are_reduced(codegen: TritonCodegen, tmp_path: Path) -> None:
    """Tiles are chosen for them apart from those for other forms; what joins parts is timed too."""
    inputs = torch.randn(320, 32), torch.randn(32, 48)
    with torch.no_grad():
        graph = make_fx(lambda x, w: torch.var_mean(x @ w, 0), tracing_mode="fake")(*inputs)
    options = replace(codegen.schedule_options, split_column_elements=32)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph), options)
    (forms,) = all_forms(schedule, REFERENCE)
    reducing, plain = forms
    assert reducing.reductions and not plain.reductions
    times = [10.0, *[5.0] * len(reducing.tiles), *[6.0] * len(plain.tiles)]
    chosen = chooser(Device(tmp_path), tmp_path, schedule, Clock(*times))(forms)
    assert chosen == reducing
    fused = fuse_matmuls(schedule, lambda forms: chosen, options, REFERENCE)
    weft_loop_ir.verify(fused)
    assert [type(step) for step in fused.steps] == [MatmulKernel, Kernel]
    for got, want in zip(
        weft_loop_ir.evaluate(fused, inputs), torch.var_mean(torch.mm(*inputs), 0), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)

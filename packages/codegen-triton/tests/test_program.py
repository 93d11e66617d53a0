"""Whole programs: extern calls, memory, views, sizes, and what reaches the caller."""

from __future__ import annotations

import dataclasses
import io
import operator
import pickle
import sys
import threading
import weakref
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import weft_loop_ir
from compiled_beside_eager import assert_equals_eager, check, compiled, schedule_of
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from weft_codegen_triton import DeviceUnavailable, TritonCodegen, TritonOptions, Unsupported
from weft_loop_ir import BufferKind, Schedule


def mlp(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.gelu(x @ w) @ v + x


def mlp_inputs(rows: int = 6) -> tuple[torch.Tensor, ...]:
    return torch.randn(rows, 16), torch.randn(16, 40), torch.randn(40, 16)


def test_products_between_kernels(codegen: TritonCodegen) -> None:
    program = check(codegen, mlp, *mlp_inputs())
    assert (program.kernel_count, program.extern_count) == (2, 2)


def test_products_of_any_size(codegen: TritonCodegen) -> None:
    x, w, v = mlp_inputs()
    run = compiled(codegen, mlp, x, w, v, dynamic=True)
    for rows in (6, 2, 17):
        inputs = torch.randn(rows, 16), w, v
        assert_equals_eager(run(*inputs), mlp, inputs)


def test_attention(codegen: TritonCodegen) -> None:
    def attention(x: torch.Tensor) -> torch.Tensor:
        scores = (x @ x.transpose(1, 2)) / x.shape[-1] ** 0.5
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ x

    check(codegen, attention, torch.randn(2, 20, 16))


def test_convolution_and_several_results_of_an_operator(codegen: TritonCodegen) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, indices = torch.topk(F.relu(F.conv2d(x, w, padding=1)).flatten(1), 3)
        return values * 2, indices, torch.sort(x[0, 0], 1)[0] + 1

    check(codegen, program, torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3))


class _Pickler(pickle.Pickler):
    """Writes tensors by their place in ``kept``, and operators by name."""

    kept: ClassVar[list[torch.Tensor]] = []

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return next(k for k, tensor in enumerate(self.kept) if tensor is value)
        return str(value) if isinstance(value, torch._ops.OpOverload) else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, name: Any) -> Any:
        return (
            _Pickler.kept[name] if isinstance(name, int) else operator.attrgetter(name)(torch.ops)
        )


def test_a_program_is_made_again_of_what_was_generated(codegen: TritonCodegen) -> None:
    """Kernels, calls, several results and a constant that changes later, through pickle."""

    def function(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return *torch.topk((x @ w).softmax(1), 2), x.sum(0) + 1

    w, x = torch.randn(4, 4), torch.randn(3, 4)
    graph = make_fx(function, tracing_mode="fake")(w, x)
    loops = weft_loop_ir.lower(graph, constant_inputs=frozenset({0}))
    schedule = weft_loop_ir.schedule(loops, codegen.schedule_options)
    program = codegen.compile(schedule, {str(schedule.inputs[0]): w})
    _Pickler.kept, file = [w], io.BytesIO()
    _Pickler(file).dump(program.generated)
    again = codegen.load(_Unpickler(io.BytesIO(file.getvalue())).load())
    assert (again.source, again.kernel_count) == (program.source, program.kernel_count)
    for _ in range(2):
        torch.testing.assert_close(again(x), function(w, x))
        w.data = torch.randn(4, 4)
    assert codegen.environment() != TritonCodegen(TritonOptions(autotune=True)).environment()


def test_inputs_are_dropped_once_they_are_read(codegen: TritonCodegen) -> None:
    """What nobody else holds; those that results or the tail need stay."""
    held: list[list[bool]] = []
    references: list[weakref.ref[torch.Tensor]] = []

    @torch.library.custom_op("weft_tests::look_at_inputs", mutates_args=())
    def look(x: torch.Tensor) -> torch.Tensor:
        held.append([reference() is not None for reference in references])
        return x.clone()

    look.register_fake(torch.empty_like)

    def program(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = look(a.exp())
        return look(first @ b) + 1, c.t()

    def inputs() -> list[torch.Tensor]:
        torch.manual_seed(0)
        return [torch.randn(4, 4) for _ in range(3)]

    run = compiled(codegen, program, *inputs())
    held.clear()
    given = inputs()
    references += map(weakref.ref, given)
    got = run.call_donated(given)
    assert held == [[False, True, True], [False, False, True]]
    assert [value is None for value in given] == [True, True, False]
    for value, wanted in zip(got, program(*inputs()), strict=True):
        torch.testing.assert_close(value, wanted)


@torch.library.custom_op("weft_tests::doubled", mutates_args=())
def doubled(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [2 * tensor for tensor in tensors]


doubled.register_fake(lambda tensors: list(map(torch.empty_like, tensors)))


@pytest.mark.parametrize("count", [1, 3])
def test_operators_that_return_a_list(codegen: TritonCodegen, count: int) -> None:
    def program(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = doubled([t + 1 for t in tensors])
        return *results, results[-1].sum(0)

    check(codegen, program, *(torch.randn(k + 2, 3) for k in range(count)))


def test_kernels_overwrite_results_of_calls(codegen: TritonCodegen) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.relu(F.conv2d(x, w, padding=1) + 1)
        z = (4 * F.conv2d(y, w, padding=1)).int()  # of as many bytes
        kept = F.conv2d(y, w, padding=1)
        return F.conv2d(torch.sin(kept), w, padding=1), z.sort(1).values, kept

    inputs = torch.randn(2, 4, 7, 9), torch.randn(4, 4, 3, 3) / 4
    schedule = schedule_of(program, inputs, codegen)
    assert len(schedule.memory.reused) == 2
    check(codegen, program, *inputs)


def test_large_intermediates_have_memory_of_their_own(codegen: TritonCodegen) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.softmax(x @ w, 1)
        total = (y.t() @ y).sum(0)
        return (y + total) @ w, torch.relu(x @ w - y) @ w

    options = dataclasses.replace(codegen.schedule_options, own_bytes=1 << 12)
    inputs = torch.randn(40, 32), torch.randn(32, 32)
    graph = make_fx(program, tracing_mode="fake")(*inputs)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph), options)
    assert schedule.memory.alone and schedule.memory.reused and schedule.memory.offsets
    assert_equals_eager(codegen.compile(schedule, {})(*inputs), program, inputs)


def test_what_a_program_may_return(codegen: TritonCodegen) -> None:
    x = torch.randn(4, 6)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.exp()
        return y, y.t(), x, x.view(-1), y[1:3], x.expand(2, 4, 6), torch.full((2,), 3.0)

    check(codegen, program, x)


def test_results_are_not_written_again(codegen: TritonCodegen) -> None:
    x = torch.randn(30)
    run = compiled(codegen, lambda x: x * 2, x)
    (first,) = run(x)
    run(x + 1)
    assert torch.equal(first, x * 2)


def test_inputs_need_not_be_aligned(codegen: TritonCodegen) -> None:
    run = compiled(codegen, lambda x, y: x + y, torch.randn(1, 8).expand(3, 8), torch.randn(3, 8))
    for shift in (0, 1, 3):
        x = torch.randn(12)[shift : shift + 8][None].expand(3, 8)
        y = torch.randn(40)[shift : shift + 24].view(3, 8)
        assert torch.equal(run(x, y)[0], x + y)


def test_intermediates_of_several_dtypes_share_an_arena(codegen: TritonCodegen) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        half = x.half()
        product = (half @ half.t()).float()
        return (product @ x).double() @ (x.t() @ x).double()

    check(codegen, program, torch.randn(8, 8))


@pytest.mark.parametrize("dynamic", [False, True])
def test_intermediates_without_elements(codegen: TritonCodegen, dynamic: bool) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        order = x.sin().sort(1).values
        return F.layer_norm(order, order.shape[-1:]).cos().gather(1, order.long()), y + 1

    inputs = torch.randn(5, 0, 2), torch.randn(3)
    results = compiled(codegen, program, *inputs, dynamic=dynamic)(*inputs)
    assert_equals_eager(results, program, inputs)


def test_constants_are_read_anew(codegen: TritonCodegen) -> None:
    weight = torch.nn.Parameter(torch.randn(5))
    x = torch.randn(3, 5)
    schedule = schedule_of(lambda x, w: x * w, (x, weight.detach()), codegen)
    name = str(schedule.inputs[1])
    buffers = dict(schedule.buffers)
    buffers[name] = dataclasses.replace(buffers[name], kind=BufferKind.CONSTANT)
    bound = dataclasses.replace(schedule, buffers=buffers)
    run = codegen.compile(bound, {name: weight})
    assert torch.equal(run(x)[0], x * weight)
    with torch.no_grad():
        weight += 1
    weight.data = weight.data * 2
    assert torch.equal(run(x)[0], x * weight)
    with pytest.raises(ValueError, match="is not bound"):
        codegen.compile(bound, {})


def test_threads_take_turns(codegen: TritonCodegen) -> None:
    inputs = mlp_inputs()
    run = compiled(codegen, mlp, *inputs)
    wanted = mlp(*inputs)
    found: list[bool] = []

    def call() -> None:
        found.append(all(torch.allclose(run(*inputs)[0], wanted, atol=1e-4) for _ in range(2)))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 3


def test_equal_kernels_are_compiled_once(codegen: TritonCodegen) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.relu(x @ w)
        return x

    program_of = check(codegen, program, torch.randn(4, 4), torch.randn(4, 4))
    assert program_of.kernel_count == 3
    assert program_of.source.count("@triton.jit") == 1


def test_the_cpu_is_refused_without_the_interpreter(cache: Path) -> None:
    codegen = TritonCodegen(TritonOptions(cache_directory=cache, interpret=False))
    with pytest.raises(Unsupported, match="not on a GPU"):
        compiled(codegen, lambda x: x + 1, torch.randn(3))


def on_a_gpu(schedule: Schedule) -> Schedule:
    device = torch.device("cuda", 0)
    buffers = {
        n: dataclasses.replace(b, layout=dataclasses.replace(b.layout, device=device))
        for n, b in schedule.buffers.items()
    }
    return dataclasses.replace(schedule, buffers=buffers)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_named(codegen: TritonCodegen) -> None:
    schedule = schedule_of(lambda x: x + 1, (torch.randn(3),), codegen)
    with pytest.raises(DeviceUnavailable, match="torch finds none"):
        codegen.compile(on_a_gpu(schedule), {})


def test_a_missing_triton_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codegen = TritonCodegen(TritonOptions(cache_directory=tmp_path))
    schedule = schedule_of(lambda x: x + 1, (torch.randn(3),), codegen)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "triton", None)  # as if it were not installed
    with pytest.raises(DeviceUnavailable, match=r"pip install 'weft-codegen-triton\[gpu\]'"):
        codegen.compile(on_a_gpu(schedule), {})
    with pytest.raises(DeviceUnavailable, match="Triton"):
        codegen.compile(schedule, {})


def test_modes() -> None:
    codegen = TritonCodegen()
    options = {
        mode: codegen.for_mode(mode).options
        for mode in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
    }
    assert [o.cuda_graphs for o in options.values()] == [True, True, True, False]
    assert [o.autotune for o in options.values()] == [False, False, True, True]


def test_large_results_are_made_by_the_tail(codegen: TritonCodegen) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        small = (x @ w[:, :4]).relu()
        wide = (x * 2) @ w
        return small, wide, wide.t(), small + 1

    inputs = (torch.randn(1024, 16), torch.randn(16, 1024))
    program = compiled(codegen, function, *inputs)
    assert_equals_eager(program(*inputs), function, inputs)
    compute, finish = program.source.split("def finish")
    assert "(1024, 1024, )" in finish
    assert "(1024, 1024, )" not in compute
    assert "mul_0[" in compute.split("def compute")[1]
    assert "beside_recordings(stream)" in finish
    assert "beside_recordings(stream)" not in compute


def test_many_products_of_the_tail_do_not_change_streams(codegen: TritonCodegen) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x @ w, (2 * x) @ w, (3 * x) @ w

    inputs = (torch.randn(1024, 16), torch.randn(16, 1024))
    program = check(codegen, function, *inputs)
    assert program.source.split("def finish")[1].count("out=") == 3
    assert "beside_recordings" not in program.source


def test_the_tail_reads_what_was_computed_before(codegen: TritonCodegen) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = (x @ w[:, :8]).softmax(1)
        for _ in range(9):
            y = (y @ w[:, :8]).tanh() + y.mean(1, keepdim=True)
        return y, y @ w

    inputs = (torch.randn(8, 8) / 8, torch.randn(8, 1 << 17) / 8)
    program = compiled(codegen, function, *inputs)
    assert_equals_eager(program(*inputs), function, inputs)
    compute, finish = program.source.split("def finish")
    assert "tanh" in compute
    assert "(8, 131072, )" in finish
    assert "(8, 131072, )" not in compute


def test_complex_numbers_are_the_librarys(codegen: TritonCodegen) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = torch.fft.rfft(x * 2) * torch.complex(y, y)
        return torch.fft.irfft(z) + 1, z.abs().relu(), torch.view_as_real(z) * 3

    check(codegen, program, torch.randn(4, 16), torch.randn(4, 9))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_numbers_of_8_bits(codegen: TritonCodegen, dtype: torch.dtype) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scale = 448.0 / x.abs().amax().clamp(min=1e-12)
        quantized = (x * scale).clamp(-448, 448).to(dtype)
        return quantized.float() / scale, quantized.t().bfloat16() * 2, y.float().sum(1), scale

    check(codegen, program, torch.randn(8, 16), torch.randn(4, 8).to(dtype))


def test_a_librarys_result_in_its_operands_memory_is_kept(codegen: TritonCodegen) -> None:
    """No schema tells it, and the plan has that memory for another buffer once the operand is read."""
    with torch.library._scoped_library("weft_tests", "FRAGMENT") as library:
        library.define("given_back(Tensor x) -> Tensor")
        library.impl("given_back", lambda x: x.view_as(x), "CompositeExplicitAutograd")
        library._register_fake("given_back", torch.empty_like)
        given_back = torch.ops.weft_tests.given_back.default

        def function(x: torch.Tensor) -> torch.Tensor:
            first = given_back(x + 1)
            return first * given_back(first.sum(0) * x)

        check(codegen, function, torch.randn(8, 8))

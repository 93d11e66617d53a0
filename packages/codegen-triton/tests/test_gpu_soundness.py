"""What may happen between two calls of a program that is replayed from a CUDA graph.  ``nox -s gpu``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import weft_loop_ir as loop_ir
from compiled_beside_eager import compiled
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen, TritonOptions, TritonProgram

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def gpu(cache: Path) -> TritonCodegen:
    return TritonCodegen(
        TritonOptions(cache_directory=cache / "gpu", interpret=False, min_recorded_steps=1)
    )


def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.gelu(x @ w).softmax(1) @ w.t() + x


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(32, 64, device="cuda"), torch.randn(64, 64, device="cuda") / 8


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


def test_inputs_change_in_place(gpu: TritonCodegen) -> None:
    x, w = pair()
    run = compiled(gpu, block, x, w)
    for _ in range(5):
        assert_close(run(x, w)[0], block(x, w))
        x.add_(1)
        w.mul_(0.9)


def test_results_are_inputs_of_the_next_call(gpu: TritonCodegen) -> None:
    x, w = pair()
    run = compiled(gpu, block, x, w)
    want = x
    for _ in range(6):
        (x,) = run(x, w)
        want = block(want, w)
    assert_close(x, want)


def test_programs_share_memory_and_nothing_else(gpu: TritonCodegen) -> None:
    x, w = pair()
    first, second = compiled(gpu, block, x, w), compiled(gpu, lambda x, w: (x * 2) @ w, x, w)
    held = []
    for k in range(6):
        (a,) = first(x + k, w)
        (b,) = second(a, w)
        held.append((k, a, b))
    assert first.not_recorded is None and second.not_recorded is None
    for k, a, b in held:
        assert_close(a, block(x + k, w))
        assert_close(b, (a * 2) @ w)


def test_what_is_kept_for_backward_outlives_later_calls(gpu: TritonCodegen) -> None:
    def forward(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.tanh(x @ w)
        return y.sum(1), y

    def backward(y: torch.Tensor, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return x.t() @ ((1 - y * y) * g[:, None])

    x, w = pair()
    y = forward(x, w)[1]
    forwards = compiled(gpu, forward, x, w)
    backwards = compiled(gpu, backward, y, x, y[:, 0].contiguous())
    for _ in range(4):  # micro-batches: all forwards, then all backwards
        batches = [torch.randn_like(x) for _ in range(3)]
        kept = [forwards(batch, w) for batch in batches]
        for batch, (total, y) in zip(batches, kept, strict=True):
            leaf = w.clone().requires_grad_()
            want = forward(batch, leaf)[0]
            want.backward(total)
            assert leaf.grad is not None
            assert_close(backwards(y, batch, total)[0], leaf.grad)


def test_memory_does_not_grow(gpu: TritonCodegen) -> None:
    x, w = pair()
    run = compiled(gpu, block, x, w)
    for k in range(5):
        run(x + k, w)  # a recording that reads the input where it is, and one that copies it
    before = torch.cuda.memory_allocated()
    for k in range(30):
        run(x + k, w)
    assert torch.cuda.memory_allocated() <= before


def test_launches_as_graphs(cache: Path) -> None:
    """Without recordings: at new addresses, in new sizes, on other streams, inside a caller's graph."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = x.softmax(1)
        second = first.cumsum(0).relu() + x.sum()
        return first, second.sum(0), second.t().contiguous().exp().sum(0), x.amax(1) * 2

    options = TritonOptions(
        cache_directory=cache / "gpu", interpret=False, cuda_graphs=False, launch_graphs=True
    )
    run = compiled(TritonCodegen(options), function, torch.randn(5, 7, device="cuda"), dynamic=True)
    assert run.not_recorded is not None
    held = []
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    for k, rows in enumerate([300, 300, 300, 300, 64, 5, 300, 2, 400, 400]):
        x = torch.randn(rows, 70, device="cuda")
        stream = streams[k % 2]
        stream.wait_stream(streams[0])
        with torch.cuda.stream(stream):
            held.append((x, run(x)))
        streams[0].wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = run(x)
    x.normal_()
    graph.replay()
    held = [*held[:-1], (x, recorded)]
    for x, results in held:
        for got, want in zip(results, function(x), strict=True):
            assert_close(got, want)


def test_parameters_that_are_replaced(gpu: TritonCodegen) -> None:
    x, w = pair()
    run = compiled(gpu, block, x, w)
    for _ in range(4):
        for weight in (w, torch.randn_like(w) / 8):
            assert_close(run(x, weight)[0], block(x, weight))


def drawn(codegen: TritonCodegen, function: Callable[..., Any], *inputs: Any) -> TritonProgram:
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    codegen.rewrite(graph)
    schedule = loop_ir.schedule(loop_ir.lower(graph), codegen.schedule_options)
    return codegen.compile(schedule, {})


def test_seeds_decide_in_recordings_as_without(gpu: TritonCodegen, cache: Path) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        noisy = torch.native_dropout(x, 0.25, True)[0] + torch.randn_like(x)
        return noisy, torch.rand_like(x) * noisy.sum(0)

    options = TritonOptions(cache_directory=cache / "gpu", interpret=False, cuda_graphs=False)
    x = torch.randn(256, 256, device="cuda")
    recorded, plain = drawn(gpu, function, x), drawn(TritonCodegen(options), function, x)
    for seed in range(4):
        torch.manual_seed(seed)
        wanted = [plain(x) for _ in range(2)]
        torch.manual_seed(seed)
        for want in wanted:
            for got, other in zip(recorded(x), want, strict=True):
                torch.testing.assert_close(got, other)
        assert not torch.equal(wanted[0][0], wanted[1][0])
    assert recorded.not_recorded is None


def test_numbers_drawn_on_the_gpu_are_those_of_the_definition(gpu: TritonCodegen) -> None:
    seeds = torch.tensor([3, -(1 << 62) + 12345], device="cuda")

    def function(seeds: torch.Tensor) -> tuple[torch.Tensor, ...]:
        uniform = torch.ops.weft.uniform_at(seeds, 1, [300, 400])
        return uniform, torch.ops.weft.normal_at(seeds, 0, [1 << 20])

    (uniform, normal), wanted = compiled(gpu, function, seeds)(seeds), function(seeds)
    assert torch.equal(uniform, wanted[0])
    torch.testing.assert_close(normal, wanted[1], rtol=1e-3, atol=1e-3)
    assert abs(float(normal.mean())) < 5e-3 and abs(float(normal.std()) - 1) < 5e-3


def test_an_optimizers_step(gpu: TritonCodegen) -> None:
    def step(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        halves = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        return tuple(p - 0.1 * g / (g.abs() + 1e-3) for p, g in zip(*halves, strict=True))

    sizes = [(768,), (768, 768), (3072,), (768,), (768, 768), (2, 3), (50, 768)]
    tensors = [torch.randn(size, device="cuda") for size in (*sizes, *sizes)]
    run = compiled(gpu, step, *tensors)
    for _ in range(3):
        for got, want in zip(run(*tensors), step(*tensors), strict=True):
            torch.testing.assert_close(got, want)
    assert run.kernel_count <= 3


def test_products_after_a_recording_share_its_workspace(gpu: TritonCodegen) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.gelu(x @ w).softmax(1) @ v

    x = torch.randn(1024, 64, device="cuda")
    w, v = torch.randn(64, 512, device="cuda") / 8, torch.randn(512, 2048, device="cuda") / 8
    run = compiled(gpu, function, x, w, v)
    kept = []
    for number in range(8):
        if number == 5:  # others may free what the library keeps
            torch._C._cuda_clearCublasWorkspaces()
        (got,) = run(x, w, v)
        kept.append((got, function(x, w, v)))
        x.mul_(1.1)
    assert run.not_recorded is None
    for got, want in kept:
        assert_close(got, want)


def test_recordings_give_back_the_workspace_of_their_stream(gpu: TritonCodegen) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.gelu(x @ w).softmax(1).sum(0)

    x, w = torch.randn(1024, 64, device="cuda"), torch.randn(64, 512, device="cuda") / 8
    run = compiled(gpu, function, x, w)
    run(x, w)
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        (got,) = run(x, w)
    assert run.not_recorded is None
    assert torch.cuda.memory_allocated() - before < 8 << 20
    assert_close(got, function(x, w))


def test_a_thread_whose_first_work_is_a_launch(gpu: TritonCodegen) -> None:
    x = torch.randn(1000, device="cuda")
    run = compiled(gpu, lambda x: torch.sin(x) + 1, x)
    run(x)
    want = run(x)[0].clone()  # whose memory is free for the other thread's result
    results: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: results.extend(run(x)))
    thread.start()
    thread.join()
    assert_close(results[0], want)

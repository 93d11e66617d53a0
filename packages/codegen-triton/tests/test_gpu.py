"""What only a GPU shows: kernels beside eager there, launches, streams, CUDA graphs.  ``nox -s gpu``."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import weft_loop_ir as loop_ir
from compiled_beside_eager import assert_equals_eager, compiled
from kernel_cases import (
    BINARY_NAMES,
    INDEXING,
    LAYOUTS,
    ROWS,
    SPECIAL,
    UNARY_NAMES,
    Case,
    all_of,
    statistics,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen, TritonOptions, TritonProgram

pytestmark = pytest.mark.gpu

CASES: dict[str, Case] = {
    **LAYOUTS,
    **ROWS,
    **INDEXING,
    "unary": (
        all_of(UNARY_NAMES),
        (torch.tensor(SPECIAL[:10]),),
    ),
    "binary": (
        all_of(BINARY_NAMES),
        (
            torch.tensor(SPECIAL[:10])[:, None],
            torch.tensor(SPECIAL[:10])[None],
        ),
    ),
    "rows": (statistics(1), (torch.randn(50, 300),)),
    "columns": (statistics(0), (torch.randn(300, 50),)),
    "long rows": (statistics(1), (torch.randn(4, 30000).double(),)),
    "wide softmax": (lambda x: x.softmax(-1), (torch.randn(200, 20000),)),
    "softmax of an odd length": (lambda x: x.softmax(-1), (torch.randn(100, 30001).bfloat16(),)),
    "log softmax of an odd length": (
        lambda x: x.float().log_softmax(-1).sum(-1),
        (torch.randn(100, 30001).half(),),
    ),
    "positions in an odd length": (
        lambda x: (x.argmax(-1), x.argmin(-1), x.amax(-1)),
        (torch.randn(100, 30001).bfloat16(),),
    ),
    "group norm of large images": (
        lambda x, w: F.silu(F.group_norm(x, 4, w)),
        (torch.randn(2, 32, 56, 56).bfloat16(), torch.randn(32).bfloat16()),
    ),
    "functions of halves": (
        lambda x: (F.gelu(x), F.silu(x), x.sigmoid(), x.exp(), x.erf(), x / x.amax() * 0.3 + x),
        (torch.linspace(-10, 10, 1000).half(),),
    ),
    "functions of bfloat16": (
        lambda x, y: (F.gelu(x + y), (x * 1.7).sin() * y, F.silu(x)),
        (torch.linspace(-10, 10, 1000).bfloat16(), torch.randn(1000).bfloat16()),
    ),
    "gelu of halves": (
        lambda x, b: (F.gelu(x + b), F.gelu(x), F.gelu(b)),
        (torch.linspace(-12, 12, 4000).half()[:, None], torch.randn(8).half()),
    ),
    "large": (lambda x, y: F.gelu(x) + y, (torch.randn(3000, 1000), torch.randn(1000))),
    "large sum": (lambda x: x.sum(), (torch.randn(1 << 22).double(),)),
    "large transpose": (lambda x: x.t().contiguous() * 2, (torch.randn(1000, 3000),)),
    "half": (lambda x: F.layer_norm(x, (768,)), (torch.randn(100, 768).half(),)),
    "bfloat16": (lambda x: x.softmax(-1) * x, (torch.randn(100, 768).bfloat16(),)),
    "scans": (
        lambda x, i: (
            x.cumsum(0),
            x.cumsum(1),
            x.logcumsumexp(1),
            x.cumprod(1),
            i.cumsum(1),
            (i > 0).cumsum(0),
        ),
        (torch.randn(300, 2000).double(), torch.randint(-9, 9, (700, 300))),
    ),
    "scatter": (
        lambda t, i, s: t.scatter_add(0, i, s),
        (torch.zeros(10, 64), torch.randint(0, 10, (5000, 64)), torch.ones(5000, 64)),
    ),
}


@pytest.fixture(scope="module")
def gpu(cache: Path) -> TritonCodegen:
    return TritonCodegen(
        TritonOptions(cache_directory=cache / "gpu", interpret=False, min_recorded_steps=0)
    )


def moved(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The tensors on the GPU, with the strides that they have."""
    made = []
    for x in inputs:
        storage = x.untyped_storage().nbytes() // x.itemsize
        memory = torch.as_strided(x, (storage,), (1,), 0).cuda()
        made.append(torch.as_strided(memory, x.size(), x.stride(), x.storage_offset()))
    return tuple(made)


@pytest.mark.parametrize("name", CASES)
def test_against_eager(gpu: TritonCodegen, name: str) -> None:
    function, inputs = CASES[name]
    inputs = moved(inputs)
    program = compiled(gpu, function, *inputs)
    for _ in range(3):  # step by step, recorded, replayed
        assert_equals_eager(program(*inputs), function, inputs)
    assert program.not_recorded is None or "too large" in program.not_recorded


def mlp(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w) @ w.t() + x


def test_a_replay_overwrites_nothing_that_is_held(gpu: TritonCodegen) -> None:
    w = torch.randn(64, 64, device="cuda")
    inputs = [torch.randn(32, 64, device="cuda") for _ in range(5)]
    run = compiled(gpu, mlp, inputs[0], w)
    held = [run(x, w)[0] for x in inputs]
    for x, y in zip(inputs, held, strict=True):
        torch.testing.assert_close(y, mlp(x, w), rtol=1e-4, atol=1e-4)


def test_streams_have_recordings_of_their_own(gpu: TritonCodegen) -> None:
    x, w = torch.randn(32, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    run = compiled(gpu, mlp, x, w)
    wanted = mlp(x, w)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    for _ in range(3):
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                (y,) = run(x, w)
            torch.cuda.current_stream().wait_stream(stream)
            torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-4)


def test_inside_a_graph_of_the_callers(gpu: TritonCodegen) -> None:
    x, w = torch.randn(32, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    run = compiled(gpu, mlp, x, w)
    run(x, w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (y,) = run(x, w)
    x += 1
    graph.replay()
    torch.testing.assert_close(y, mlp(x, w), rtol=1e-4, atol=1e-4)


def test_random_operators_go_on_in_a_recording(gpu: TritonCodegen) -> None:
    x = torch.ones(1000, device="cuda")
    run = compiled(gpu, lambda x: F.dropout(x, 0.5) * 2, x)
    draws = [run(x)[0] for _ in range(4)]
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(draws))
    assert all(0.4 < (d > 0).float().mean() < 0.6 for d in draws)


def test_dynamic_sizes(gpu: TritonCodegen) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.softmax(1), x.sum(0), x.exp().t().contiguous()

    run = compiled(gpu, program, torch.randn(5, 7, device="cuda"), dynamic=True)
    for shape in 3 * ((5, 7), (300, 1000), (40, 2)):  # each step by step, recorded, replayed
        x = torch.randn(shape, device="cuda")
        assert_equals_eager(run(x), program, (x,))
    assert run.not_recorded is None


def test_rows_that_are_long_where_a_graph_is_made_and_short_later(gpu: TritonCodegen) -> None:
    """Loops that are unrolled, where they have no step."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.softmax(1), x.sum(1), x.argmax(1), x.exp().sum()

    run = compiled(gpu, program, torch.randn(4, 40000, device="cuda"), dynamic=True)
    for shape in ((4, 40000), (300, 100), (7, 8193), (5, 1)):
        x = torch.rand(shape, device="cuda")
        assert_equals_eager(run(x), program, (x,))


def rewritten(
    gpu: TritonCodegen, function: Callable[..., Any], *inputs: torch.Tensor
) -> TritonProgram:
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    gpu.rewrite(graph)
    return gpu.compile(loop_ir.schedule(loop_ir.lower(graph), gpu.schedule_options), {})


def test_scalars_on_the_cpu(gpu: TritonCodegen) -> None:
    def scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x * scale).relu() @ x.t() + torch.scalar_tensor(2.5) * scale

    x = torch.randn(64, 64, device="cuda")
    run = rewritten(gpu, scaled, x, torch.tensor(1.0))
    for value in (1.0, 2.0, 3.0, -1.0):
        scale = torch.tensor(value)
        torch.testing.assert_close(run(x, scale)[0], scaled(x, scale), rtol=1e-4, atol=1e-4)


def test_convolutions_that_lie_channels_last(gpu: TritonCodegen) -> None:
    def network(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = F.silu(F.group_norm(F.conv2d(x, w, b, padding=1), 4, b, b))
        return F.conv2d(y, w, b, padding=1) + y

    inputs = [torch.randn(n, device="cuda").half() / 4 for n in ((2, 16, 9, 9), (16, 16, 3, 3))]
    inputs.append(torch.randn(16, device="cuda").half())
    run = rewritten(gpu, network, *inputs)
    wanted = network(*inputs)
    for _ in range(3):  # sums are long, and their order is the library's
        (got,) = run(*inputs)
        assert got.stride() == wanted.stride()
        assert (got - wanted).norm() < 2e-3 * wanted.norm()


def test_large_results_are_not_copied(gpu: TritonCodegen) -> None:
    def logits(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for _ in range(12):
            x = torch.tanh(x @ w[:, :64]) + x.mean(1, keepdim=True)
        return x, x @ w

    w = torch.randn(64, 4096, device="cuda") / 8
    inputs = [torch.randn(1024, 64, device="cuda") for _ in range(4)]
    run = compiled(gpu, logits, inputs[0], w)
    held = [run(x, w) for x in inputs]
    for x, results in zip(inputs, held, strict=True):
        for got, wanted in zip(results, logits(x, w), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)
    assert run.not_recorded is None


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_device_than_the_current_one(gpu: TritonCodegen) -> None:
    x, w = torch.randn(32, 64, device="cuda:1"), torch.randn(64, 64, device="cuda:1")
    run = compiled(gpu, mlp, x, w)
    for _ in range(3):
        torch.testing.assert_close(run(x, w)[0], mlp(x, w), rtol=1e-4, atol=1e-4)
    assert torch.cuda.current_device() == 0


def test_variants_are_timed_once(cache: Path) -> None:
    folder = cache / "tuned"
    codegen = TritonCodegen(TritonOptions(cache_directory=folder, interpret=False))
    for mode in ("max-autotune", "max-autotune-no-cudagraphs"):
        inputs = torch.randn(500, 3000, device="cuda"), torch.randn(3000, device="cuda")
        run = compiled(codegen.for_mode(mode), lambda x, w: (x * w).softmax(1), *inputs)
        for _ in range(3):
            assert_equals_eager(run(*inputs), lambda x, w: (x * w).softmax(1), inputs)
        assert len(list(folder.glob("*.tuned"))) == 1


def test_counters_on_the_cpu_are_computed_before_the_recording(gpu: TritonCodegen) -> None:
    def steps(x: torch.Tensor, counts: list[torch.Tensor]) -> list[torch.Tensor]:
        more = [count + 1 for count in counts]
        for count in more:
            x = torch.tanh(x @ x) * (1 - 0.9**count)
        return [x, *more]

    graph = make_fx(steps, tracing_mode="fake")(
        torch.randn(32, 32, device="cuda"), [torch.tensor(0.0) for _ in range(12)]
    )
    gpu.rewrite(graph)
    run = gpu.compile(loop_ir.schedule(loop_ir.lower(graph), gpu.schedule_options), {})
    counts = [torch.tensor(float(k)) for k in range(12)]
    held = []
    for _ in range(5):
        x = torch.randn(32, 32, device="cuda") / 4
        got, *more = run(x, *counts)
        wanted, *expected = steps(x, counts)
        held.append((got, wanted))
        assert more == expected and all(count.device.type == "cpu" for count in more)
        counts = more
    for got, wanted in held:
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
    assert run.not_recorded is None

"""Bandwidth of generated kernels on a GPU beside a device copy: ``python -m benchmarks.gpu_kernels``.

Calls are recorded in a CUDA graph, five at a time, so that the host is not measured.  Each input and the
output count once, an embedding's table as much as is read of it.  Prints a Markdown table, beside a large
copy and beside one of as many bytes as the kernel moves, the same of kernels for sizes that vary, with
indices of 32 and of 64 bits, and what a launch costs the host.  ``--varying`` prints the table of sizes that
vary alone, of the cases whose descriptions begin as said.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen, TritonOptions

F32, BF16 = torch.float32, torch.bfloat16
CALLS = 5
"""Calls in one recording."""


def r(*size: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.randn(size, device="cuda").to(dtype)


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    return (x * scale).to(x.dtype) * w


def cases() -> dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]]:
    """Functions and inputs by description; large against the cache of a GPU."""
    image = r(64, 256, 56, 56, dtype=BF16)
    wide = r(16384, 4096, dtype=BF16)
    return {
        "x + y, 64M bfloat16": (
            lambda x, y: x + y,
            (r(1 << 26, dtype=BF16), r(1 << 26, dtype=BF16)),
        ),
        "gelu, 64M float32": (F.gelu, (r(1 << 26),)),
        "gelu(x + bias), 16384x4096 bfloat16": (
            lambda x, b: F.gelu(x + b),
            (wide, r(4096, dtype=BF16)),
        ),
        "transpose, 8192x8192 float32": (lambda x: x.t().contiguous(), (r(8192, 8192),)),
        "permute of heads, bfloat16": (
            lambda x: x.permute(0, 2, 1, 3).contiguous(),
            (r(64, 512, 16, 64, dtype=BF16),),
        ),
        "softmax, 16384x1024 bfloat16": (lambda x: x.softmax(-1), (r(16384, 1024, dtype=BF16),)),
        "softmax, 16384x4096 float32": (lambda x: x.softmax(-1), (r(16384, 4096),)),
        "softmax, 4096x50257 bfloat16": (lambda x: x.softmax(-1), (r(4096, 50257, dtype=BF16),)),
        "layer norm, 16384x768 bfloat16": (
            lambda x, w: F.layer_norm(x, (768,), w),
            (r(16384, 768, dtype=BF16), r(768, dtype=BF16)),
        ),
        "layer norm, 16384x4096 bfloat16": (
            lambda x, w: F.layer_norm(x, (4096,), w),
            (wide, r(4096, dtype=BF16)),
        ),
        "layer norm, 65536x256 float32": (
            lambda x, w: F.layer_norm(x, (256,), w),
            (r(65536, 256), r(256)),
        ),
        "RMS norm, 16384x4096 bfloat16": (rms_norm, (wide, r(4096, dtype=BF16))),
        "sum of rows, 16384x4096 float32": (lambda x: x.sum(1), (r(16384, 4096),)),
        "sum of columns, 16384x4096 float32": (lambda x: x.sum(0), (r(16384, 4096),)),
        "sum of 16 rows of 4M float32": (lambda x: x.sum(1), (r(16, 1 << 22),)),
        "cumsum of rows, 4096x4096 float32": (lambda x: x.cumsum(1), (r(4096, 4096),)),
        "cumsum of columns, 8x2048x1024 float32": (lambda x: x.cumsum(1), (r(8, 2048, 1024),)),
        "cumsum of one row of 16M float32": (lambda x: x.cumsum(0), (r(1 << 24),)),
        "argmax, 4096x50257 bfloat16": (lambda x: x.argmax(1), (r(4096, 50257, dtype=BF16),)),
        "silu(group norm), 64x256x56x56 bfloat16": (
            lambda x, w: F.silu(F.group_norm(x, 32, w)),
            (image, r(256, dtype=BF16)),
        ),
        "relu(batch norm), 64x256x56x56 bfloat16": (
            lambda x, m: F.relu(F.batch_norm(x, m, m.exp())),
            (image, r(256)),
        ),
        "embedding, 64k rows of 1024 bfloat16": (
            lambda i, w: F.embedding(i, w),
            (torch.randint(0, 50000, (1 << 16,), device="cuda"), r(50000, 1024, dtype=BF16)),
        ),
    }


def milliseconds(call: Callable[[], Any]) -> float:
    """Median of a call's time on the GPU alone."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    times = []
    for _ in range(24):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[4:]) / CALLS


def launch_microseconds() -> float:
    """What the host spends on one more kernel, by chains of products with sums of different lengths."""

    def chain(length: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def function(x: torch.Tensor) -> torch.Tensor:
            for _ in range(length):
                x = x * x.sum(0)
            return x

        return function

    lengths, times = (4, 36), []
    codegen = TritonCodegen(TritonOptions(cuda_graphs=False))
    x = torch.ones(64, 64, device="cuda")
    kernels = []
    for length in lengths:
        graph = make_fx(chain(length), tracing_mode="fake")(x)
        schedule = schedule_of(graph, codegen)
        program = codegen.compile(schedule, {})
        kernels.append(program.kernel_count)
        samples = []
        for _ in range(60):
            torch.cuda.synchronize()
            start = time.perf_counter()
            program(x)
            samples.append(time.perf_counter() - start)
        times.append(statistics.median(samples[20:]))
    return 1e6 * (times[1] - times[0]) / (kernels[1] - kernels[0])


def print_varying(kinds: Sequence[str] = ()) -> None:
    """Times of kernels for any size, relative to those for the sizes that they are called with.

    ``kinds``: how the descriptions of cases begin; all if there are none.
    """
    print("\n| sizes that vary | fixed ms | 32 bits | 64 bits |\n|---|---|---|---|")
    limits = (TritonOptions().narrow_below, 1)
    codegens = [TritonCodegen(TritonOptions(cuda_graphs=False, narrow_below=n)) for n in limits]
    for name, (function, inputs) in cases().items():
        if kinds and not name.startswith(tuple(kinds)):
            continue
        times = []
        for mode, codegen in (("fake", codegens[0]), *(("symbolic", c) for c in codegens)):
            graph = make_fx(function, tracing_mode=mode)(*inputs)
            schedule = schedule_of(graph, codegen)
            program = codegen.compile(schedule, {})
            torch.testing.assert_close(program(*inputs)[0], function(*inputs), rtol=2e-2, atol=2e-2)
            times.append(milliseconds(lambda program=program, inputs=inputs: program(*inputs)))
        ratios = " | ".join(f"{time / times[0]:.2f}x" for time in times[1:])
        print(f"| {name} | {times[0]:.3f} | {ratios} |", flush=True)


def schedule_of(graph: torch.fx.GraphModule, codegen: TritonCodegen) -> weft_loop_ir.Schedule:
    """What the code generator is given of ``graph``."""
    lowered = weft_loop_ir.lower(graph, options=codegen.lowering_options)
    return weft_loop_ir.schedule(lowered, codegen.schedule_options)


def nbytes(*tensors: torch.Tensor) -> int:
    return sum(t.numel() * t.itemsize for t in tensors)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--varying", nargs="*", metavar="CASE", help="sizes that vary alone")
    kinds = parser.parse_args().varying
    if kinds is None:
        print_all()
    else:
        print_varying(kinds)


def print_all() -> None:
    source = torch.empty(1 << 28, device="cuda")
    target = torch.empty_like(source)
    # by a kernel, which is faster than the driver's copy, and once unmeasured, until clocks have risen
    rates = [2 * nbytes(source) / milliseconds(lambda: torch.neg(source, out=target)) for _ in "ab"]
    copy = max(rates)
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {copy / 1e9:.2f} TB/s\n"
    )
    print("| kernel | of the copy | of a copy of its size | over eager |\n|---|---|---|---|")
    codegen = TritonCodegen(TritonOptions(cuda_graphs=False))
    for name, (function, inputs) in cases().items():
        graph = make_fx(function, tracing_mode="fake")(*inputs)
        schedule = schedule_of(graph, codegen)
        program = codegen.compile(schedule, {})
        (result,) = program(*inputs)
        torch.testing.assert_close(result, function(*inputs), rtol=2e-2, atol=2e-2)
        moved = nbytes(*inputs, result)
        if name.startswith("embedding"):
            moved = 2 * nbytes(result) + nbytes(inputs[0])
        ours = milliseconds(lambda program=program, inputs=inputs: program(*inputs))
        part = source[: moved // 8], target[: moved // 8]
        same = milliseconds(lambda part=part: torch.neg(part[0], out=part[1]))
        eager = milliseconds(lambda function=function, inputs=inputs: function(*inputs))
        print(f"| {name} | {moved / ours / copy:.0%} | {same / ours:.0%} | {eager / ours:.2f}x |")
    print_varying()
    print(f"\na launch costs the host {launch_microseconds():.2f} us")


if __name__ == "__main__":
    main()

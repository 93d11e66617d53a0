"""Attention with changed scores on a GPU: ``python -m benchmarks.gpu_attention``.

Each shape written out in PyTorch: in eager, by torch.compile, as a compiled ``flex_attention``, as
``scaled_dot_product_attention`` with a mask where that expresses it, and by this compiler as library calls
and as one kernel.  Prints a Markdown table of median milliseconds, and the error of the kernel against
float64 on the heads of the first keys.
"""

from __future__ import annotations

import fcntl
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen, TritonOptions

DEVICE = "cuda"
LOCK = Path(tempfile.gettempdir()) / "weft-gpu-attention"
COLUMNS = (
    "eager", "torch.compile", "flex_attention", "library with a mask", "library calls", "one kernel",
    "tuned",
)  # fmt: skip
T = torch.Tensor
HALF, BRAIN = torch.float16, torch.bfloat16
Run = Callable[[], T]


@dataclass(frozen=True)
class Case:
    """``score`` and ``mask`` say what is done to scaled scores at positions, as flex_attention takes them.

    ``extra`` is a tensor that both read, their first argument.
    ``sizes`` are images, heads, heads of keys, tokens, width.
    """

    dtype: torch.dtype
    sizes: tuple[int, int, int, int, int]
    score: Callable[..., T] | None = None
    mask: Callable[..., T] | None = None
    extra: Callable[[], T] | None = None


def _causal(extra: T | None, b: Any, h: Any, i: Any, j: Any) -> Any:
    return j <= i


def _slopes() -> T:
    return (2.0 ** -torch.arange(0.5, 8.5, 0.5, device=DEVICE)).half()


def _bias(heads: int, tokens: int, dtype: torch.dtype) -> Callable[[], T]:
    return lambda: torch.randn(heads, tokens, tokens, device=DEVICE).to(dtype)


def _add_bias(extra: T, s: T, b: Any, h: Any, i: Any, j: Any) -> T:
    return s + extra[h, i, j]


CASES = {
    "capped scores (Gemma 2), causal": Case(
        BRAIN, (2, 16, 8, 4096, 256), lambda e, s, b, h, i, j: torch.tanh(s / 50) * 50, _causal
    ),
    "window of 1024 (Mistral)": Case(
        BRAIN, (1, 32, 8, 8192, 128), None, lambda e, b, h, i, j: (j <= i) & (j > i - 1024)
    ),
    "ALiBi, causal": Case(
        HALF, (4, 16, 16, 2048, 64), lambda e, s, b, h, i, j: s + e[h] * (j - i), _causal, _slopes
    ),
    "bias (T5)": Case(HALF, (8, 8, 8, 512, 64), _add_bias, None, _bias(8, 512, HALF)),
    "bias (T5), long": Case(BRAIN, (4, 12, 12, 2048, 64), _add_bias, None, _bias(12, 2048, BRAIN)),
    "documents of 700, causal": Case(
        BRAIN,
        (4, 16, 16, 4096, 64),
        None,
        lambda e, b, h, i, j: (j <= i) & (e[i] == e[j]),
        lambda: torch.arange(4096, device=DEVICE) // 700,
    ),
    "causal": Case(BRAIN, (4, 16, 16, 2048, 128), None, _causal),
    "bias, short": Case(HALF, (32, 12, 12, 128, 64), _add_bias, None, _bias(12, 128, HALF)),
}


def written_out(case: Case) -> Callable[..., T]:
    """The case in PyTorch's operators, on queries, keys, values, and what it reads besides."""

    def function(q: T, k: T, v: T, extra: T | None = None) -> T:
        group = q.shape[1] // k.shape[1]
        if group > 1:
            k, v = (t[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2) for t in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        places = [
            torch.arange(n, device=q.device).view([n if d == axis else 1 for d in range(4)])
            for axis, n in enumerate(scores.shape)
        ]
        if case.score is not None:
            scores = case.score(extra, scores, *places)
        if case.mask is not None:
            scores = torch.where(case.mask(extra, *places), scores, -math.inf)
        return torch.softmax(scores, -1) @ v

    return function


def added(case: Case, q: T, extra: T | None) -> T | None:
    """What is added to scores, as the library takes it; None where no sum expresses that."""
    batch, heads, tokens, _ = q.shape
    places = [
        torch.arange(n, device=q.device).view([n if d == axis else 1 for d in range(4)])
        for axis, n in enumerate((batch, heads, tokens, tokens))
    ]
    zero = q.new_zeros(1, 1, tokens, tokens)
    bias = zero if case.score is None else case.score(extra, zero, *places)
    if case.score is not None and extra is None:
        return None
    if case.mask is not None:
        bias = torch.where(case.mask(extra, *places), bias, -math.inf)
    return bias.expand(batch, heads, -1, -1)


def forms(case: Case, inputs: tuple[T, ...]) -> dict[str, Run]:
    """What is timed, by the name of its column."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v, *rest = inputs
    extra = rest[0] if rest else None
    function, score, mask = written_out(case), case.score, case.mask
    tokens, grouped = q.shape[2], q.shape[1] != k.shape[1]
    compiled, flex = (torch.compile(f, dynamic=False) for f in (function, flex_attention))
    block = None
    if mask is not None:
        block = create_block_mask(
            lambda b, h, i, j: mask(extra, b, h, i, j), None, None, tokens, tokens, device=q.device
        )
    change = None if score is None else lambda s, b, h, i, j: score(extra, s, b, h, i, j)
    made: dict[str, Run] = {
        "eager": lambda: function(*inputs),
        "torch.compile": lambda: compiled(*inputs),
        "flex_attention": lambda: flex(
            q, k, v, score_mod=change, block_mask=block, enable_gqa=grouped
        ),
    }
    bias = added(case, q, extra)
    if bias is not None:
        made["library with a mask"] = lambda: F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, enable_gqa=grouped
        )
    for name, options in (
        ("library calls", TritonOptions(fuse_attention=False)),
        ("one kernel", TritonOptions(fuse_attention=True)),
        ("tuned", TritonOptions(fuse_attention=True, autotune=True)),
    ):
        codegen = TritonCodegen(options)
        graph = make_fx(lambda *given: function(*given), tracing_mode="fake")(*inputs)
        lowered = weft_loop_ir.lower(graph)
        program = codegen.compile(weft_loop_ir.schedule(lowered, codegen.schedule_options), {})
        made[name] = lambda program=program: program(*inputs)[0]  # type: ignore[misc]
    return made


def row(name: str) -> str:
    """A line of the table; forms are compiled at once, and timed while no other process times."""
    import triton

    case = CASES[name]
    batch, heads, key_heads, tokens, width = case.sizes
    torch.manual_seed(0)
    inputs = [
        torch.randn(batch, tokens, n, width, device=DEVICE).to(case.dtype).transpose(1, 2)
        for n in (heads, key_heads, key_heads)
    ]
    if case.extra is not None:
        inputs.append(case.extra())
    runs = forms(case, tuple(inputs))
    for run in runs.values():
        run()
    group = heads // key_heads
    few = [t[:1, :n] for t, n in zip(inputs, (group, 1, 1), strict=False)]
    exact = written_out(case)(*(t.double() for t in few), *inputs[3:])
    error = (runs["one kernel"]()[:1, :group] - exact).norm() / exact.norm()
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        times = {
            column: triton.testing.do_bench(run, warmup=10, rep=40, return_mode="median")
            for column, run in runs.items()
        }
    cells = [f"{times[column]:.3f}" if column in times else "" for column in COLUMNS]
    size = " x ".join(map(str, case.sizes))
    kind = str(case.dtype)[6:]
    return f"| {name} | {size}, {kind} | {' | '.join(cells)} | {error.item():.0e} |"


@torch.no_grad()
def main() -> None:
    if len(sys.argv) > 1:
        print(row(sys.argv[1]), flush=True)
        return
    print(f"| scores | sizes | {' | '.join(COLUMNS)} | error |")
    print("|---" * (len(COLUMNS) + 3) + "|", flush=True)
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu_attention"]
    for process in [subprocess.Popen([*command, name]) for name in CASES]:
        process.wait()


if __name__ == "__main__":
    main()

"""Kernels beside the hardware's limits on a GPU: ``python -m benchmarks.gpu_limits [WORD ...]``.

Each case is a function as a program writes it, run by eager, ``torch.compile`` and ``weft.compile`` on the
same tensors.  What is timed are the kernels of a call, by the profiler, without the gaps between them, after
what empties the second-level cache: medians of :data:`CALLS` calls and half of the quartiles' distance.
Bytes count each tensor that has to be read or written once, gradients' passes included; operations count a
multiplication and an addition as two, and of causal attention those of the half that is seen.  WORDs choose
the cases whose names have one of them.  Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.gpu import compile_with
from benchmarks.gpu_language_models import GROUP

COMPILERS = ("eager", "torch.compile", "weft")
CALLS = 20
BF16 = torch.bfloat16
DATASHEETS = {
    "H200": {"bytes": 4.8e12, "16 bits": 989e12, "8 bits": 1979e12},
    "H100": {"bytes": 3.35e12, "16 bits": 989e12, "8 bits": 1979e12},
}
"""Of cards by a part of their names: bytes a second, and operations without sparsity."""


@dataclass
class Case:
    """``work``: bytes or operations of a call, ``limit``: which of a datasheet's rates bounds it.

    ``gradients``: of which of ``inputs`` they are asked for as well, given the result's.
    """

    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    work: float
    limit: str = "bytes"
    gradients: Sequence[int] = ()


def r(*size: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(size, device="cuda", dtype=dtype)


def nbytes(*tensors: Tensor) -> int:
    return sum(t.numel() * t.itemsize for t in tensors)


def moving(function: Callable[..., Any], *inputs: Any, more: int = 0) -> Case:
    """Reads its inputs and writes its results, each once; ``more`` bytes besides."""
    results = function(*inputs)
    written = results if isinstance(results, tuple) else (results,)
    return Case(function, inputs, nbytes(*inputs, *written) + more)


def training(function: Callable[..., Tensor], *inputs: Tensor, passes: int) -> Case:
    """``passes``: how often a tensor of the first input's size is read or written, forward and backward."""
    leaves = tuple(t.detach().requires_grad_(t.is_floating_point()) for t in inputs)
    wanted = [n for n, t in enumerate(leaves) if t.requires_grad]
    return Case(function, leaves, passes * nbytes(inputs[0]), gradients=wanted)


def linear(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(x, w)


def embedding(places: Tensor, table: Tensor) -> Tensor:
    return F.embedding(places, table)


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def gated(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


def memory_cases() -> dict[str, Callable[[], Case]]:
    """Of kernels that wait for memory."""
    f32 = torch.float32
    return {
        "x + y, 64M": lambda: moving(lambda x, y: x + y, r(1 << 26), r(1 << 26)),
        "gelu(x + bias), 16384 x 4096": lambda: moving(
            lambda x, b: F.gelu(x + b), r(16384, 4096), r(4096)
        ),
        "silu(gate) * up, 8192 x 14336": lambda: moving(gated, r(8192, 14336), r(8192, 14336)),
        "silu(gate) * up with gradients, 8192 x 14336": lambda: training(
            gated, r(8192, 14336), r(8192, 14336), passes=8
        ),
        "rotation, 4 x 32 x 2048 x 128": lambda: moving(
            rotated, r(4, 32, 2048, 128), r(2048, 128), r(2048, 128)
        ),
        "transpose, 8192 x 8192 float32": lambda: moving(
            lambda x: x.t().contiguous(), r(8192, 8192, dtype=f32)
        ),
        "softmax, 16384 x 4096": lambda: moving(lambda x: x.softmax(-1), r(16384, 4096)),
        "softmax, 4096 x 50257": lambda: moving(lambda x: x.softmax(-1), r(4096, 50257)),
        "layer norm, 16384 x 1024": lambda: moving(
            lambda x, w, b: F.layer_norm(x, (1024,), w, b), r(16384, 1024), r(1024), r(1024)
        ),
        "layer norm with gradients, 16384 x 1024": lambda: training(
            lambda x, w, b: F.layer_norm(x, (1024,), w, b),
            r(16384, 1024),
            r(1024),
            r(1024),
            passes=5,
        ),
        "RMS norm, 16384 x 4096": lambda: moving(rms_norm, r(16384, 4096), r(4096)),
        "RMS norm with gradients, 8192 x 2048": lambda: training(
            rms_norm, r(8192, 2048), r(2048), passes=5
        ),
        "RMS norm with gradients, 16384 x 4096": lambda: training(
            rms_norm, r(16384, 4096), r(4096), passes=5
        ),
        "silu(group norm), 64 x 256 x 56 x 56": lambda: moving(
            lambda x, w: F.silu(F.group_norm(x, 32, w)), r(64, 256, 56, 56), r(256)
        ),
        "cross entropy with gradients, 8192 x 32000": lambda: training(
            lambda x, t: F.cross_entropy(x.float(), t),
            r(8192, 32000),
            torch.randint(0, 32000, (8192,), device="cuda"),
            passes=3,
        ),
        "cross entropy with gradients, 4096 x 128256": lambda: training(
            lambda x, t: F.cross_entropy(x.float(), t),
            r(4096, 128256),
            torch.randint(0, 128256, (4096,), device="cuda"),
            passes=3,
        ),
        "sum of rows, 16384 x 4096 float32": lambda: moving(
            lambda x: x.sum(1), r(16384, 4096, dtype=f32)
        ),
        "sum of columns, 16384 x 4096 float32": lambda: moving(
            lambda x: x.sum(0), r(16384, 4096, dtype=f32)
        ),
        "sum of columns, 16384 x 4096": lambda: moving(lambda x: x.sum(0), r(16384, 4096)),
        "argmax, 4096 x 50257": lambda: moving(lambda x: x.argmax(1), r(4096, 50257)),
        "cumsum of rows, 4096 x 4096 float32": lambda: moving(
            lambda x: x.cumsum(1), r(4096, 4096, dtype=f32)
        ),
        "embedding, 65536 rows of 1024": _embedding,
        "embedding with gradients, 8192 of 128256 rows of 2048": _embedding_gradient,
        "AdamW of 256M float32": _adamw,
    }


def _embedding() -> Case:
    """Of the table as much as is looked up is read."""
    places, table = torch.randint(0, 50000, (1 << 16,), device="cuda"), r(50000, 1024)
    return Case(embedding, (places, table), nbytes(places) + 2 * places.numel() * 1024 * 2)


def _embedding_gradient() -> Case:
    """The rows are read and written, the gradient read, and the whole of the table's written."""
    places, table = torch.randint(0, 128256, (8192,), device="cuda"), r(128256, 2048)
    work = 3 * places.numel() * 2048 * 2 + nbytes(table)
    return Case(embedding, (places, table.requires_grad_()), work, gradients=[1])


def _adamw() -> Case:
    """Gradient, parameter and moments are read, the last three written."""
    parameters = [r(1 << 24, dtype=torch.float32) for _ in range(16)]
    gradients, first, second = ([torch.rand_like(p) for p in parameters] for _ in range(3))

    def step(*tensors: Tensor) -> None:
        p, g, m, v = (tensors[n : n + 16] for n in range(0, 64, 16))
        torch._foreach_mul_(p, 1 - 1e-5)
        torch._foreach_lerp_(m, g, 0.1)
        torch._foreach_mul_(v, 0.999)
        torch._foreach_addcmul_(v, g, g, 0.001)
        scales = torch._foreach_sqrt(v)
        torch._foreach_add_(scales, 1e-8)
        torch._foreach_addcdiv_(p, m, scales, -1e-3)

    tensors = (*parameters, *gradients, *first, *second)
    return Case(step, tensors, 7 * nbytes(*parameters))


def of_8_bits(x: Tensor, numbers: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, numbers.to(x.dtype)) * scale


def of_4_bits(x: Tensor, numbers: Tensor, scale: Tensor) -> Tensor:
    both = torch.stack((numbers & 15, numbers >> 4), -1)
    weight = both.view(*scale.shape[:2], -1).to(x.dtype) - 8
    return F.linear(x, (weight * scale).flatten(1))


def few_row_cases() -> dict[str, Callable[[], Case]]:
    """Of products of few rows, which wait for the weight, and attention of one query."""
    found: dict[str, Callable[[], Case]] = {}
    for rows, outside, inside in (
        (1, 28672, 4096),
        (1, 4096, 14336),
        (1, 4096, 4096),
        (16, 28672, 4096),
    ):
        found[f"linear, {rows} x {inside} to {outside}"] = lambda n=rows, o=outside, i=inside: (
            moving(linear, r(n, i), r(o, i))
        )
    found["gated layer, 1 x 4096 x 14336"] = lambda: Case(
        lambda x, g, u, d: F.linear(gated(F.linear(x, g), F.linear(x, u)), d),
        (r(1, 4096), r(14336, 4096) / 64, r(14336, 4096) / 64, r(4096, 14336) / 64),
        3 * 14336 * 4096 * 2,
    )
    found["linear of 8 bits, 1 x 4096 to 14336"] = lambda: moving(
        of_8_bits,
        r(1, 4096),
        torch.randint(-127, 128, (14336, 4096), dtype=torch.int8, device="cuda"),
        r(14336),
    )
    found["linear of 4 bits, 1 x 4096 to 14336"] = lambda: moving(
        of_4_bits,
        r(1, 4096),
        torch.randint(0, 256, (14336, 2048), dtype=torch.uint8, device="cuda"),
        r(14336, 4096 // GROUP, 1),
    )
    for batch, keys in ((1, 8192), (8, 4096)):
        found[f"attention of a token, {batch} x 32 (8) x {keys} x 128"] = lambda b=batch, k=keys: (
            moving(
                lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
                r(b, 32, 1, 128),
                r(b, 8, k, 128),
                r(b, 8, k, 128),
            )
        )
    return found


def product(
    function: Callable[..., Any], rows: int, inner: int, columns: int, *more: Tensor
) -> Case:
    """Of ``rows x inner`` by ``columns x inner``, as a linear layer's."""
    scale = inner**0.5
    inputs = (r(rows, inner), r(columns, inner) / scale, *more)
    return Case(function, inputs, 2.0 * rows * inner * columns, "16 bits")


def attention(
    batch: int, heads: int, shared: int, length: int, width: int, causal: bool, backward: bool
) -> Case:
    """Backward makes five products of the size of forward's two."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != shared)

    inputs = tuple(r(batch, n, length, width) for n in (heads, shared, shared))
    work = 4.0 * batch * heads * length**2 * width / (2 if causal else 1)
    if not backward:
        return Case(function, inputs, work, "16 bits")
    leaves = tuple(t.requires_grad_() for t in inputs)
    return Case(function, leaves, 3.5 * work, "16 bits", gradients=range(3))


def _float8() -> Case:
    a, b = (r(8192, 8192).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device="cuda")

    def function(a: Tensor, b: Tensor, one: Tensor) -> Tensor:
        return torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=BF16)

    return Case(function, (a, b, one), 2.0 * 8192**3, "8 bits")


def convolution(images: int, inside: int, outside: int, extent: int, kernel: int) -> Case:
    """With a ReLU behind it, channels-last."""
    x = r(images, extent, extent, inside).permute(0, 3, 1, 2)
    w = (r(outside, kernel, kernel, inside) / 16).permute(0, 3, 1, 2)
    work = 2.0 * images * extent**2 * inside * outside * kernel**2

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.conv2d(x, w, b, padding=kernel // 2).relu()

    return Case(function, (x, w, r(outside)), work, "16 bits")


def product_cases() -> dict[str, Callable[[], Case]]:
    """Of what waits for the tensor cores."""
    return {
        "linear, 8192 x 8192 x 8192": lambda: product(linear, 8192, 8192, 8192),
        "linear, 8192 x 2048 x 8192": lambda: product(linear, 8192, 2048, 8192),
        "linear, 8192 x 2048 x 2048": lambda: product(linear, 8192, 2048, 2048),
        "linear, 4096 x 4096 x 14336": lambda: product(linear, 4096, 4096, 14336),
        "linear and gelu, 8192 x 768 x 3072": lambda: product(
            lambda x, w, b: F.gelu(F.linear(x, w, b)), 8192, 768, 3072, r(3072)
        ),
        "linear and residual, 8192 x 768 x 768": lambda: product(
            lambda x, w, y: F.linear(x, w) + y, 8192, 768, 768, r(8192, 768)
        ),
        "linear, 4096 x 768 x 50257": lambda: product(linear, 4096, 768, 50257),
        "float8, 8192 x 8192 x 8192": _float8,
        "attention, causal, 4 x 32 (8) x 2048 x 64": lambda: attention(
            4, 32, 8, 2048, 64, causal=True, backward=False
        ),
        "attention, causal, 1 x 32 (8) x 4096 x 128": lambda: attention(
            1, 32, 8, 4096, 128, causal=True, backward=False
        ),
        "attention, 16 x 12 x 512 x 64": lambda: attention(
            16, 12, 12, 512, 64, causal=False, backward=False
        ),
        "attention with gradients, causal, 4 x 32 (8) x 2048 x 64": lambda: attention(
            4, 32, 8, 2048, 64, causal=True, backward=True
        ),
        "attention with gradients, causal, 4 x 16 x 2048 x 128": lambda: attention(
            4, 16, 16, 2048, 128, causal=True, backward=True
        ),
        "3 x 3 convolution and relu, 64 x 256 x 14 x 14": lambda: convolution(64, 256, 256, 14, 3),
        "1 x 1 convolution and relu, 64 x 256 to 64 x 56 x 56": lambda: convolution(
            64, 256, 64, 56, 1
        ),
    }


def cases() -> dict[str, Callable[[], Case]]:
    """What makes each case, by its name."""
    return {**memory_cases(), **few_row_cases(), **product_cases()}


NUMBERS = itertools.count()
"""By which the functions that are compiled are told apart."""


def call_of(case: Case, compiler: str, gradient: Tensor | None) -> Callable[[], list[Tensor]]:
    """A call of what ``compiler`` makes of ``case``, with gradients where that of the result is given."""
    name, code = case.function.__name__, case.function.__code__
    # compilers keep what they make by code, and take other sizes for ones that vary
    own = types.FunctionType(
        code.replace(co_name=f"{name}_{next(NUMBERS)}"),
        case.function.__globals__,
        name,
        case.function.__defaults__,
        case.function.__closure__,
    )
    function = compile_with(compiler, own)
    leaves = [case.inputs[n] for n in case.gradients]

    def call() -> list[Tensor]:
        found = function(*case.inputs)
        results = [] if found is None else [*found] if isinstance(found, tuple) else [found]
        if gradient is not None:
            results += torch.autograd.grad(results[0], leaves, gradient)
        return results

    return call


class Cache:
    """Empties the second-level cache, between two marks: kernels whose names no others have.

    It is filled with what is only read: what was written would have to leave it while others are timed.
    """

    def __init__(self) -> None:
        self._memory = torch.ones(1 << 26, device="cuda")
        self._mark = torch.ones(1, device="cuda")

    def empty(self) -> None:
        torch.special.digamma(self._mark, out=self._mark)
        self._memory.amax()
        torch.special.ndtri(self._mark, out=self._mark)

    @staticmethod
    def begins(name: str) -> bool:
        return "digamma" in name

    @staticmethod
    def ends(name: str) -> bool:
        return "ndtri" in name


def kernel_times(call: Callable[[], Any], cache: Cache, calls: int = CALLS) -> list[float]:
    """Seconds that the kernels of each of ``calls`` calls take, after the cache was emptied."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(calls):
            cache.empty()
            call()
        torch.cuda.synchronize()
    times: list[float] = []
    on_gpu = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    is_emptied = False
    for event in sorted(on_gpu, key=lambda e: e.time_range.start):
        if cache.begins(event.name):
            is_emptied = False
        elif cache.ends(event.name):
            is_emptied = True
            times.append(0.0)
        elif is_emptied:
            times[-1] += event.time_range.elapsed_us() / 1e6
    return times


def difference(got: Iterable[Tensor], wanted: Iterable[Tensor]) -> float:
    """The largest relative one by norm, of results of floats."""
    pairs = [
        (a.double(), b.double()) for a, b in zip(got, wanted, strict=True) if a.is_floating_point()
    ]
    return max((float((a - b).norm() / b.norm().clamp(min=1e-30)) for a, b in pairs), default=0.0)


class Row:
    """A case, compiled by every compiler, that is measured when all are ready."""

    def __init__(self, name: str, case: Case) -> None:
        self._name, self._case = name, case
        gradient = torch.randn_like(case.function(*case.inputs)) if case.gradients else None
        self._calls = {compiler: call_of(case, compiler, gradient) for compiler in COMPILERS}
        found = {}
        for compiler, call in self._calls.items():
            for _ in range(4):
                found[compiler] = call()
        self._difference = difference(found["weft"], found["eager"])

    def measure(self, cache: Cache) -> str:
        """A row of the table."""
        times = {name: kernel_times(call, cache) for name, call in self._calls.items()}
        medians = {name: statistics.median(found) for name, found in times.items()}
        quartiles = statistics.quantiles(times["weft"])
        rate = self._case.work / medians["weft"]
        limit = next(
            (
                d[self._case.limit]
                for n, d in DATASHEETS.items()
                if n in torch.cuda.get_device_name()
            ),
            float("nan"),
        )
        is_bytes = self._case.limit == "bytes"
        unit = f"{rate / 1e12:.2f} TB/s" if is_bytes else f"{rate / 1e12:.0f} TFLOP/s"
        others = " | ".join(f"{1e6 * medians[name]:.1f}" for name in COMPILERS[:-1])
        spread = (quartiles[2] - quartiles[0]) / 2
        best = min(medians[name] for name in COMPILERS[:-1])
        return (
            f"| {self._name} | {others} | {1e6 * medians['weft']:.1f} ± {1e6 * spread:.1f} | {unit} | "
            f"{rate / limit:.0%} | {best / medians['weft']:.2f}x | {self._difference:.0e} |"
        )


HEAD = (
    f"| kernel | {' | '.join(f'{name} µs' for name in COMPILERS)} | rate | of the limit | "
    "over the best other | difference from eager |\n" + "|---" * (len(COMPILERS) + 5) + "|"
)


def copy_rate(cache: Cache) -> float:
    """Bytes a second of a kernel that reads and writes 1 GiB each."""
    source = torch.empty(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * nbytes(source) / min(kernel_times(lambda: torch.neg(source, out=target), cache))


def chosen(words: Sequence[str]) -> list[str]:
    """Names of the cases that have one of ``words``; all without any."""
    return [name for name in cases() if not words or any(word in name for word in words)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    names = chosen(parser.parse_args().words)
    torch.manual_seed(0)
    cache = Cache()
    versions = f"torch {torch.__version__}, triton {__import__('triton').__version__}"
    print(
        f"{torch.cuda.get_device_name()}, {versions}, a copy {copy_rate(cache) / 1e12:.2f} TB/s\n"
    )
    print(HEAD)
    for name in names:
        print(Row(name, cases()[name]()).measure(cache), flush=True)


if __name__ == "__main__":
    main()

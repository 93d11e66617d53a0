"""The programs of the conformance suite, by the kind of loop nest that they make."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional as F

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)
NUMBERS = (*FLOATS, *INTEGERS)
WIDE = (torch.float32, torch.float64)
SINGLE = (torch.float32,)

Make = Callable[[Callable[..., torch.Tensor], int], Sequence[torch.Tensor]]
"""Makes inputs, given a function that makes a tensor of a shape, and the extent that varies."""


@dataclass(frozen=True)
class Program:
    """``function`` of the tensors that ``make`` gives, in each of ``dtypes``.

    ``constants`` are the positions of inputs that are bound when the program is compiled.  ``writes`` maps
    positions of results to those of the inputs whose memory they may be computed in.  ``raises`` is the error
    that the program ends with.
    """

    function: Callable[..., Any]
    make: Make
    dtypes: tuple[torch.dtype, ...] = SINGLE
    constants: tuple[int, ...] = ()
    writes: tuple[tuple[int, int], ...] = ()
    raises: type[Exception] | None = None
    varies: bool = True
    kind: str = ""
    name: str = ""


def one(*shape: int) -> Make:
    """One tensor; -1 in its shape is the extent that varies."""
    return several(shape)


def several(*shapes: Sequence[int]) -> Make:
    return lambda new, n: [new(*(n if s == -1 else s for s in shape)) for shape in shapes]


def with_index(*shape: int, below: int) -> Make:
    """A tensor and positions from ``-below`` to below ``below``."""

    def make(new: Callable[..., torch.Tensor], n: int) -> Sequence[torch.Tensor]:
        places = (torch.arange(10) * 7) % (2 * below) - below
        return [new(*(n if s == -1 else s for s in shape)), places.reshape(5, 2)]

    return make


def _special(new: Callable[..., torch.Tensor], n: int) -> Sequence[torch.Tensor]:
    values = [0.0, -0.0, 1.0, -2.5, 3.5, math.inf, -math.inf, math.nan, 0.5, 1e30]
    x = torch.tensor(values).repeat(n)[: 2 * n].to(new(1).dtype)
    return [x, x.flip(0)]


def _all_of(*names: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    return lambda *x: tuple(getattr(torch, name)(*x) for name in names)


def _twice_while_small(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    def goes_on(count: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x.abs().sum() < 1000

    def body(count: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return count + 1, x * 2

    count = torch.zeros((), dtype=torch.int64, device=x.device)
    loop = torch.ops.higher_order.while_loop
    return tuple(loop(goes_on, body, (count, x + 1), ()))


def _branch(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    cond = torch.ops.higher_order.cond
    return (cond(x.sum() > 0, lambda x: (x.exp(),), lambda x: (x.sum(1, True) - x,), (x,))[0] * 2,)


def _random(seeds: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    uniform = torch.ops.weft.uniform_at(seeds, 1, list(x.shape))
    return x * (uniform > 0.5), torch.ops.weft.normal_at(seeds, 0, list(x.shape)).sum(1)


def _with_seeds(new: Callable[..., torch.Tensor], n: int) -> Sequence[torch.Tensor]:
    return [torch.tensor([3, -9]), new(n, 6)]


def _data_sized(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    places = x.nonzero()
    return places * 2, x.sum()


_image = one(2, 3, -1, 8)
_rows = one(-1, 33)

_TABLE: dict[str, dict[str, Program]] = {
    "pointwise": {
        "arithmetic": Program(
            lambda x, y: (x * 2 + y, x - y * 3), several((-1, 7), (-1, 7)), NUMBERS
        ),
        "quotient": Program(lambda x, y: (x / (y.abs() + 1),), several((-1, 7), (7,)), NUMBERS),
        "functions": Program(
            _all_of("exp", "tanh", "sigmoid", "erf", "sin", "expm1"), _rows, FLOATS
        ),
        "of positive": Program(
            lambda x: _all_of("sqrt", "log", "rsqrt", "log1p")(x.abs() + 0.1), _rows, FLOATS
        ),
        "special values": Program(
            _all_of("maximum", "minimum", "eq", "lt"), _special, FLOATS, varies=False
        ),
        "special values of one": Program(
            lambda x, _: _all_of("relu", "sign", "round", "isnan", "floor")(x),
            _special,
            WIDE,
            varies=False,
        ),
        "powers": Program(lambda x: (x**2, x**3, (x.abs() + 1) ** 0.5), _rows, FLOATS),
        "gelu and silu": Program(
            lambda x: (F.gelu(x), F.silu(x), F.gelu(x, approximate="tanh")), _rows, FLOATS
        ),
        "integers": Program(
            lambda x: (x // 3, x % 5, x & 6, x | 1, x ^ 3, x << 1), _rows, INTEGERS
        ),
        "choice": Program(
            lambda x, y: (torch.where(x > y, x, y + 1),), several((-1, 5), (-1, 5)), NUMBERS
        ),
        "logic": Program(
            lambda x, y: (((x > 0) & (y > 0)) | ~(x == y),), several((-1, 5), (-1, 5)), NUMBERS
        ),
        "conversions": Program(
            lambda x: tuple(
                x.to(t) for t in (torch.float32, torch.float64, torch.int32, torch.bool)
            ),
            _rows,
            NUMBERS,
        ),
        "to half": Program(lambda x: (x.half() * 2, x.bfloat16() + 1), _rows, WIDE),
        "clamped": Program(lambda x: (x.clamp(-0.5, 0.5), x.clamp(min=0)), _rows, FLOATS),
        "no dimension": Program(lambda x: (x * 2 + 1,), one(), NUMBERS, varies=False),
        "empty": Program(lambda x: (x * 2 + 1, x.sum(1)), one(3, 0), varies=False),
        "made": Program(
            lambda x: (
                torch.full_like(x, 2),
                torch.arange(x.shape[0], device=x.device) * 2,
                x.new_ones(3),
            ),
            _rows,
        ),
    },
    "layouts": {
        "transposed": Program(lambda x, y: (x.t() + y,), several((-1, 9), (9, -1)), NUMBERS),
        "broadcast": Program(lambda x, y: (x + y, x * y.t()), several((-1, 1), (1, -1)), WIDE),
        "reshaped": Program(lambda x: (x.transpose(0, 1).reshape(-1) + 1,), one(-1, 5, 3)),
        "permuted result": Program(
            lambda x: ((x + 1).permute(2, 0, 1), x.exp().t() if x.dim() == 2 else x.exp()),
            one(-1, 5, 3),
        ),
        "channels last": Program(lambda x: (x.to(memory_format=torch.channels_last) * 2,), _image),
        "flipped and rolled": Program(lambda x: (x.flip(0) + x.roll(1, 1),), _rows, WIDE),
        "concatenated": Program(
            lambda x, y: (torch.cat([x, y.exp()], 1)[:, 2:] * 2, torch.stack([x, x])),
            several((-1, 5), (-1, 9)),
            WIDE,
        ),
        "strided": Program(
            lambda x: (x[::2, 1::3] * 2, x[:, 3] + x[:, -1]), one(8, 33), WIDE, varies=False
        ),
    },
    "reductions": {
        "sums": Program(
            lambda x: (
                x.sum(1),
                x.sum(0),
                x.sum(),
                x.mean(-1, True) if x.is_floating_point() else x,
            ),
            _rows,
            NUMBERS,
        ),
        "extremes": Program(
            lambda x: (x.amax(1), x.amin(0), x.argmax(1), x.argmin(0)), _rows, NUMBERS
        ),
        "products": Program(lambda x: ((x / 3).prod(1),), one(-1, 5), WIDE),
        "any and all": Program(lambda x: ((x > 1).any(1), (x > -3).all(0)), _rows, NUMBERS),
        "moments": Program(lambda x: (x.var(1), x.std(0), x.var(1, correction=0)), _rows, FLOATS),
        "not a number": Program(
            lambda x, y: (x.amax(0), x.amin(0), (x * y).sum()), _special, WIDE, varies=False
        ),
        "three dimensions": Program(lambda x: (x.sum((0, 2)), x.amax((1, 2))), one(3, -1, 5), WIDE),
        "of a result": Program(
            lambda x: (x - x.amax(1, True), (x - x.mean(0)).abs().sum(0)), _rows, WIDE
        ),
    },
    "rows": {
        "softmax": Program(lambda x: (x.softmax(-1), x.softmax(0)), _rows, FLOATS),
        "log softmax": Program(lambda x: (x.log_softmax(-1),), _rows, FLOATS),
        "masked softmax": Program(
            lambda x: (x.masked_fill(x > 0.5, -math.inf).softmax(-1),), _rows, WIDE
        ),
        "layer norm": Program(
            lambda x, w, b: (F.layer_norm(x + 1, (33,), w, b),),
            several((-1, 33), (33,), (33,)),
            FLOATS,
        ),
        "batch norm": Program(lambda x: (F.batch_norm(x, None, None, training=True),), _image),
        "long": Program(lambda x: (x.softmax(-1), x.sum(-1)), one(-1, 3000)),
    },
    "scans": {
        "cumulative sum": Program(
            lambda x: (x.cumsum(1), x.cumsum(0)), _rows, (*WIDE, torch.int64)
        ),
        "cumulative product": Program(lambda x: ((x / 2).cumprod(1),), one(-1, 9), WIDE),
        "cumulative maximum": Program(lambda x: tuple(x.cummax(1)), _rows, WIDE),
    },
    "gathers": {
        "indices": Program(
            lambda x, i: (x[i] + 1, x[:, i]), with_index(6, 6, below=6), NUMBERS, varies=False
        ),
        "gather": Program(
            lambda x, i: (x.gather(1, i.abs() % 6),), with_index(5, 6, below=6), WIDE, varies=False
        ),
        "embedding": Program(
            lambda x, i: (F.embedding(i.abs() % 5, x).relu(),), with_index(5, 33, below=5), WIDE
        ),
    },
    "errors": {
        "out of range": Program(
            lambda x, i: (x[i] + 1,), with_index(6, 6, below=9), raises=IndexError, varies=False
        )
    },
    "scatters": {
        "index_put": Program(
            lambda x, i: (x.index_put((i[:, 0],), x[:5] * 3 + 1),),
            with_index(99, 6, below=40),
            WIDE,
            varies=False,
        ),
        "accumulated": Program(
            lambda x, i: (x.index_put((i[:, 0] % 3,), x[:5], accumulate=True),),
            with_index(6, 6, below=6),
            WIDE,
            varies=False,
        ),
        "scatter_add": Program(
            lambda x, i: (x.scatter_add(0, i.abs() % 6, x[:5, :2] + 1),),
            with_index(6, 6, below=6),
            WIDE,
            varies=False,
        ),
        "slice": Program(
            lambda x: (x.slice_scatter(x[:2] * 0, 0, 1, 3), x.tril() + x.triu(1) * 2),
            one(6, 6),
            NUMBERS,
            varies=False,
        ),
    },
    "windows": {
        "maxima": Program(lambda x: (F.max_pool2d(x, 2), F.max_pool2d(x, 3, 1, 1)), _image, WIDE),
        "means": Program(lambda x: (F.avg_pool2d(x, 3, 1, 1),), _image, WIDE),
        "padded": Program(
            lambda x: (
                F.pad(x, (1, 2, 3, 0), value=7.0) * 2,
                F.pad(x, (1, 1, 1, 1), mode="reflect"),
            ),
            _image,
        ),
        "nearest": Program(
            lambda x: (F.interpolate(x, scale_factor=2.0),), one(2, 3, 5, 8), varies=False
        ),
        "bilinear": Program(
            lambda x: (F.interpolate(x, size=(7, 9), mode="bilinear"),),
            one(2, 3, 5, 8),
            varies=False,
        ),
    },
    "views": {
        "of an input": Program(lambda x: (x[1:], x.view(-1), x, x.t()), _rows, NUMBERS),
        "of a result": Program(
            lambda x: (lambda y: (y, y[1:], y.view(-1), y))(x + 1), _rows, NUMBERS
        ),
        "numbers beside": Program(lambda x: (x + 1, x.shape[0] * 2, None, 3.5), _rows),
    },
    "in place": {
        "pointwise": Program(
            lambda x, y: (x * 0.9 + y, y - 1), several((-1, 7), (-1, 7)), WIDE, writes=((0, 0),)
        ),
        "optimizer": Program(
            lambda p, m, g: (lambda n: (p - n * 0.1, n))(m * 0.9 + g),
            several((-1, 7), (-1, 7), (-1, 7)),
            WIDE,
            writes=((0, 0), (1, 1)),
        ),
    },
    "random": {"dropout": Program(_random, _with_seeds)},
    "regions": {
        "branch": Program(_branch, _rows, varies=False),
        "loop": Program(_twice_while_small, _rows, varies=False),
    },
    "extern": {
        "matmul": Program(lambda x, w: (F.relu(x @ w) + 1,), several((-1, 8), (8, 6)), WIDE),
        "batched matmul": Program(
            lambda x, y: ((x @ y).softmax(-1),), several((2, -1, 8), (2, 8, 6))
        ),
        "linear": Program(
            lambda x, w, b: (F.gelu(F.linear(x, w, b)),),
            several((-1, 8), (6, 8), (6,)),
            constants=(1, 2),
        ),
        "convolution": Program(
            lambda x, w: (F.relu(F.conv2d(x, w, padding=1)),), several((2, 3, -1, 8), (4, 3, 3, 3))
        ),
        "several results": Program(lambda x: tuple(r * 2 for r in x.sort(1)), _rows),
    },
    "sizes of data": {"nonzero": Program(_data_sized, one(6, 7), varies=False)},
    "constants": {
        "bound": Program(
            lambda x, w: (x * w + w.sum(), w * 2), several((-1, 7), (7,)), WIDE, constants=(1,)
        )
    },
    "several kernels": {
        "chain": Program(
            lambda x: (lambda y: (y.sum(1), (y / y.sum()).softmax(1)))(x.exp()), _rows, WIDE
        ),
        "apart": Program(
            lambda x, y: (x.exp().sum(), y.tanh(), (x.mean(0) + 1)), several((-1, 7), (5, -1)), WIDE
        ),
        "attention": Program(
            lambda q, k: ((q @ k.transpose(-1, -2) * 0.3).softmax(-1) @ k,),
            several((2, -1, 8), (2, -1, 8)),
        ),
    },
}

PROGRAMS = tuple(
    replace(program, kind=kind, name=name)
    for kind, programs in _TABLE.items()
    for name, program in programs.items()
)


def new_tensor(dtype: torch.dtype, seed: int, *shape: int) -> torch.Tensor:
    """A tensor that is the same for the same arguments; integers from -4 to 4 (0 to 8 without a sign)."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    first = 0 if dtype is torch.uint8 else -4
    return torch.randint(first, first + 9, shape, generator=generator).to(dtype)


def inputs_of(program: Program, dtype: torch.dtype, extent: int) -> tuple[torch.Tensor, ...]:
    """The program's inputs where the extent that varies is ``extent``."""
    seeds = iter(range(extent * 100, extent * 100 + 50))

    def new(*shape: int) -> torch.Tensor:
        return new_tensor(dtype, next(seeds), *shape)

    return tuple(program.make(functools.partial(new), extent))

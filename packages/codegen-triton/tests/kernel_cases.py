"""What is compiled in the tests with Triton's interpreter and in those on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, math.inf, -math.inf, math.nan, 1e-40, 70.0, -3.0]

UNARY_NAMES = (
    "abs neg reciprocal relu sigmoid sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos "
    "atan sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma floor ceil trunc round sign "
    "logical_not isnan isinf signbit"
).split()
BINARY_NAMES = (
    "add sub mul div floor_divide fmod remainder pow maximum minimum atan2 hypot copysign nextafter "
    "eq ne lt le gt ge logical_and logical_or logical_xor"
).split()
INTEGER_NAMES = (
    "add sub mul maximum minimum bitwise_and bitwise_or bitwise_xor eq ne lt le gt ge logical_and "
    "logical_or logical_xor"
).split()


def all_of(names: list[str]) -> Callable[..., tuple[torch.Tensor, ...]]:
    return lambda *x: tuple(getattr(torch, n)(*x) for n in names)


LAYOUTS: dict[str, Case] = {
    "no dimension": (lambda x: x * 2 + 1, (torch.tensor(3.0),)),
    "empty": (lambda x: x * 2 + 1, (torch.ones(3, 0, 4),)),
    "one element": (lambda x: x * 2 + 1, (torch.ones(1, 1),)),
    "not contiguous": (lambda x: x * 2 + 1, (torch.randn(9, 40)[::2, 1::3],)),
    "permuted": (lambda x: x.permute(2, 0, 1) + 1, (torch.randn(3, 4, 5),)),
    "expanded": (lambda x, y: x + y, (torch.randn(1, 5).expand(4, 5), torch.randn(4, 1))),
    "offset": (lambda x: x + 1, (torch.randn(50)[3:],)),
    "transposed": (lambda x, y: x.t() + y, (torch.randn(70, 40), torch.randn(40, 70))),
    "transposed batch": (
        lambda x: x.transpose(1, 2).contiguous() * 2,
        (torch.randn(3, 33, 65),),
    ),
    "channels last": (
        lambda x, y: x + y,
        (torch.randn(2, 20, 9, 9).to(memory_format=torch.channels_last), torch.randn(2, 20, 9, 9)),
    ),
    "reshaped": (lambda x: (x.transpose(0, 1).reshape(-1) + 1).view(3, -1), (torch.randn(6, 5),)),
    "flipped": (lambda x: x.flip(0, 1) + x, (torch.randn(5, 7),)),
    "several blocks": (lambda x: x.exp(), (torch.randn(3000),)),
    "joined from parts of what is stored, and turned": (
        lambda x, m: (
            values := (x.sigmoid() - m).half().clone(),
            (joined := torch.cat([values[:, :84] + 1, values[:, 84:]], 1)) * 2,
            (joined + 1).t().clone(memory_format=torch.contiguous_format),
        ),
        (torch.randn(1000, 95).half(), torch.randn(95)),
    ),
}


def statistics(dim: int) -> Callable[[torch.Tensor], tuple[torch.Tensor, ...]]:
    return lambda x: (
        x.sum(dim), x.prod(dim), x.amax(dim), x.amin(dim), x.argmax(dim), x.argmin(dim),
        x.mean(dim), x.var(dim, correction=0),
    )  # fmt: skip


ROWS: dict[str, Case] = {
    "softmax": (lambda x: x.softmax(-1), (torch.randn(5, 70),)),
    "softmax of columns": (lambda x: x.softmax(0), (torch.randn(40, 9),)),
    "masked softmax": (
        lambda x: x.masked_fill(x > 0.5, -math.inf).softmax(-1),
        (torch.randn(5, 70),),
    ),
    "log softmax": (lambda x: x.log_softmax(-1), (torch.randn(5, 70),)),
    "layer norm": (
        lambda x, w, b: F.layer_norm(x, (70,), w, b),
        (torch.randn(5, 70), torch.randn(70), torch.randn(70)),
    ),
    "layer norm of a sum": (
        lambda x, y: F.layer_norm(x + y, (70,)) * y,
        (torch.randn(5, 70), torch.randn(5, 70)),
    ),
    "root mean square": (
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
        (torch.randn(5, 70),),
    ),
    "group norm": (lambda x: F.group_norm(x, 2), (torch.randn(2, 6, 5, 5),)),
    "batch norm": (
        lambda x: F.batch_norm(x, None, None, training=True),
        (torch.randn(4, 6, 5, 5),),
    ),
    "a row's maximum used twice": (
        lambda x: (x - x.amax(1, keepdim=True)).abs().sum(1),
        (torch.randn(6, 70),),
    ),
}


INDEX = torch.tensor([[3, -1, 0], [2, 2, -4]])
MATRIX = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))

INDEXING: dict[str, Case] = {
    "index": (lambda x, i: x[i] + 1, (MATRIX, INDEX)),
    "index of a column": (lambda x, i: x[:, i] * 2, (MATRIX, INDEX)),
    "gather": (lambda x, i: x.gather(0, i), (MATRIX, INDEX.abs() % 4)),
    "embedding": (lambda x, i: F.embedding(i, x).relu(), (MATRIX, INDEX.abs() % 4)),
    "index select": (lambda x, i: x.index_select(1, i[0]), (MATRIX, INDEX.abs())),
    "pad": (lambda x: F.pad(x, (1, 2, 3, 0), value=7.0) * 2, (MATRIX,)),
    "concatenation": (lambda x: torch.cat([x, x.exp(), x[:, :1]], 1) + 1, (MATRIX,)),
    "stack": (lambda x: torch.stack([x, x + 1], 1), (MATRIX,)),
    "slices": (lambda x: x[1:, ::2] - x[:-1, 1::2], (MATRIX,)),
    "products of few columns": (lambda x: torch.relu(x[:, :4] @ x[:3, :4].t()), (MATRIX,)),
    "products of few terms": (lambda x: torch.relu(x[:, :2] @ x.reshape(2, 12)), (MATRIX,)),
    "max pool": (lambda x: F.max_pool2d(x[None, None], 2), (MATRIX,)),
    "patches, added up": (
        lambda x: F.fold(
            F.unfold(x[None, None], (3, 2), 1, 1, (2, 1)), x.shape, (3, 2), 1, 1, (2, 1)
        ),
        (MATRIX,),
    ),
    "average pool": (lambda x: F.avg_pool2d(x[None, None], 3, 1, 1), (MATRIX,)),
    "upsample": (lambda x: F.interpolate(x[None, None], scale_factor=2.0), (MATRIX,)),
    "triangle": (lambda x: x.tril() + x.triu(1) * 2, (MATRIX,)),
    "index put": (lambda x, i: x.index_put((i[0],), x[:3] * 0 + 5), (MATRIX, INDEX.abs() % 4)),
    "slice scatter": (lambda x: x.slice_scatter(x[:2] * 0, 0, 1, 3), (MATRIX,)),
    "one hot": (lambda i: F.one_hot(i.abs(), 5), (INDEX,)),
}

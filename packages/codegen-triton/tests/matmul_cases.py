"""Functions with products, compiled in the tests with Triton's interpreter and in those on a GPU.

Each with its inputs in float32, and the number of kernels that it is with every product in one of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

T = torch.Tensor
Case = tuple[Callable[..., Any], tuple[T, ...], int]


def randn(*size: int) -> T:
    return torch.randn(size) / 4


AFTER: dict[str, Case] = {
    "relu": (lambda x, w: (x @ w).relu(), (randn(64, 64), randn(64, 64)), 1),
    "odd sizes": (lambda x, w: (x @ w).relu(), (randn(67, 35), randn(35, 131)), 1),
    "a weight as it lies": (
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        (randn(3, 20, 48), randn(70, 48), randn(70)),
        1,
    ),
    "another row": (
        lambda x, w, b: x @ w.t() + b,
        (randn(33, 40), randn(50, 40), randn(50)),
        1,
    ),
    "a transposed left operand": (
        lambda x, w: (x.t() @ w) * 2,
        (randn(40, 33), randn(40, 50)),
        1,
    ),
    "a residual": (
        lambda x, w, r: torch.tanh(x @ w) + r,
        (randn(30, 40), randn(40, 50), randn(30, 50)),
        1,
    ),
    "a transposed residual": (
        lambda x, w, r: (x @ w) + r.t(),
        (randn(30, 40), randn(40, 50), randn(50, 30)),
        1,
    ),
    "heads": (
        lambda x, w: (x @ w.t()).view(2, 20, 4, 16).transpose(1, 2).contiguous() * 0.5,
        (randn(40, 32), randn(64, 32)),
        1,
    ),
    "a transposed result": (
        lambda x, w: (x @ w).t().contiguous() + 1,
        (randn(33, 40), randn(40, 50)),
        1,
    ),
    "rows apart": (lambda x, w: (x[:, :40] @ w[::2]).exp(), (randn(33, 50), randn(80, 50)), 1),
    "expanded": (lambda x, w: (x.expand(20, 40) @ w) + 1, (randn(1, 40), randn(40, 50)), 1),
    "two results": (
        lambda x, w: ((y := (x @ w).relu()) * 2, y + 1),
        (randn(20, 32), randn(32, 48)),
        1,
    ),
    "padded": (lambda x, w: F.pad((x @ w), (1, 2)) * 2, (randn(20, 32), randn(32, 48)), 2),
    "a cast": (lambda x, w: (x @ w).double(), (randn(20, 32), randn(32, 48)), 1),
    "NaN and infinity": (
        lambda x, w: (x @ w).relu(),
        (randn(20, 32).index_fill(0, torch.tensor([3]), torch.inf), randn(32, 48)),
        1,
    ),
}
"""Products with the loops that read them."""

ALONE: dict[str, Case] = {
    "a result of the graph": (
        lambda x, w: ((y := x @ w), y + 1),
        (randn(20, 32), randn(32, 48)),
        2,
    ),
    "a softmax": (lambda x, w: (x @ w).softmax(-1), (randn(20, 32), randn(32, 48)), 2),
    "a residual that is multiplied": (lambda x, w: x @ w + x, (randn(32, 32), randn(32, 32)), 2),
    "half of it is read": (
        lambda x, w: (x @ w)[:, :20].relu(),
        (randn(20, 32), randn(32, 48)),
        2,
    ),
    "few rows": (lambda x, w: x @ w, (randn(4, 32), randn(32, 48)), 1),
    "one row": (lambda x, w: F.linear(x, w), (randn(1, 40), randn(70, 40)), 1),
    "one row, expanded along what is added up": (
        lambda x, w: x @ w.expand(40, 50),
        (randn(1, 40), randn(1, 50)),
        1,
    ),
    "expanded along what is added up": (
        lambda x, w: x.expand(20, 40) @ w.expand(40, 50),
        (randn(20, 1), randn(1, 50)),
        1,
    ),
    "one row of many steps": (lambda x, w: x @ w, (randn(1, 700), randn(700, 40)), 1),
    "one column": (lambda x, w: x @ w, (randn(33, 40), randn(40, 1)), 1),
    "one element": (lambda x, w: x @ w, (randn(1, 40), randn(40, 1)), 1),
}
"""Products whose results are stored as they are."""

FORMS: dict[str, Case] = {
    "a matrix is added": (
        lambda c, x, w: torch.addmm(c, x, w).relu(),
        (randn(20, 48), randn(20, 32), randn(32, 48)),
        1,
    ),
    "scaled": (
        lambda c, x, w: torch.addmm(c, x, w, alpha=2, beta=0.5).relu(),
        (randn(48), randn(20, 32), randn(32, 48)),
        1,
    ),
    "beta is 0": (
        lambda c, x, w: torch.addmm(c, x, w, beta=0),
        (randn(48) * torch.nan, randn(20, 32), randn(32, 48)),
        1,
    ),
    "a column is added": (
        lambda c, x, w: torch.addmm(c, x, w),
        (randn(20, 1), randn(20, 32), randn(32, 48)),
        1,
    ),
    "matrix and vector": (
        lambda w, x: torch.mv(w, x).tanh(),
        (randn(70, 40), randn(40)),
        1,
    ),
    "matrix and vector, added": (
        lambda c, w, x: torch.addmv(c, w, x, beta=2),
        (randn(70), randn(70, 40), randn(40)),
        1,
    ),
    "batch": (lambda x, w: (x @ w).relu(), (randn(3, 33, 20), randn(3, 20, 40)), 1),
    "batch of transposed ones": (
        lambda x, w: x.transpose(1, 2) @ w.transpose(1, 2),
        (randn(3, 20, 33), randn(3, 40, 20)),
        1,
    ),
    "batch that is expanded": (
        lambda x, w: torch.bmm(x, w.expand(3, 20, 40)) + 1,
        (randn(3, 33, 20), randn(20, 40)),
        1,
    ),
    "batch with residual": (
        lambda x, w, r: torch.bmm(x, w) * 0.5 + r,
        (randn(3, 18, 20), randn(3, 20, 40), randn(18, 1)),
        1,
    ),
    "batch with few rows": (
        lambda x, w: torch.bmm(x, w).exp(),
        (randn(5, 1, 20), randn(5, 20, 40)),
        1,
    ),
    "batch with one column": (
        lambda c, x, w: torch.baddbmm(c, x, w, beta=2).exp(),
        (randn(5, 33, 1), randn(5, 33, 20), randn(5, 20, 1)),
        1,
    ),
    "added to a batch": (
        lambda c, x, w: torch.baddbmm(c, x, w, beta=2, alpha=0.5).relu(),
        (randn(3, 33, 40), randn(3, 33, 20), randn(3, 20, 40)),
        1,
    ),
    "a row added to a batch": (
        lambda c, x, w: torch.baddbmm(c, x, w),
        (randn(1, 40), randn(3, 33, 20), randn(3, 20, 40)),
        1,
    ),
    "a batch added up": (
        lambda c, x, w: torch.addbmm(c, x, w, beta=2).relu(),
        (randn(33, 40), randn(3, 33, 20), randn(3, 20, 40)),
        1,
    ),
    "heads back": (
        lambda x, w: torch.bmm(x, w).view(2, 3, 18, 16).transpose(1, 2).contiguous() + 1,
        (randn(6, 18, 20), randn(6, 20, 16)),
        1,
    ),
}
"""Other operators than mm, and addmm of a row."""

BEFORE: dict[str, Case] = {
    "a cast": (
        lambda x, w: x.double().mul(3).to(w.dtype) @ w,
        (randn(33, 40), randn(40, 50)),
        1,
    ),
    "an activation": (lambda x, w: (F.silu(x) @ w).relu(), (randn(3, 11, 40), randn(40, 50)), 1),
    "a product of two": (lambda x, y, w: (x * y) @ w, (randn(33, 40), randn(33, 40), randn(40, 50)), 1),
    "one row, NaN behind the last step": (
        lambda x, w: x.reciprocal() @ w.log(),
        (randn(1, 35).abs() + 0.1, randn(35, 40).abs() + 0.1),
        1,
    ),
    "both operands": (lambda x, w: x.relu() @ (w * 2), (randn(33, 40), randn(40, 50)), 1),
    "scales of rows": (
        lambda x, w, s: (x @ (w * s).t()).relu(),
        (randn(4, 40), randn(50, 40), randn(50, 1)),
        1,
    ),
    "a normalised row": (
        lambda x, m, s, g, w: ((x - m) * s * g) @ w,
        (randn(33, 40), randn(33, 1), randn(33, 1), randn(40), randn(40, 50)),
        1,
    ),
    "a broadcast batch": (
        lambda x, w: x @ w,
        (randn(2, 3, 17, 20), randn(2, 1, 20, 40)),
        1,
    ),
    "heads": (
        lambda q, k: q.transpose(1, 2) @ (k * 0.5).transpose(1, 2).transpose(2, 3),
        (randn(2, 18, 3, 20), randn(2, 17, 3, 20)),
        1,
    ),
    "NaN behind the last step": (
        lambda x, w: x.reciprocal() @ w.log(),
        (randn(33, 35).abs() + 0.1, randn(35, 40).abs() + 0.1),
        1,
    ),
}  # fmt: skip
"""Operands that are computed where they are loaded."""


def channels_last(*size: int) -> T:
    return randn(*size).contiguous(memory_format=torch.channels_last)


CONVOLUTIONS: dict[str, Case] = {
    "1 x 1": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b)),
        (channels_last(2, 20, 5, 7), randn(24, 20, 1, 1), randn(24)),
        1,
    ),
    "1 x 1 in steps": (
        lambda x, w: F.conv2d(x, w, stride=2) * 2,
        (channels_last(2, 20, 5, 7), randn(24, 20, 1, 1)),
        1,
    ),
    "3 x 3": (
        lambda x, w, r: F.silu(F.conv2d(x, w, padding=1)) + r,
        (channels_last(2, 17, 5, 7), channels_last(24, 17, 3, 3), channels_last(2, 24, 5, 7)),
        1,
    ),
    "3 x 3 in steps and gaps": (
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=2, dilation=2),
        (channels_last(1, 16, 9, 8), channels_last(40, 16, 3, 3), randn(40)),
        1,
    ),
    "several steps of channels": (
        lambda x, w: F.conv2d(x, w, padding=1).relu(),
        (channels_last(1, 140, 4, 4), channels_last(20, 140, 3, 3)),
        1,
    ),
    "5 x 1": (
        lambda x, w: F.conv2d(x, w, padding=(2, 0)),
        (channels_last(1, 16, 9, 5), channels_last(16, 16, 5, 1)),
        1,
    ),
    "channels first": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
        (randn(2, 16, 5, 7), randn(24, 16, 3, 3), randn(24)),
        1,
    ),
    "1 x 1 channels first": (
        lambda x, w: F.conv2d(x, w) + 1,
        (randn(2, 16, 5, 7), randn(24, 16, 1, 1)),
        1,
    ),
    "one dimension": (
        lambda x, w: F.conv1d(x, w, padding=2, stride=2).tanh(),
        (randn(2, 16, 11), randn(20, 16, 5)),
        1,
    ),
    "three dimensions": (
        lambda x, w: F.conv3d(x, w, padding=1),
        (randn(1, 16, 3, 4, 5), randn(16, 16, 3, 3, 3)),
        1,
    ),
    "each channel by itself": (
        lambda x, w, b: F.relu6(F.conv2d(x, w, b, padding=1, groups=20)),
        (channels_last(2, 20, 5, 7), randn(20, 1, 3, 3), randn(20)),
        1,
    ),
    "each channel by itself in steps": (
        lambda x, w: F.conv2d(x, w, padding=2, stride=2, groups=70) * 2,
        (channels_last(1, 70, 6, 7), randn(70, 1, 5, 5)),
        1,
    ),
    "each channel by itself, channels first": (
        lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=20).relu(),
        (randn(2, 20, 5, 7), randn(20, 1, 3, 3), randn(20)),
        1,
    ),
    "each channel of rows": (
        lambda x, w: F.conv1d(x, w, padding=2, groups=10) * 2,
        (randn(2, 10, 30), randn(10, 1, 4)),
        1,
    ),
    "NaN at the border": (
        lambda x, w: F.conv2d(x, w, padding=1),
        (channels_last(1, 16, 3, 3).index_fill(2, torch.tensor([0]), torch.nan), channels_last(16, 16, 3, 3)),
        1,
    ),
}  # fmt: skip
"""Convolutions whose results lie channels-last, and others."""

ALL = {**AFTER, **{f"alone, {n}": c for n, c in ALONE.items()}}
ALL.update({f"form, {n}": c for n, c in FORMS.items()})
ALL.update({f"before, {n}": c for n, c in BEFORE.items()})
ALL.update({f"convolution, {n}": c for n, c in CONVOLUTIONS.items()})

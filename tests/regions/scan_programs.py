"""Functions that combine rows, what they scan, and the programs that scan it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.associative_scan import associative_scan

T = torch.Tensor


def recurrence(left: tuple[T, T], right: tuple[T, T]) -> tuple[T, T]:
    return left[0] * right[0], left[1] * right[0] + right[1]


def rotation(left: list[T], right: list[T]) -> list[T]:
    (a, b), (c, d) = left, right
    return [a * c - b * d, a * d + b * c]


def segmented(left: dict[str, T], right: dict[str, T]) -> dict[str, T]:
    total = torch.where(right["starts"], right["sum"], left["sum"] + right["sum"])
    return {"sum": total, "starts": left["starts"] | right["starts"]}


def plain(size: tuple[int, ...], dtype: torch.dtype) -> T:
    return torch.randn(size).to(dtype)


def pair(size: tuple[int, ...], dtype: torch.dtype) -> tuple[T, T]:
    return torch.rand(size).to(dtype), torch.randn(size).to(dtype)


def segments(size: tuple[int, ...], dtype: torch.dtype) -> dict[str, T]:
    return {"sum": torch.randn(size).to(dtype), "starts": torch.rand(size) < 0.3}


COMBINATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (lambda left, right: left + right, plain),
    "product": (lambda left, right: left * right, plain),
    "maximum": (torch.maximum, plain),
    "logarithm of a sum": (torch.logaddexp, plain),
    "linear recurrence": (recurrence, pair),
    "rotation": (rotation, lambda *given: list(pair(*given))),
    "segmented sum": (segmented, segments),
    "last": (lambda left, right: right, plain),
    "sum and a number": (lambda left, right: left + right + 0.5, plain),
}


def program(combine: Callable[..., Any], dim: int, reverse: bool) -> Callable[[Any], Any]:
    def scanned(xs: Any) -> Any:
        return associative_scan(combine, xs, dim, reverse=reverse, combine_mode="generic")

    return scanned

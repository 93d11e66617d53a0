"""Calls that are given a tensor of one number where the operator takes a number.

Eager reads the number when it calls the operator.  A graph can't; here the same result is written as
arithmetic on the tensor, as optimizers need that keep their step count in one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

_LIST_PREFIX = "_foreach_"


def call_with_tensor_scalar(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the function or method ``name`` gives where its number is a tensor, else NotImplemented.

    ``torch._foreach`` functions may have one number for all, or a tensor or a list with one for each.
    """
    element = name.removeprefix(_LIST_PREFIX)
    form = _FORMS.get(element)
    if form is None:
        return NotImplemented
    keyword, tensor_count, rule = form
    tensors = args[:tensor_count]
    number: Any = kwargs.get(keyword)
    if number is None and len(args) == tensor_count + 1:
        number = args[tensor_count]
    if not _holds_tensor(number):
        return NotImplemented
    if element == name:
        return rule(*tensors, number)
    one_for_all = isinstance(number, torch.Tensor) and number.dim() == 0
    numbers = [number] * len(tensors[0]) if one_for_all else list(number)
    results = [rule(*items) for items in zip(*tensors, numbers, strict=True)]
    return None if name.endswith("_") else results


def _holds_tensor(number: Any) -> bool:
    if isinstance(number, (list, tuple)):
        return any(isinstance(item, torch.Tensor) for item in number)
    return isinstance(number, torch.Tensor)


# What is added to the first tensor, computed in the order of torch's kernels.
_TERMS: dict[str, tuple[str, int, Callable[..., torch.Tensor]]] = {
    "add": ("alpha", 2, lambda tensor, number: number * tensor),
    "sub": ("alpha", 2, lambda tensor, number: -number * tensor),
    "addcmul": ("value", 3, lambda left, right, number: number * left * right),
    "addcdiv": ("value", 3, lambda left, right, number: number * left / right),
}


def _sum(term: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def call(first: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        result = first + term(*rest)
        if result.dim() > 0:
            return result
        return result.to(
            functools.reduce(torch.promote_types, (t.dtype for t in (first, *rest[:-1])))
        )

    return call


def _sum_in_place(term: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda first, *rest: first.add_(term(*rest))


# By name: the number's keyword, how many tensors precede it, and the rule.
_FORMS: dict[str, tuple[str, int, Callable[..., torch.Tensor]]] = {
    **{name: (keyword, count, _sum(term)) for name, (keyword, count, term) in _TERMS.items()},
    **{
        f"{name}_": (keyword, count, _sum_in_place(term))
        for name, (keyword, count, term) in _TERMS.items()
    },
}

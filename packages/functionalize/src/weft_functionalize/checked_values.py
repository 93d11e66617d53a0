"""Calls of which eager checks the values, in a form that does so too; the one for fakes does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ._torch import assert_tensor_metadata, without_levels
from .refused_numbers import fits
from .unsupported import Unsupported

aten = torch.ops.aten


def call_with_checks(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a function, or the method of a name, gives where it checks its operands' values.

    NotImplemented where no rule says how.
    """
    rule = _RULES.get(target)
    return NotImplemented if rule is None else rule(*args, **kwargs)


def _one_hot(tensor: torch.Tensor, num_classes: Any = -1) -> Any:
    """A comparison with all classes, of what is read at the places of the classes themselves."""
    if tensor.dtype != torch.int64:
        raise Unsupported("operands that the operator refuses", f"one_hot of {tensor.dtype}")
    if isinstance(num_classes, torch.Tensor) or num_classes < 0:
        return NotImplemented
    if num_classes == 0:
        raise Unsupported("operands that the operator refuses", "one_hot of no classes")
    classes = torch.arange(num_classes, device=tensor.device)
    known = classes.gather(0, tensor.reshape(-1)).view(tensor.shape)
    return (known.unsqueeze(-1) == classes).to(torch.int64)


def _within_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of a tensor and one of numbers from 0 to 1, which the CPU checks."""

    def checked(tensor: torch.Tensor, q: Any, *rest: Any, **others: Any) -> Any:
        if isinstance(q, torch.Tensor) and q.device.type == "cpu" and q.is_floating_point():
            return function(tensor, _where(q, (q >= 0) & (q <= 1)), *rest, **others)
        return NotImplemented

    return checked


def _where(tensor: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
    """``tensor``, each element read at its place if the condition holds, and at none if it does not."""
    places = torch.arange(tensor.numel(), device=tensor.device)
    places = torch.where(condition.reshape(-1), places, -1)
    return tensor.reshape(-1).gather(0, places).view(tensor.shape)


def _within_dtype(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which fills a tensor, of a single value that the CPU converts to the tensor's dtype."""

    def checked(tensor: torch.Tensor, *rest: Any, **others: Any) -> Any:
        given = others.get("value", rest[-1] if rest else None)
        if not isinstance(given, torch.Tensor) or given.dim() or given.device.type != "cpu":
            return NotImplemented
        condition = fits(name, tensor, given)
        if condition is None:
            return NotImplemented
        value = _where(given, condition)
        if "value" in others:
            return function(tensor, *rest, **others | {"value": value})
        return function(tensor, *rest[:-1], value, **others)

    return checked


def _rules() -> Iterator[tuple[Any, Callable[..., Any]]]:
    for name, rule in (
        ("one_hot", _one_hot),
        ("quantile", _within_one(torch.quantile)),
        ("nanquantile", _within_one(torch.nanquantile)),
    ):
        packet = getattr(aten, name)
        yield from ((packet, rule), (packet.default, rule))
    yield torch.nn.functional.one_hot, _one_hot
    for function in (torch.quantile, torch.nanquantile):
        rule = _within_one(function)
        yield from ((function, rule), (function.__name__, rule))
    yield assert_tensor_metadata, _read
    for name, overload in (("masked_fill", "Tensor"), ("index_fill", "int_Tensor")):
        for written in (name, f"{name}_"):
            operator = getattr(getattr(aten, written), overload)
            method = getattr(torch.Tensor, written)
            rule = _within_dtype(f"aten::{name}", method)
            yield from ((operator, rule), (written, rule), (method, rule))
        yield getattr(torch, name), _within_dtype(f"aten::{name}", getattr(torch, name))


def _read(tensor: torch.Tensor, *expected: Any, **others: Any) -> Any:
    """A reader of a result, which keeps the operator that may refuse its operands; ``vmap`` drops readers."""
    assert_tensor_metadata(without_levels(tensor), *expected, **others)


_RULES: dict[Any, Callable[..., Any]] = dict(_rules())
"""By function, operator or the name of a method."""

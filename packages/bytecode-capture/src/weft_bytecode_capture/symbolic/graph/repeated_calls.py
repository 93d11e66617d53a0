"""Calls of torch's functions on fakes that look like those of calls before, where nothing is differentiated.

A model calls ``linear`` in each of its layers.  What it gives is new memory of a known layout, which is made
without the dispatcher: a call takes several operators, and each of them the way from C++ to Python.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..._torch import storage_identity
from ..._torch.fakes import FakeForm
from .fake_mode import RememberingFakeMode
from .storages import UNCOUNTED, leaves, storages, version_of

_NATIVE = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
"""Functions without Python of their own, which could do more than give a result."""

_Again = Callable[[Sequence[Any]], Any]
"""Gives what a call gives again, of its arguments."""

_AUTOCAST_DEVICES = ("cpu", "cuda")


class RepeatedCalls:
    """What the calls of one evaluation have given, and may give again."""

    def __init__(self, mode: RememberingFakeMode) -> None:
        self._mode = mode
        self._known: dict[tuple[Any, ...], _Again | None] = {}

    def result(
        self,
        kind: str,
        target: Any,
        fakes: Sequence[Any],
        keywords: Mapping[str, Any],
        evaluate: Callable[[], Any],
        warnings: Sequence[Any] = (),
    ) -> Any:
        """What a call gives, by ``evaluate`` if none like it was made before.

        One that adds to ``warnings`` is made each time.
        """
        key = self._key(kind, target, fakes, keywords)
        if key is None:
            return evaluate()
        if key in self._known:
            again = self._known[key]
            return evaluate() if again is None else again(fakes)
        operands = [*leaves((*fakes, *keywords.values()))]
        versions = _versions(operands)
        value = evaluate()
        is_all = versions == _versions(operands) and key == self._key(kind, target, fakes, keywords)
        is_all = is_all and not warnings
        self._known[key] = self._again(value, fakes, operands) if is_all else None
        return value

    def _key(
        self, kind: str, target: Any, fakes: Sequence[Any], keywords: Mapping[str, Any]
    ) -> tuple[Any, ...] | None:
        """By what such calls are found; None where more than how operands look is of influence.

        Other modes of torch than these do not change while a program is captured.
        """
        if torch.is_grad_enabled() or any(map(torch.is_autocast_enabled, _AUTOCAST_DEVICES)):
            return None
        if kind != "call_method" and not _only_computes(target):
            return None
        looks = self._mode.looks_of((*fakes, *keywords.values()))
        return None if looks is None else (kind, target, len(fakes), *keywords, *looks)

    def _again(
        self, value: Any, arguments: Sequence[Any], operands: Sequence[Any]
    ) -> _Again | None:
        """What makes ``value`` again; None for what is neither the first argument nor new memory."""
        layout = self._mode.layout_of(value)
        if layout is None or value.constant is not None:
            return None
        if arguments and value is arguments[0] and version_of(value) != UNCOUNTED:
            return lambda arguments: arguments[0]
        if value._is_view() or version_of(value) > 0:
            return None
        if storage_identity(value) in storages(operands):
            return None
        form = FakeForm(self._mode, layout)
        return lambda arguments: form.new_beside_modes()


def _only_computes(function: Any) -> bool:
    """Whether a call of it does no more than give a result and write to its operands."""
    is_of_torch = getattr(function, "__module__", None) == torch.nn.functional.__name__
    return is_of_torch or isinstance(function, _NATIVE)


def _versions(operands: Sequence[Any]) -> list[int]:
    return [version_of(value) for value in operands if isinstance(value, torch.Tensor)]

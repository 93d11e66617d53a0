"""Predicates on tensors' metadata and on the interpreter-wide state."""

from __future__ import annotations

from dataclasses import dataclass
from math import copysign
from typing import Any

import torch

from .. import _torch
from ..global_state import GlobalState
from ..native import NATIVE_TORCH
from ..operations import NativeStep, Operation, Registers
from ..sources import Scope, Source
from ..tensor_metadata import TensorMetadata
from .base import Predicate

_HINTS: dict[str, str] = {
    "number of dimensions": "give it the same number of dimensions in every call",
    "size": (
        "mark the dimension with weft.mark_dynamic(tensor, dim) before the first call; without a mark a size "
        "is taken as it comes from its first change on"
    ),
    "stride": "make it contiguous, or lay it out alike, before the call",
    "dtype": "convert it to one dtype before the call",
    "device": "keep it on one device, or compile a function for each",
    "requires_grad": "call with requires_grad set alike, or detach it before the call",
    "is_inference()": "make it always inside, or always outside, torch.inference_mode()",
}


@dataclass(frozen=True)
class ContentsAre(Predicate):
    """The value is a tensor of this shape with these numbers, in order; zeros have their signs."""

    shape: tuple[int, ...]
    numbers: tuple[int | bool | float, ...]

    advice = "keep it the same between calls: the program makes Python numbers of what is in it"

    @staticmethod
    def of(tensor: torch.Tensor) -> ContentsAre:
        return ContentsAre(tuple(tensor.shape), tuple(tensor.flatten().tolist()))

    def holds(self, value: Any, scope: Scope) -> bool:
        return (
            issubclass(type(value), torch.Tensor)
            and tuple(value.shape) == self.shape
            and self._are_same(value.detach().flatten().tolist())
        )

    def _are_same(self, numbers: list[int | bool | float]) -> bool:
        if tuple(numbers) != self.numbers:
            return False
        pairs = zip(numbers, self.numbers, strict=True)
        return all(copysign(1, one) == copysign(1, other) for one, other in pairs if not one)

    def expected_text(self) -> str:
        return f"a tensor of shape {self.shape} with {list(self.numbers)}"


@dataclass(frozen=True)
class TensorMatches(Predicate):
    """The value is a tensor with this metadata."""

    expected: TensorMetadata

    cost = 5

    def holds(self, value: Any, scope: Scope) -> bool:
        return next(self.expected.differences(value), None) is None

    def expected_text(self) -> str:
        return str(self.expected)

    def found_text(self, value: Any, scope: Scope) -> str:
        differences = self.expected.differences(value)
        return "; ".join(f"{what} {found} instead of {mine}" for what, mine, found in differences)

    def hint(self, source: Source, value: Any) -> str | None:
        if not issubclass(type(value), torch.Tensor):
            return f"always pass a tensor as {source.name()}"
        for what, _, _ in self.expected.differences(value):
            if what in _HINTS:
                return _HINTS[what]
        return None

    def native_step(self, registers: Registers) -> NativeStep | None:
        """For a plain strided tensor whose dtype and device have known numbers."""
        expected = self.expected
        tables = NATIVE_TORCH
        if (
            tables is None
            or expected.python_type not in (torch.Tensor, torch.nn.Parameter)
            or expected.layout not in tables.layouts
            or expected.dtype not in tables.dtypes
            or expected.device.type not in tables.device_types
        ):
            return None
        description = (
            expected.python_type,
            tables.dtypes[expected.dtype],
            tables.device_types[expected.device.type],
            _torch.device_index(expected.device),
            tables.layouts[expected.layout],
            _torch.KEY_MASK,
            _torch.plain_keys(expected.is_conjugate, expected.is_negative, expected.is_inference),
            expected.requires_grad,
            _extents(expected.size),
            None if expected.stride is None else _extents(expected.stride),
        )
        return Operation.CHECK_TENSOR, registers.own, 0, description

    def implies_type(self, kind: type) -> bool:
        return self.expected.python_type is kind


def _extents(extents: tuple[int | None, ...]) -> tuple[int, ...]:
    return tuple(-1 if extent is None else extent for extent in extents)


@dataclass(frozen=True)
class GlobalStateIs(Predicate):
    """The interpreter-wide state equals ``expected``; the guard's source is :class:`GlobalStateSource`."""

    expected: GlobalState

    cost = 8
    advice = "call with the same grad mode, autocast, default dtype and determinism"

    def holds(self, value: Any, scope: Scope) -> bool:
        return GlobalState.current() == self.expected

    def expected_text(self) -> str:
        differences = self.expected.differences(GlobalState.current())
        return ", ".join(f"{name} {mine}" for name, mine, _ in differences) or str(self.expected)

    def found_text(self, value: Any, scope: Scope) -> str:
        differences = self.expected.differences(GlobalState.current())
        return ", ".join(f"{name} {found}" for name, _, found in differences)

    def native_step(self, registers: Registers) -> NativeStep | None:
        numbers = None
        if NATIVE_TORCH is not None:
            numbers = _torch.global_state_numbers(self.expected, NATIVE_TORCH)
        return (
            None if numbers is None else (Operation.CHECK_GLOBAL_STATE, registers.own, 0, numbers)
        )

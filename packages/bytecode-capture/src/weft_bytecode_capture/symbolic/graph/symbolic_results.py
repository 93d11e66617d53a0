"""Tensors with symbolic sizes, made again for operands that look alike.

What was asked of the symbols when the first was made is in their environment's guards, and answered the same
from then on; so the mode that made it, with that environment, may make it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..._torch import DisableTorchDispatch, default_device, same_dispatch, storage_identity
from ..._torch.fake_mode_on_demand import FakeModeOnDemand
from ..._torch.fakes import FakeForm, FakeLayout, FakeTensor, FakeTensorMode, is_strided
from ..._torch.symbols import expression_of, has_symbolic_layout, has_unbacked_symbols
from .storages import storages

SymbolicResult = Callable[[Sequence[Any]], FakeTensor]
"""Gives what an operator gives again, of its arguments."""


def symbolic_key(
    mode: FakeTensorMode, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, ...] | None:
    """All that a result depends on; None where nothing is symbolic, or more matters than can be compared."""
    parts: list[Any] = [operator, *ambient()]
    count = len(parts)
    for value in (*args, *kwargs, *kwargs.values()):
        if not _add(mode, value, parts):
            return None
    is_symbolic = any(part is _SYMBOLIC for part in parts[count:])
    return tuple(parts) if is_symbolic else None


def symbolic_result(
    mode: FakeModeOnDemand, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> SymbolicResult | None:
    """What makes ``result`` again; None where it is neither new nor a view of the first operand."""
    if type(result) is not FakeTensor or not _is_plain(mode, result) or result.requires_grad:
        return None
    if not has_symbolic_layout(result) or any(result is value for value in args):
        return None
    shape, strides, offset = tuple(result.shape), result.stride(), result.storage_offset()
    if any(has_unbacked_symbols(n) for n in (*shape, *strides, offset)):
        return None
    place = storage_identity(result)
    if type(args[0]) is FakeTensor and place == storage_identity(args[0]):
        again = mode.view_of(args[0], shape, strides, offset)
        if again.dtype != result.dtype or not same_dispatch(again, result):
            return None
        return lambda args: mode.view_of(args[0], shape, strides, offset)
    operands = [*args, *kwargs.values()]
    operands += [item for o in operands if isinstance(o, (list, tuple)) for item in o]
    if type(offset) is not int or offset or place in storages(operands):
        return None
    span = result.untyped_storage().nbytes() // result.element_size()
    layout = FakeLayout(shape, strides, 0, result.dtype, result.fake_device)
    with DisableTorchDispatch():
        form = FakeForm(mode, layout, span)
        return (lambda args: form.new()) if same_dispatch(form.new(), result) else None


def _add(mode: FakeTensorMode, value: Any, parts: list[Any]) -> bool:
    """Add what of an operand results depend on; False where that is not known."""
    kind = type(value)
    if kind is FakeTensor:
        if not _is_plain(mode, value):
            return False
        parts += (value.dtype, value.fake_device, value.dim())
        numbers = (*value.shape, *value.stride(), value.storage_offset())
        return all(_add(mode, n, parts) for n in numbers)
    if kind is torch.SymInt:
        if has_unbacked_symbols(value):
            return False
        parts += (_SYMBOLIC, expression_of(value))
        return True
    if kind is list or kind is tuple:
        parts += (kind, len(value))
        return all(_add(mode, item, parts) for item in value)
    parts += (kind, value)  # 1, 1.0 and True are equal
    return kind in PLAIN


def ambient() -> list[Any]:
    """What of torch's settings results depend on."""
    return [torch.get_default_dtype(), default_device(), torch.is_inference_mode_enabled()]


def _is_plain(mode: FakeTensorMode, value: FakeTensor) -> bool:
    """Whether dtype, sizes, strides and device say all that matters to what is no view of it."""
    return value.constant is None and value.fake_mode is mode and is_strided(value)


_SYMBOLIC = object()
"""Stands before an expression in a key."""

PLAIN = frozenset((
    int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout,
    torch.memory_format,
))  # fmt: skip
"""Types of values that are compared by their value."""

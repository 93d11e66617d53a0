"""Errors that formulas of autograd raise: eager raises them in backward, and runs such graphs itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ._torch import DATA_DEPENDENT_ERRORS, OpOverload
from .unsupported import Unsupported

aten = torch.ops.aten

_RAISES = "derivative whose formula raises"
_SUBTRACTIONS = frozenset({aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Tensor, aten.rsub.Scalar})

_LACKS_DERIVATIVE = ("derivative for", "not implemented")
_ONLY_OF_REAL_RESULTS = "does not support automatic differentiation for outputs with complex dtype"


def lacks_derivative(error: RuntimeError) -> bool:
    """Whether this is autograd's error for an operator that it has no derivative of."""
    return all(part in str(error) for part in _LACKS_DERIVATIVE)


def _says_derivative_is_missing(error: RuntimeError) -> bool:
    return lacks_derivative(error) or _ONLY_OF_REAL_RESULTS in str(error)


def refuse_missing_derivative(error: RuntimeError) -> None:
    """Raise :class:`Unsupported` for such an error that has no place in a joint graph."""
    if _says_derivative_is_missing(error):
        raise Unsupported("operator without a derivative", str(error)) from error


@contextlib.contextmanager
def refused_formulas() -> Iterator[None]:
    """While formulas run: their errors are :class:`Unsupported`, but where there is no formula."""
    try:
        yield
    except DATA_DEPENDENT_ERRORS:
        raise
    except RuntimeError as error:
        if _says_derivative_is_missing(error):
            raise
        raise Unsupported(_RAISES, str(error)) from error
    except ZeroDivisionError as error:  # of torch's shape rules, for tensors without elements
        raise Unsupported("derivative over no elements", str(error)) from error


def refuse_subtraction(operator: OpOverload, arguments: tuple[Any, ...]) -> None:
    """Raise :class:`Unsupported` for a subtraction of bools, which shape rules let pass and kernels don't."""
    if operator in _SUBTRACTIONS:
        tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
        if any(tensor.dtype is torch.bool for tensor in tensors):
            raise Unsupported(_RAISES, f"{operator} of bools")

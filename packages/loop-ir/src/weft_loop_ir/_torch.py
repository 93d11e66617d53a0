"""Everything private of torch that this package reaches.  Checked on torch 2.13."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._sympy import functions


@functools.cache
def is_view_operator(operator: OpOverload) -> bool:
    """Whether a result of ``operator`` shares memory with an argument that it does not write."""
    return any(
        r.alias_info is not None and not r.alias_info.is_write for r in operator._schema.returns
    )


@functools.cache
def argument_names(operator: OpOverload) -> tuple[str, ...]:
    """The names of what ``operator`` takes, in the order in which it takes them."""
    return tuple(argument.name for argument in operator._schema.arguments)


def named_arguments(
    operator: OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> dict[str, Any]:
    """What a call of ``operator`` is given, by name."""
    return {**dict(zip(argument_names(operator), arguments, strict=False)), **keywords}


def writes_argument(operator: OpOverload) -> bool:
    """Whether ``operator`` mutates one of its arguments."""
    return bool(operator._schema.is_mutable)


@functools.cache
def must_keep(operator: OpOverload) -> bool:
    """Whether a call has an effect besides its results: random state, an assertion, communication."""
    tags = operator.tags
    return (
        torch.Tag.nondeterministic_seeded in tags
        or not operator._schema.returns
        or operator.namespace == _COLLECTIVES
    )


def changes_state(operator: OpOverload) -> bool:
    """Whether a second call differs from the first: random state, communication, a user's effect."""
    is_assertion = operator.namespace == "aten" and not operator._schema.returns
    return must_keep(operator) and not is_assertion


_COLLECTIVES = "_c10d_functional"


def starts_collective(operator: OpOverload) -> bool:
    """Whether a call gives tensors that hold nothing, and reads its own still, until they are waited for."""
    return operator.namespace == _COLLECTIVES and not waits(operator)


def waits(operator: OpOverload) -> bool:
    """Whether a call gives its argument once its collective has ended."""
    return operator.namespace == _COLLECTIVES and operator._schema.name.endswith("::wait_tensor")


CLAMP_PASSES_NAN_BOUND = not torch.ones(1).clamp(max=float("nan")).isnan().item()
"""Whether ``aten.clamp`` with one bound, a number that is NaN, gives its input: it does in torch 2.11."""


_ONEDNN_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def gelu_is_nan_at_infinity(fake: torch.Tensor) -> bool:
    """Whether eager's exact gelu of a tensor like ``fake`` gives NaN at infinity.

    Where ``use_mkldnn`` in ATen's ``Activation.cpp`` leaves a tensor to oneDNN, its kernel for this processor
    decides: the one for AVX-512 gives NaN, the one for AVX2 infinity.  It gets float16 where the processor
    computes with that.
    """
    if fake.device.type != "cpu" or fake.dtype not in _ONEDNN_FLOATS:
        return False
    if not torch._C._get_mkldnn_enabled() or not fake.is_contiguous():
        return False
    if isinstance(fake.numel(), int) and fake.numel() <= 1:  # a symbolic number is more than one
        return False
    return _onednn_gelu_is_nan_at_infinity(fake.dtype)


@functools.cache
def _onednn_gelu_is_nan_at_infinity(dtype: torch.dtype) -> bool:
    """Asked of the processor, as no list of oneDNN's kernels could be."""
    with unset_fake_temporarily():
        infinities = torch.full((64,), float("inf"), dtype=dtype, device="cpu")
        return bool(torch.nn.functional.gelu(infinities).isnan().any())


def hint_of(number: torch.SymInt) -> int | None:
    """The value of ``number`` in the call that is traced; None where it depends on data."""
    return int(number.node.hint) if number.node.has_hint() else None


def is_known_one(number: torch.SymInt) -> bool:
    """Whether the traced program relies on a computed size being 1: tracing broadcast or dropped it so.

    Its expression does not say that: ``(n + 7) // 8`` may be 1 for several ``n``.  Of numbers that the call
    does not know ahead, as the counter of a loop that runs once at most, the expression is kept.
    """
    if number.node.expr.is_Symbol or hint_of(number) != 1:
        return False
    return statically_known_true(number == 1)


def is_always_one(size: int | torch.SymInt) -> bool:
    """Whether a size is 1 in every call, as that of what data chooses of one element, one at least."""
    return bool(statically_known_true(size == 1))


def is_symbolic_number(value: Any) -> bool:
    """Whether ``value`` is a symbolic integer, float or bool."""
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


# torch's functions of integers, by the names of this package's.
_TORCH_FUNCTIONS = {"FloorDiv": functions.FloorDiv, "Mod": functions.PythonMod}


def is_negative(expression: sympy.Expr, fake: torch.Tensor) -> bool | None:
    """The sign of an integer as the ShapeEnv of a FakeTensor knows it; None where it may have either."""
    environment = getattr(getattr(fake, "fake_mode", None), "shape_env", None)
    if environment is None:
        return None
    expression = expression.replace(
        lambda part: type(part).__name__ in _TORCH_FUNCTIONS,
        lambda part: _TORCH_FUNCTIONS[type(part).__name__](*part.args),
    )
    bounds = environment.bound_sympy(expression)
    if bounds.upper < 0:
        return True
    if bounds.lower >= 0:
        return False
    # A counter's bound may be another symbol.
    known = statically_known_true(environment.create_symboolnode(expression >= 0))
    return False if known else None

"""The table of lowering rules, one entry for each ATen overload."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from weft_loop_ir._torch import OpOverload
from weft_loop_ir.ir import leaves_of
from weft_loop_ir.lowering.tensors import TensorValue
from weft_loop_ir.ops import FLOAT8

Rule = Callable[..., Any]
"""``rule(context, *args, **kwargs)``: the operator's arguments with tensors as ``TensorValue`` and symbolic
integers as SymPy expressions.  Returns a tensor, or a tuple of them for several results."""

RULES: dict[OpOverload, Rule] = {}


TAKES_FLOATS = frozenset(
    f"aten::{name}"
    for name in (
        "add sub rsub mul div true_divide pow lerp addcmul addcdiv eq ne lt le gt ge where masked_fill "
        "clamp clamp_min clamp_max full full_like new_full fill scalar_tensor"
    ).split()
)
"""Operators whose rules take a :class:`~weft_loop_ir.SizeFloat` as a number."""

KNOWN_NUMBERS = frozenset(
    f"aten::{name}"
    for name in "elu leaky_relu linalg_vector_norm softplus std std_mean var var_mean".split()
)
"""Operators whose rules have to know the numbers among their arguments."""
NEEDS_OWN_ELEMENTS = frozenset({"aten::median", "aten::nanmedian"})
"""Those whose kernels on the CPU, of torch 2.11 to 2.15, give other memory's numbers for expanded tensors.

In eager the tensor may have been written to, and not be expanded: `x[...] = 1; x.median(-1)`.
"""


class NoLowering(Exception):
    """Raised by a rule for arguments that it doesn't cover: the operator is called as an extern.

    A rule raises it before it creates any buffer.
    """


_NUMBERS = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64"
SUPPORTED_DTYPES = frozenset((*(getattr(torch, name) for name in _NUMBERS.split()), *FLOAT8))


def check_supported(dtype: torch.dtype) -> None:
    """Raise :class:`NoLowering` for a dtype that loop bodies don't hold."""
    if dtype not in SUPPORTED_DTYPES:
        raise NoLowering(f"dtype {dtype}")


def register_lowering(*overloads: OpOverload, any_dtype: bool = False) -> Callable[[Rule], Rule]:
    """Make the decorated function the rule of ``overloads``.

    It is asked only where loops hold the dtypes of all tensors that go in and come out, or of ``any_dtype``.
    """

    def register(rule: Rule) -> Rule:
        @functools.wraps(rule)
        def checked(context: Any, *arguments: Any, **keywords: Any) -> Any:
            for leaf in leaves_of([arguments, [*keywords.values()], context.meta]):
                if isinstance(leaf, TensorValue | torch.Tensor):
                    check_supported(leaf.dtype)
            return rule(context, *arguments, **keywords)

        for overload in overloads:
            if overload in RULES:
                raise ValueError(f"two lowering rules for {overload}")
            RULES[overload] = rule if any_dtype else checked
        return rule

    return register


def overload(name: str) -> OpOverload | None:
    """The ATen overload ``"packet.overload"``, or None where this torch doesn't have it."""
    packet_name, _, overload_name = name.partition(".")
    packet = getattr(torch.ops.aten, packet_name, None)
    if packet is None:
        return None
    return getattr(packet, overload_name or "default", None)

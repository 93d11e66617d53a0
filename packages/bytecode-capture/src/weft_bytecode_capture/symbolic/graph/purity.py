"""Which nodes of a graph may go when nobody uses what they give."""

from __future__ import annotations

import inspect
import re
import types
from typing import Any

import torch
import torch.fx

from ..._torch import NATIVE_FUNCTIONS, OpOverload, TensorBase

# Parts of the names of operators that draw random numbers, switch a mode, or write to an argument although
# their name does not say so (batch_norm its running statistics, embedding its renormalised rows).
_EFFECTS = re.compile(
    "attention|autocast|batch_norm|bernoulli|binomial|dropout|embedding|fractional|gru|gumbel|"
    "instance_norm|lstm|multinomial|normal$|poisson|rand|rnn|rrelu|seed|set_"
)
_IN_PLACE_OPERATORS = frozenset(
    "setitem delitem iadd iand iconcat ifloordiv ilshift imatmul imod imul ior ipow irshift isub "
    "itruediv ixor __setitem__".split()
)
_MODULES = ("torch", "torch.functional", "torch.nn.functional", "torch._C._nn", "torch._tensor")


def is_effectful(node: torch.fx.Node) -> bool:
    """Whether a node must stay in the graph without users; unknown targets must."""
    if node.op in ("placeholder", "output"):
        return True
    if node.op == "get_attr":
        return False
    if node.op == "call_method":
        return not _is_pure_name(str(node.target)) or not hasattr(torch.Tensor, str(node.target))
    target: Any = node.target
    if isinstance(target, OpOverload):
        return (
            target.namespace != "aten"
            or target._schema.is_mutable
            or torch.Tag.nondeterministic_seeded in target.tags
        )
    if not _is_known(target) or not _is_pure_name(target.__name__):
        return True
    return "out" in node.kwargs or _is_in_place(node)


def _is_pure_name(name: str) -> bool:
    if name.startswith("__") and name.endswith("__"):
        return not name.startswith("__i") and name != "__setitem__"
    return (
        not name.endswith("_") and name not in _IN_PLACE_OPERATORS and _EFFECTS.search(name) is None
    )


def _is_known(target: Any) -> bool:
    if target is getattr or getattr(target, "__module__", None) in ("_operator", "operator"):
        return True
    if isinstance(target, types.MethodDescriptorType):
        return target.__objclass__ in (torch.Tensor, TensorBase)
    name = getattr(target, "__name__", "")
    if isinstance(target, types.BuiltinFunctionType):
        return any(target is getattr(place, name, None) for place in (torch, *NATIVE_FUNCTIONS))
    return isinstance(target, types.FunctionType) and target.__module__ in _MODULES


def _is_in_place(node: torch.fx.Node) -> bool:
    """Whether ``inplace=True`` is among the arguments of a Python function of torch.nn.functional."""
    if not isinstance(node.target, types.FunctionType):
        return False
    parameters = inspect.signature(node.target).parameters
    if "inplace" not in parameters:
        return False
    position = list(parameters).index("inplace")
    given = node.args[position] if position < len(node.args) else node.kwargs.get("inplace", False)
    return given is not False

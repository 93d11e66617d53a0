"""Operators that torch computes as a whole, and what they are made of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

_WAIT_FOR_SEVERAL = "_c10d_functional::wait_tensors"  # since torch 2.15


def is_list_operator(operator: OpOverload) -> bool:
    """Whether ``operator`` does one thing to each tensor of a list, and torch can do it one by one."""
    name = operator._schema.name
    return name == _WAIT_FOR_SEVERAL or (
        name.startswith("aten::_foreach_")
        and operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeExplicitAutograd)
    )


def run_by_element(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a list operator by one for each tensor of the list, through torch's kernel that does so."""
    if operator._schema.name == _WAIT_FOR_SEVERAL:
        wait: Any = torch.ops._c10d_functional.wait_tensor.default
        return [wait(tensor) for tensor in args[0]]
    results = operator._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
    if operator._schema.is_mutable:
        # Nobody counts below autograd, which asks for the history of a view when its version has changed.
        torch.autograd.graph.increment_version(args[0])
    return results


@functools.cache
def composed_of_others(operator: OpOverload) -> Callable[..., Any] | None:
    """The formula of an operator that is made of others; the dispatcher calls it but in inference mode.

    A query of TorchScript's, as the sizes that ``combinations`` asks for, is unknown to the dispatcher.
    """
    name = operator.name()
    if not torch._C._dispatch_has_kernel(name) or not operator._can_decompose():
        return None
    # some give views that the dispatcher notes itself
    is_noted = torch._C._dispatch_has_kernel_for_dispatch_key(name, _VIEWS_NOTED.name)
    return operator.decompose if is_noted else _with_views(operator.decompose)


_VIEWS_NOTED = torch._C.DispatchKey.ADInplaceOrView


def _with_views(formula: Callable[..., Any]) -> Callable[..., Any]:
    """``formula`` with the views that the dispatcher notes of what is no inference tensor.

    A mode of the dispatcher is called behind that, with it excluded.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(_VIEWS_NOTED)
        torch._C._dispatch_tls_set_dispatch_key_excluded(_VIEWS_NOTED, False)
        try:
            return formula(*args, **kwargs)
        finally:
            torch._C._dispatch_tls_set_dispatch_key_excluded(_VIEWS_NOTED, excluded)

    return run

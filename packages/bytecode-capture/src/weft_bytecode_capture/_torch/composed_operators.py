"""Operators that are made of others, which only in inference mode come to a mode of the dispatcher."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

_VIEWS_NOTED = torch._C.DispatchKey.ADInplaceOrView


@functools.cache
def is_composed(operator: Any) -> bool:
    """Whether the dispatcher takes an operator apart, but in inference mode, and notes no view of it."""
    if not isinstance(operator, OpOverload):
        return False
    name = operator.name()
    is_known = torch._C._dispatch_has_kernel(name) and operator._can_decompose()
    return is_known and not torch._C._dispatch_has_kernel_for_dispatch_key(name, _VIEWS_NOTED.name)


def run_composed(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run what an operator is made of, with the views that the dispatcher notes of no inference tensors.

    A mode of the dispatcher is called behind that, with it excluded.
    """
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(_VIEWS_NOTED)
    torch._C._dispatch_tls_set_dispatch_key_excluded(_VIEWS_NOTED, False)
    try:
        return operator.decompose(*args, **kwargs)
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_VIEWS_NOTED, excluded)

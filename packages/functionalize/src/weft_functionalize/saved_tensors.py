"""What nodes of autograd's graph have saved."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

WRITTEN = (
    "one of the variables needed for gradient computation has been modified by an inplace operation"
)
"""What autograd says where backward needs a value that was written over."""

_FREED = "Trying to backward through the graph a second time"
"""What it says where a gradient that did not retain the graph has let go of the value."""


@dataclass(frozen=True)
class Saved:
    """A tensor that autograd saves, with its version, and how many writes there were by then."""

    tensor: torch.Tensor
    version: int
    writes: int


class Pack:
    """What autograd keeps in the place of a tensor that it saves: it dies with the node that needs it."""

    __slots__ = ("__weakref__", "saved")

    def __init__(self, saved: Saved) -> None:
        self.saved = saved


@functools.lru_cache(maxsize=1024)  # some types are made as the program runs
def _saved_names(kind: type) -> tuple[str, ...]:
    """The attributes by which nodes of autograd's of one type tell what they have saved."""
    return tuple(n for n in dir(kind) if n.startswith("_saved_") or n == "saved_tensors")


def saved_tensors(function: Any) -> tuple[list[torch.Tensor], str]:
    """What a node of autograd's has saved; what it raises for any that is gone since, else ""."""
    found: list[torch.Tensor] = []
    error = ""
    kind: Any = type(function)
    for name in (*_saved_names(kind), *getattr(function, "__dict__", ())):
        if not name.startswith("_saved_") and name != "saved_tensors":
            continue
        try:
            value = getattr(function, name)
        except RuntimeError as raised:
            if WRITTEN in str(raised) or _FREED in str(raised):
                error = str(raised)
            continue
        parts = value if isinstance(value, tuple) else (value,)
        found += [item for item in parts if isinstance(item, torch.Tensor)]
    return found, error

"""What a region makes of sizes that data decides in it: ``rows = x[mask]`` in an iteration or a branch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.fx
from weft_functionalize import symbols_of

from .sides import Sides


def made_inside(sides: Sides) -> frozenset[torch.fx.Node]:
    """The forward nodes of a region whose sizes, or numbers, are not known from what it is given."""
    given = {symbol for node in sides.inputs for symbol in _symbols(node.meta.get("val"))}
    return frozenset(
        node
        for node in sides.forward
        if any(symbol not in given for symbol in _symbols(node.meta.get("val")))
    )


def _symbols(value: Any) -> Iterator[Any]:
    for part in value if isinstance(value, (tuple, list)) else (value,):
        yield from symbols_of(part)

"""Carried tensors whose sizes differ by iteration, as capture has marked them.

The captured body has a symbol for such a size where the loop begins with another.  Here, too, it is one
symbol in the body, and another one after the loop; dims that have one symbol in the captured body share them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx

from ._torch import expression_of, new_integer
from .aten_recorder import AtenRecorder
from .unsupported import Unsupported


class VaryingSizes:
    """The dims that vary of the values that a captured ``while_loop`` carries."""

    def __init__(
        self, parent: AtenRecorder, body: torch.fx.GraphModule, carried: Sequence[Any]
    ) -> None:
        self._parent = parent
        self._dims = _varying_dims(parent.source_node, body, carried)
        self._inside = self._new_sizes()

    def _new_sizes(self) -> dict[Any, torch.SymInt]:
        """A new symbol for each that the captured body has."""
        symbols = dict.fromkeys(s for dims in self._dims.values() for s in dims.values())
        return {symbol: new_integer(self._parent.fake_mode, 0, None) for symbol in symbols}

    def varies(self, position: int) -> bool:
        """Whether a dim of the carried value at ``position`` does."""
        return position in self._dims

    def inside(self, position: int, tensor: torch.Tensor) -> torch.Tensor:
        """What stands for the tensor that the loop begins with in any iteration."""
        return self._resized(position, tensor, self._inside)

    def following(self, result: torch.Tensor) -> torch.Tensor:
        """In which layout the body gives ``result``, of the sizes that it has."""
        with self._parent.paused():
            return torch.empty(result.shape, dtype=result.dtype, device=result.device)

    def results(self, tensors: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """The loop's results like ``tensors``, by position, of those that vary."""
        sizes = self._new_sizes()
        return {k: self._resized(k, t, sizes) for k, t in tensors.items() if k in self._dims}

    def check(self, position: int, value: torch.Tensor, result: torch.Tensor) -> None:
        """
        :raises Unsupported: the tensor at ``position`` changes in more than the sizes that vary.
        """
        kept = [d for d in range(value.dim()) if d not in self._dims[position]]
        pairs = [
            (t.dim(), t.dtype, t.device, t.requires_grad, [t.shape[d] for d in kept])
            if t.dim() == value.dim()
            else None
            for t in (value, result)
        ]
        if pairs[0] != pairs[1] or value.requires_grad:
            raise Unsupported("carried tensor that changes", f"{pairs[0]} and {pairs[1]}")

    def _resized(
        self, position: int, tensor: torch.Tensor, sizes: Mapping[Any, torch.SymInt]
    ) -> torch.Tensor:
        if tensor.requires_grad:
            raise Unsupported("gradients of a carried tensor whose sizes vary", str(tensor))
        shape: list[int | torch.SymInt] = list(tensor.shape)
        for dim, symbol in self._dims[position].items():
            shape[dim] = sizes[symbol]
        with self._parent.paused():
            return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)


def _varying_dims(
    node: torch.fx.Node | None, body: torch.fx.GraphModule, carried: Sequence[Any]
) -> dict[int, dict[int, Any]]:
    """By position, the dims for which the captured body has a symbol of its own, with that."""
    found: dict[int, dict[int, Any]] = {}
    if node is None or len(node.args) < 3:
        return found
    starts: Any = node.args[2]
    parameters = body.graph.find_nodes(op="placeholder")
    for k, (start, parameter) in enumerate(zip(starts, parameters, strict=False)):
        if not isinstance(start, torch.fx.Node) or k >= len(carried):
            continue
        before, inside = (n.meta.get("example_value") for n in (start, parameter))
        if not (isinstance(before, torch.Tensor) and isinstance(inside, torch.Tensor)):
            continue
        if before.dim() == inside.dim():  # what each iteration makes anew may begin as anything
            dims = {d: _symbol(n, before.shape[d]) for d, n in enumerate(inside.shape)}
            found[k] = {d: symbol for d, symbol in dims.items() if symbol is not None}
    return {k: dims for k, dims in found.items() if dims}


def _symbol(inside: Any, before: Any) -> Any:
    """The symbol of a size in the body, where the loop begins with another; None where it does not."""
    if not isinstance(inside, torch.SymInt):
        return None
    expression = expression_of(inside)
    same = isinstance(before, torch.SymInt) and expression_of(before) == expression
    return expression if expression.is_Symbol and not same else None

"""State of loops whose sizes differ by iteration: memory is made anew, and symbols are set anew.

A call before the loop makes the tensor that it begins with, and one at the end of each iteration the next,
both in one buffer; they define its sizes.  After the loop a copy has symbols of its own for the last sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import sympy
import torch

from weft_loop_ir.expressions import contiguous_stride, to_expression
from weft_loop_ir.ir import BufferView, SymbolDefinition
from weft_loop_ir.lowering.context import LoweringContext
from weft_loop_ir.lowering.tensors import TensorValue, buffer_of

_CLONE = torch.ops.aten.clone.default
_DENSE = {"memory_format": torch.contiguous_format}
_REASON = "a size that differs by iteration"


def unknown_sizes(
    fake: torch.Tensor, value: TensorValue, known: Iterable[sympy.Symbol]
) -> dict[int, sympy.Symbol]:
    """The dims that vary, with their symbols: ``fake`` is any, ``value`` the first that a loop carries."""
    sizes = {d: to_expression(size) for d, size in enumerate(fake.shape)}
    outside = {*known, *(s for n in value.size for s in n.free_symbols)}
    return {d: size for d, size in sizes.items() if size.is_Symbol and size not in outside}


class VaryingState:
    """The carried tensors of one loop whose sizes vary: ``state``, by position, in buffers of their own."""

    def __init__(
        self,
        context: LoweringContext,
        state: Mapping[int, TensorValue],
        sizes: Mapping[int, Mapping[int, sympy.Symbol]],
    ) -> None:
        self._context = context
        self._state = dict(state)
        self._defines: dict[int, tuple[SymbolDefinition, ...]] = {}
        self.symbols: set[sympy.Symbol] = set()
        for position, dims in sizes.items():
            found = []
            for dim, symbol in dims.items():
                if symbol not in self.symbols:
                    self.symbols.add(symbol)
                    found.append(SymbolDefinition(symbol, 0, dim))
            self._defines[position] = tuple(found)

    def begin(self, carried: Sequence[Any]) -> None:
        """Append the calls that make what the loop begins with."""
        self._make(self._views(carried, frozenset()))
        self._context.data.begin_carried(self.symbols)

    def values_of(self, results: Sequence[Any], overwritten: Set[str]) -> dict[int, BufferView]:
        """What an iteration leaves, in memory other than the buffers ``overwritten`` before :meth:`leave`."""
        return self._views(results, overwritten)

    def leave(self, views: Mapping[int, BufferView]) -> None:
        """Append the calls that make what the next iteration begins with."""
        given: set[sympy.Symbol] = set()
        staged = dict(views)
        for position, view in views.items():
            numbers = (*view.size, *view.stride, view.offset)
            if any(not n.free_symbols.isdisjoint(given) for n in numbers):
                staged[position] = self._staged(view)  # its sizes are given anew before it is read
            given |= {definition.symbol for definition in self._defines[position]}
        self._make(staged)

    def _staged(self, view: BufferView) -> BufferView:
        """A copy with sizes of its own."""
        context = self._context
        size = tuple(context.new_size() for _ in view.size)
        stride = contiguous_stride(size)
        device = context.buffers[view.buffer].layout.device
        name = context.new_buffer(size, stride, view.dtype, device)
        defines = tuple(SymbolDefinition(symbol, 0, d) for d, symbol in enumerate(size))
        context.make_again(name, _CLONE, view, dict(_DENSE), _REASON, defines)
        return BufferView(name, size, stride, sympy.S.Zero, view.dtype)

    def after(self, position: int, fake: torch.Tensor) -> TensorValue:
        """The loop's result, which has the sizes of ``fake``."""
        context = self._context
        made = context.extern(_CLONE, [self._state[position]], dict(_DENSE), fake, _REASON)
        assert isinstance(made, TensorValue)
        return made

    def _views(self, values: Sequence[Any], overwritten: Set[str]) -> dict[int, BufferView]:
        """Views of the tensors at the positions; what lies where another is made is copied."""
        context = self._context
        own = {position: buffer_of(tensor) for position, tensor in self._state.items()}
        views = {}
        for position in self._state:
            value = values[position]
            view = context.as_buffer_view(value)
            others = {name for k, name in own.items() if k != position}
            if view.buffer in others | overwritten:
                view = context.as_buffer_view(context.realize(context.copy_of(value)))
            views[position] = view
        return views

    def _make(self, views: Mapping[int, BufferView]) -> None:
        for position, view in views.items():
            name = buffer_of(self._state[position])
            self._context.make_again(
                name, _CLONE, view, dict(_DENSE), _REASON, self._defines[position]
            )

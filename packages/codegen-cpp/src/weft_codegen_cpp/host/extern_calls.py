"""Extern calls: natively through torch's C interface where it has the operator, else by a Python callback."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from weft_loop_ir import Buffer, BufferView, ExternCall, SizeFloat, accepts, call_library, settle

from weft_codegen_cpp import _torch
from weft_codegen_cpp.host.data_symbols import with_own_sizes
from weft_codegen_cpp.host.linear import linear_arguments

aten = torch.ops.aten

ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"

OUT_FUNCTIONS: dict[object, str] = {
    aten.mm.default: "mm_out",
    aten.bmm.default: "bmm_out",
    aten.addmm.default: "addmm_out",
    aten.baddbmm.default: "baddbmm_out",
}
"""Operators whose ``out`` form takes tensors, then (for the ``add`` ones) ``beta`` and ``alpha``."""


def symbols_of(call: ExternCall, outputs: Sequence[Buffer | None]) -> tuple[sympy.Symbol, ...]:
    """The symbols of sizes and numbers that a callback needs, sorted by name; not those that it gives."""
    layouts = [buffer.layout for buffer in outputs if buffer is not None]
    extents = (extent for layout in layouts for extent in (*layout.size, *layout.stride))
    numbers = [leaf for leaf in call.leaves if isinstance(leaf, sympy.Expr | SizeFloat)]
    free = {symbol for number in (*numbers, *extents) for symbol in number.free_symbols}
    free -= {definition.symbol for definition in call.defines}
    return tuple(sorted(free, key=lambda s: str(s.name)))


def _substitute(argument: Any, tensors: Any, values: dict[sympy.Symbol, Any]) -> Any:
    if isinstance(argument, BufferView):
        return next(tensors)
    if isinstance(argument, sympy.Expr):
        return int(argument.xreplace(values))
    if isinstance(argument, SizeFloat):
        return argument.evaluate({s: int(v) if s.is_integer else v for s, v in values.items()})
    return argument


def _concrete(extents: Sequence[sympy.Expr], values: dict[sympy.Symbol, Any]) -> tuple[int, ...]:
    return tuple(int(values[e] if e.is_Symbol else e.xreplace(values)) for e in extents)


def _concrete_layout(
    buffer: Buffer | None, values: dict[sympy.Symbol, Any]
) -> tuple[Sequence[int], Sequence[int]] | None:
    """Size and stride of an output in a call."""
    if buffer is None:
        return None
    return _concrete(buffer.layout.size, values), _concrete(buffer.layout.stride, values)


@dataclass(frozen=True, eq=False)
class Callback:
    """A function of a call's tensors and size symbols that runs the operator.

    With ``into_memory`` the last tensor is the output's memory, and nothing is returned.  Otherwise it
    returns the tensors of ``outputs`` that are not None, with the layouts that the schedule gives them, and
    none of them shares memory with an argument.
    """

    extern: ExternCall
    outputs: tuple[Buffer | None, ...]
    into_memory: bool
    tensor_count: int
    symbols: tuple[sympy.Symbol, ...]

    def __call__(self, *inputs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._run(inputs)
        with torch.no_grad():
            return self._run(inputs)

    @functools.cached_property
    def _layouts(self) -> tuple[tuple[Sequence[int], Sequence[int]] | None, ...] | None:
        """Size and stride of each output, where they are the same in every call."""
        if self.symbols or self.extern.defines:
            return None
        return tuple(_concrete_layout(b, {}) for b in self.outputs)

    @functools.cached_property
    def _plain(self) -> ExternCall:
        """The call with its numbers as Python's own; tensors and symbols are left in."""
        return self.extern.mapped(lambda a: int(a) if isinstance(a, sympy.Integer) else a)

    def _run(self, inputs: Sequence[Any]) -> Any:
        call = self.extern
        tensors = inputs[: self.tensor_count]
        numbers = zip(self.symbols, inputs[self.tensor_count :], strict=True)
        values = {s: sympy.Integer(v) if s.is_integer else v for s, v in numbers}
        source = iter(tensors)
        arguments, keywords = self._plain.with_leaves(lambda a: _substitute(a, source, values))
        if self.into_memory:
            _run_into(tensors[-1], call, arguments, keywords)
            return ()
        first_only = not any(self.outputs[1:])
        results = call_library(call.operator, first_only, *arguments, **keywords)
        if not isinstance(results, list | tuple):
            results = (results,)
        layouts = self._layouts
        if layouts is None:
            values = with_own_sizes(call, results, values)
            layouts = tuple(_concrete_layout(b, values) for b in self.outputs)
        taken = [t.untyped_storage().data_ptr() for t in tensors]
        return tuple(
            _settle(result, buffer, layout, taken)
            for result, buffer, layout in zip(results, self.outputs, layouts, strict=True)
            if buffer is not None and layout is not None
        )


def make_callback(
    call: ExternCall, outputs: Sequence[Buffer | None], into_memory: bool
) -> Callback:
    """The callback of ``call``."""
    tensor_count = len(call.views) + into_memory
    return Callback(call, tuple(outputs), into_memory, tensor_count, symbols_of(call, outputs))


def _run_into(
    memory: torch.Tensor, call: ExternCall, arguments: Sequence[Any], keywords: dict[str, Any]
) -> None:
    """Run the operator so that its result is in ``memory``."""
    if call.out_variant is None:
        memory.copy_(call.operator(*arguments, **keywords))
        return
    call.out_variant(*arguments, **keywords, **{call.out_name: memory})


def _settle(
    result: torch.Tensor | None,
    buffer: Buffer,
    layout: tuple[Sequence[int], Sequence[int]],
    taken: Sequence[int],
) -> torch.Tensor:
    """``result`` with that size and stride, in memory that begins at none of the addresses ``taken``."""
    in_argument = result is not None and result.untyped_storage().data_ptr() in taken
    aliases = in_argument and result is not None and result.numel() > 0
    return settle(result, *layout, buffer.layout.dtype, buffer.layout.device, copy=aliases)


@dataclass(frozen=True)
class MatmulCall:
    """A ``function`` of the interface that writes into a tensor that it is given before all others."""

    function: str
    scalars: tuple[float, ...]
    tensors: tuple[BufferView, ...]


@dataclass(frozen=True)
class LinearCall:
    """A linear layer in oneDNN: ``x [m, k]``, ``weight [n, k]`` and ``bias [n]``."""

    x: BufferView
    weight: BufferView
    bias: BufferView | None


@dataclass(frozen=True)
class ConvolutionCall(LinearCall):
    """A convolution of ``x``; its numbers are those of ``aten.convolution``."""

    stride: Sequence[sympy.Integer]
    padding: Sequence[sympy.Integer]
    dilation: Sequence[sympy.Integer]
    transposed: bool
    output_padding: Sequence[sympy.Integer]
    groups: int


@dataclass(frozen=True)
class AttentionCall:
    """Attention in torch's kernel for the CPU, or in one of the runtime."""

    query: BufferView
    key: BufferView
    value: BufferView
    mask: BufferView | None
    dropout: float
    causal: bool
    scale: float | None


NativeCall = MatmulCall | LinearCall | AttentionCall
"""A call that the host program makes by itself."""


def native_call(call: ExternCall) -> NativeCall | None:
    """How the host program can run ``call`` without Python; None if it can't."""
    for leaf in call.leaves:
        if isinstance(leaf, SizeFloat) or (isinstance(leaf, sympy.Expr) and not leaf.is_Integer):
            return None
    operator = call.operator
    if any(view.dtype.is_complex for view in call.views):
        return None
    if call.out_variant is None:
        linear = linear_arguments(call)
        if linear is not None and _torch.has_linear():
            return LinearCall(*linear)
    if operator in OUT_FUNCTIONS and all(isinstance(a, BufferView) for a in call.arguments):
        scalars: tuple[Any, ...] = ()
        if set(call.keywords) - {"beta", "alpha"}:
            return None
        if operator in (aten.addmm.default, aten.baddbmm.default):
            scalars = tuple(call.keywords.get(k, 1) for k in ("beta", "alpha"))
            if not all(isinstance(s, int | float) for s in scalars):
                return None
        return MatmulCall(OUT_FUNCTIONS[operator], scalars, tuple(call.arguments))
    if operator is aten.convolution.default:
        image, *others = (call.named_arguments[a.name] for a in operator._schema.arguments)
        return ConvolutionCall(image, *others)
    if operator is aten._scaled_dot_product_flash_attention_for_cpu.default:
        return _attention(call)
    return None


def writes_into(call: ExternCall) -> bool:
    """Whether the call writes into memory that it is given."""
    if call.out_variant is not None and len(call.outputs) == 1 and call.outputs[0] is not None:
        return True
    return isinstance(native_call(call), MatmulCall)


def _attention(call: ExternCall) -> AttentionCall | None:
    """Natively where torch's kernel takes the operands in every call; a callback looks at them first."""
    named = call.named_arguments
    query, key, value = (named[name] for name in ("query", "key", "value"))
    mask = named.get("attn_mask")
    if not accepts(ATTENTION, query=query, key=key, value=value, attn_mask=mask):
        return None
    dropout, causal = float(named.get("dropout_p", 0.0)), bool(named.get("is_causal", False))
    return AttentionCall(query, key, value, mask, dropout, causal, named.get("scale"))

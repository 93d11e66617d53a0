"""Prints extern calls: through torch's C interface where it has the operator, else a Python callback."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from weft_loop_ir import BufferView, ExternCall

from weft_codegen_cpp import _torch
from weft_codegen_cpp.host.attention import has_kernel, print_attention
from weft_codegen_cpp.host.data_symbols import is_read
from weft_codegen_cpp.host.extern_calls import (
    AttentionCall,
    ConvolutionCall,
    LinearCall,
    MatmulCall,
    make_callback,
    native_call,
    symbols_of,
    writes_into,
)
from weft_codegen_cpp.host.linear import convolves_in_onednn
from weft_codegen_cpp.host.packing import packed_weight
from weft_codegen_cpp.host.parts import Slot
from weft_codegen_cpp.host.statements import Failure, joined
from weft_codegen_cpp.host.writer import MAX_DIMENSIONS, HostWriter
from weft_codegen_cpp.kernel.expressions import literal


def print_extern(writer: HostWriter, call: ExternCall) -> bool:
    """Append the statements that run ``call``; gives whether they need Python."""
    writer.comment(f"{call.name}: {call.operator} ({call.origin})")
    if is_read(call):  # its definition reads the number
        return False
    if _is_copy(writer, call):
        _copy(writer, call)
        return False
    match native_call(call):
        case None:
            _callback(writer, call)
            return True
        case MatmulCall() as native:
            _matmul(writer, call, native)
        case AttentionCall() as native if has_kernel(writer, native):
            print_attention(writer, call, native)
        case native:
            _native(writer, call, native)
    return False


def _fail_if(writer: HostWriter, condition: str, call: ExternCall) -> None:
    where = f'"{call.operator} ({call.origin})"'
    writer.fail_if(condition, Failure.OPERATOR, where)


# ---- through torch's C interface -------------------------------------------------------------------


def _matmul(writer: HostWriter, call: ExternCall, native: MatmulCall) -> None:
    """A function that writes its result into a tensor that it is given."""
    (name,) = call.outputs
    if name is None:
        return
    arguments = [writer.handle(view) for view in (writer.whole_view(name), *native.tensors)]
    arguments += [_double(s) for s in native.scalars]
    _fail_if(writer, f"api.{native.function}({', '.join(arguments)})", call)


def _native(writer: HostWriter, call: ExternCall, native: LinearCall | AttentionCall) -> None:
    """A function that makes its results; the last of its tensors may be missing."""
    packed = None
    if isinstance(native, AttentionCall):
        handles = [writer.handle(tensor) for tensor in (native.query, native.key, native.value)]
        last = native.mask
    else:
        packed = packed_weight(call, native, writer.schedule)
        weight = native.weight
        handles = [writer.handle(native.x)]
        handles += [writer.handle(weight) if packed is None else writer.object(packed).handle]
        last = native.bias
    mask = "nullptr" if last is None else writer.handle(last)
    slots = [writer.own(name or "unused") for name in call.outputs]
    writer.drop("owned", slots)
    with writer.collected() as statements:
        writer.emit(f"Handle optional = {mask};")
        pointer = "&optional" if last is not None else "nullptr"
        match native:
            case ConvolutionCall():
                in_onednn = packed is not None or _convolves_in_onednn(writer, native)
                function = "onednn_convolution" if in_onednn else "api.convolution"
                arguments = [pointer, *_convolution(writer, native, in_onednn)]
            case LinearCall():
                function, arguments = "linear", [pointer]
            case AttentionCall():
                function, arguments = "api.attention", _attention(writer, native, pointer)
        arguments = [*handles, *arguments, *(f"&c.owned[{Slot(slot)}]" for slot in slots)]
        _fail_if(writer, f"{function}({', '.join(arguments)})", call)
        for name in call.outputs:
            if name is not None:
                _settle(writer, call, name)
    writer.steps.append(joined("{", statements, "}"))


def _is_copy(writer: HostWriter, call: ExternCall) -> bool:
    """Whether the call only copies a tensor, which the host program does by itself.

    Not one that is given: it may be a lazy negative, whose memory holds other values.
    """
    if call.operator is not torch.ops.aten.clone.default or call.outputs[0] is None:
        return False
    (view,) = call.views
    if view.dtype.is_complex or len(view.size) > MAX_DIMENSIONS:
        return False
    return not writer.schedule.buffers[view.buffer].kind.is_given


def _copy(writer: HostWriter, call: ExternCall) -> None:
    """Make the result as a copy, before what its slot holds is freed: the copy may be of that.

    Sizes that the call defines are still those of the tensor before it, so they are read off the argument.
    """
    (view,) = call.views
    (name,) = call.outputs
    assert name is not None
    layout = writer.schedule.buffers[name].layout
    given = {d.symbol: view.size[d.dimension] for d in call.defines if d.dimension is not None}
    size, stride = (
        [n.xreplace(given) for n in numbers] for numbers in (layout.size, layout.stride)
    )
    slot = writer.own(name)
    number = writer.views
    writer.views += 1
    with writer.collected() as statements:
        for own, expected in zip(view.size, size, strict=True):
            if own != expected:
                _fail_if(writer, f"{writer.index(own)} != {writer.index(expected)}", call)
        writer.emit("Handle fresh = nullptr;")
        extents = ", ".join(writer.array(numbers) for numbers in (view.size, view.stride, stride))
        copied = (
            f"copied(fresh, c.frame->views[{Slot(number)}], {writer.address(view)}, "
            f"{len(view.size)}, {extents}, {_torch.dtype_code(view.dtype)}, {view.dtype.itemsize})"
        )
        _fail_if(writer, f"!{copied}", call)
        writer.drop("owned", [slot])
        writer.emit(f"{writer.sources[name]} = fresh;")
        writer.point(name, writer.sources[name].handle)
    writer.steps.append(joined("{", statements, "}"))


def _double(number: float) -> str:
    return literal(float(number), torch.float64)


def _convolves_in_onednn(writer: HostWriter, native: ConvolutionCall) -> bool:
    tensors = native.x, native.weight, native.bias
    return not native.transposed and convolves_in_onednn(*tensors, writer.options)


def _convolution(writer: HostWriter, native: ConvolutionCall, in_onednn: bool) -> list[str]:
    """The numbers of a convolution in the order of its function."""
    rank, groups = len(native.stride), str(int(native.groups))
    lists = [writer.array(v) for v in (native.stride, native.padding, native.dilation)]
    if in_onednn:
        return [f"{lists[0]}, {rank}", *lists[1:], groups]
    lists = [f"{numbers}, {rank}" for numbers in (*lists, writer.array(native.output_padding))]
    return [*lists[:3], str(int(native.transposed)), lists[3], groups]


def _attention(writer: HostWriter, native: AttentionCall, mask: str) -> list[str]:
    """Dropout, causality, mask and scale of an attention."""
    pointer = "nullptr"
    if native.scale is not None:
        pointer = "&scale"
        writer.emit(f"f64 scale = {_double(native.scale)};")
    return [_double(native.dropout), str(int(native.causal)), mask, pointer]


def _settle(writer: HostWriter, call: ExternCall, name: str) -> None:
    """Give the tensor ``name`` the strides that the schedule says, if it has others."""
    layout = writer.schedule.buffers[name].layout
    settled = (
        f"settle_layout({writer.sources[name]}, {len(layout.size)}, {writer.array(layout.size)}, "
        f"{writer.array(layout.stride)}, {_torch.dtype_code(layout.dtype)})"
    )
    _fail_if(writer, f"!{settled}", call)
    writer.point(name, writer.sources[name].handle)


# ---- through Python ----------------------------------------------------------------------------------


def _callback(writer: HostWriter, call: ExternCall) -> None:
    """Call a Python function with fresh tensors on the arguments' memory."""
    buffers = [None if n is None else writer.schedule.buffers[n] for n in call.outputs]
    into_memory = writes_into(call)
    views = call.views
    if into_memory and call.outputs[0] is not None:
        views = [*views, writer.whole_view(call.outputs[0])]
    symbols = symbols_of(call, buffers)
    function = writer.object(make_callback(call, buffers, into_memory))
    with writer.collected() as statements:
        _pass_arguments(writer, views, symbols)
        writer.emit(f"Reference result(api.PyObject_CallObject({function}, passed));")
        writer.fail_if("!result.object", Failure.PYTHON)
        names = [] if into_memory else [name for name in call.outputs if name is not None]
        for position, name in enumerate(names):
            made = f"api.PyTuple_GetItem(result, {position})"
            if name in writer.made_again:
                _own_again(writer, call, name, made)
            else:
                slot = writer.own_object(name)
                writer.drop("made", [slot])
                writer.emit(f"{writer.sources[name]} = same({made});")
            writer.point(name, writer.sources[name].handle)
    writer.steps.append(joined("{", statements, "}"))


def _own_again(writer: HostWriter, call: ExternCall, name: str, made: str) -> None:
    """Keep what Python ``made`` as other calls that make this buffer do: what reads it knows one place."""
    slot = writer.own(name)
    rank = len(writer.schedule.buffers[name].layout.size)
    writer.emit("Handle fresh = nullptr;")
    _fail_if(writer, f"!owned_from(fresh, {made}, {rank})", call)
    writer.drop("owned", [slot])
    writer.emit(f"{writer.sources[name]} = fresh;")


def _pass_arguments(
    writer: HostWriter, views: Sequence[BufferView], symbols: Sequence[sympy.Symbol]
) -> None:
    """Make the tuple ``passed``: tensors on the views, then the symbols' values.

    The very tensor that an operator gave is passed on where the view is all of it: waits know it.
    """
    writer.emit(f"Reference passed(api.PyTuple_New({len(views) + len(symbols)}));")
    writer.fail_if("!passed.object", Failure.PYTHON)
    for position, view in enumerate(views):
        made = writer.object_of(view.buffer) if writer.is_whole(view) else None
        if made is not None:
            _put(writer, position, f"same({made})")
            continue
        writer.emit(f"View view{position} = {{}};")
        writer.set_view(f"view{position}", view)
        _put(writer, position, f"object_from(view{position}.handle)")
    for position, symbol in enumerate(symbols, len(views)):
        make = "PyLong_FromLongLong" if symbol.is_integer else "PyFloat_FromDouble"
        _put(writer, position, f"api.{make}(c.{symbol.name})")


def _put(writer: HostWriter, position: int, item: str) -> None:
    writer.fail_if(f"!put(passed, {position}, {item})", Failure.PYTHON)

"""Writes to buffers that exist: a loop's state at the end of an iteration, and parts of it during one.

The graph is functional: each write gives a new version.  Where nothing needs the old version any more, the
new one takes its memory, and only the elements that differ are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sympy
import torch

from weft_loop_ir._torch import OpOverload
from weft_loop_ir.ir import ExternCall
from weft_loop_ir.loop_graph import LoopNode
from weft_loop_ir.lowering.context import LoweringContext, storage_stride
from weft_loop_ir.lowering.contractions import OUT_VARIANTS, WIDE_OUT_VARIANTS
from weft_loop_ir.lowering.registry import NoLowering, check_supported
from weft_loop_ir.lowering.tensors import TensorValue, buffer_of
from weft_loop_ir.lowering.views import selected, sliced
from weft_loop_ir.schedule.iterations import reads_only_at_store, reads_what_it_keeps

if TYPE_CHECKING:
    from weft_loop_ir.lowering.lower import Driver

aten = torch.ops.aten


def assign(context: LoweringContext, targets: Sequence[Any], values: Sequence[Any]) -> None:
    """Append what stores each tensor of ``values`` in the buffer of its target, all at once in effect."""
    pairs = [
        (target, value)
        for target, value in zip(targets, values, strict=True)
        if isinstance(target, TensorValue) and not _is_same(target, value)
    ]
    written = {buffer_of(target) for target, _ in pairs}
    ready = []
    for target, value in pairs:
        others = written - {buffer_of(target)}
        if value.cost.reads & others or value.storage.buffer in written:
            value = context.realize(context.copy_of(value))
        ready.append((target, value))
    for target, value in ready:
        _store(context, target, value, target.stride, target.offset)


def _is_same(target: TensorValue, value: Any) -> bool:
    """Whether ``value`` is in the target's buffer already, element for element."""
    return (
        isinstance(value, TensorValue)
        and value.storage.buffer == target.storage.buffer
        and value.size == target.size
        and value.stride == target.stride
        and value.offset == target.offset
    )


def _store(
    context: LoweringContext,
    target: TensorValue,
    value: TensorValue,
    stride: tuple[sympy.Expr, ...] | None,
    offset: sympy.Expr,
) -> None:
    """Append the node that writes ``value`` to a window of the target's buffer."""
    assert stride is not None
    name = buffer_of(target)
    origins = context.origin() | value.storage.origins
    context.write_node(name, value.size, stride, value.load, origins, offset)
    node = context.nodes[-1]
    assert isinstance(node, LoopNode)
    if not (reads_only_at_store(node, name) or reads_what_it_keeps(node, name)):
        context.nodes.pop()
        value = context.realize(context.copy_of(value))
        context.write_node(name, value.size, stride, value.load, origins, offset)


def overwrite_in_place(
    driver: Driver, node: torch.fx.Node, arguments: Sequence[Any]
) -> TensorValue | None:
    """Lower a write to a part of a tensor (Assign) as that write alone; None where it can't be.

    The part is written to a loop's state, or to a copy of the base: then the copy is made at the first write
    of several, and the others find it.
    """
    window = _WINDOWS.get(node.target)
    if window is None:
        return None
    base, source = arguments[0], arguments[1]
    if not isinstance(base, TensorValue) or base.stride is None or base.dtype != source.dtype:
        return None
    try:
        check_supported(base.dtype)
        place = window(driver.context, base, *arguments[2:])
    except NoLowering:
        return None
    overwritten = driver.carried | driver.versions
    if base.storage.buffer in overwritten:
        if not _is_whole(base) or not _release_old_version(driver, node, base):
            return None
    elif _is_written_again(node):
        base = _own_version(driver, node, base)
    else:
        return None
    part = place.view(base, source)
    part, source = _part_of_part(driver, node, part, source)
    _store(driver.context, base, source, part.stride, part.offset)
    return driver.context.buffer_tensor(buffer_of(base))


def add_in_place(
    driver: Driver, node: torch.fx.Node, arguments: Sequence[Any], keywords: dict[str, Any]
) -> TensorValue | None:
    """Lower the addition of a matmul to what matmuls have summed up so far as an update of that sum.

    None where it isn't one.  A gradient of a weight that many matmuls add up is written once for each then,
    in one memory, which a copy of the sum would be too.
    """
    operator = node.target
    out_variant = _ADDING.get(operator)
    if out_variant is None or not isinstance(arguments[0], TensorValue):
        return None
    assert isinstance(operator, OpOverload)
    total, *others = arguments
    factors = [factor for factor in others if isinstance(factor, TensorValue)]
    name = total.storage.buffer
    layout = node.meta["val"]
    if name is None or name not in driver.sums or not _is_whole(total):
        return None
    same = total.stride == storage_stride(layout) and total.dtype == layout.dtype
    same = same and len(total.size) == layout.dim()
    is_read = any(name == f.storage.buffer or name in f.cost.reads for f in factors)
    if not same or is_read or not _release_old_version(driver, node, total):
        return None
    context = driver.context
    result: TensorValue = context.extern(
        operator, arguments, keywords, layout, "library", out_variant, into=name
    )
    return result


def note_sum(driver: Driver, node: torch.fx.Node, result: Any) -> None:
    """Note the memory that a call of a library for a matmul makes: a later one may add to it."""
    makers = (*OUT_VARIANTS, *WIDE_OUT_VARIANTS)
    if node.target not in makers or not isinstance(result, TensorValue):
        return
    name, last = result.storage.buffer, driver.context.nodes[-1:]
    if name is not None and any(isinstance(n, ExternCall) and n.outputs == (name,) for n in last):
        driver.sums.add(name)


def _is_whole(tensor: TensorValue) -> bool:
    """Whether it is its buffer, element for element, and no view of it: not even a transposed one."""
    storage = tensor.storage
    return tensor.size == storage.size and tensor.stride == storage.stride and tensor.offset == 0


def _part_of_part(
    driver: Driver, node: torch.fx.Node, part: TensorValue, source: TensorValue
) -> tuple[TensorValue, TensorValue]:
    """What is left to write where ``source`` is the old part but for a part of it: ``x[i, j] = y``."""
    while True:
        inner = node.args[1]
        if not isinstance(inner, torch.fx.Node) or len(inner.users) > 1:
            return part, source
        window = _WINDOWS.get(inner.target)
        if window is None or inner.kwargs:
            return part, source
        old = inner.args[0]
        if not isinstance(old, torch.fx.Node):
            return part, source
        read, defaults = _READS[node.target]
        if old.target is not read or old.kwargs or node.kwargs or old.args[0] is not node.args[0]:
            return part, source
        places = (old.args[1:], node.args[2:])
        if len({(*place, *defaults[len(place) :]) for place in places}) > 1:
            return part, source
        _, value, *place = torch.fx.map_arg(inner.args, driver.values.__getitem__)
        if not isinstance(value, TensorValue) or value.dtype != part.dtype:
            return part, source
        try:
            part = window(driver.context, part, *place).view(part, value)
        except NoLowering:
            return part, source
        node, source = inner, value


def take_over(
    driver: Driver, node: torch.fx.Node, value: TensorValue, operands: Sequence[Any]
) -> TensorValue | None:
    """The buffer of ``value``, an operand of the loop ``node``, for the state that begins with it.

    None where the loop must not write there: it isn't state of an enclosing loop, not all of it is meant, or
    something else needs what it holds.
    """
    name = value.storage.buffer
    if name is None or name not in driver.carried | driver.versions or not _is_whole(value):
        return None
    tensors = [o for o in operands if isinstance(o, TensorValue)]
    if sum(name == o.storage.buffer or name in o.cost.reads for o in tensors) > 1:
        return None
    if not _release_old_version(driver, node, value):
        return None
    return driver.context.buffer_tensor(name)


def update_in_place(
    driver: Driver,
    node: torch.fx.Node,
    modules: Sequence[torch.fx.GraphModule],
    operands: Sequence[Any],
) -> dict[int, TensorValue]:
    """The results of the branch ``node`` that may lie where an operand does, by their position.

    One side at least returns that operand as it is, or with parts of it overwritten: it has little or nothing
    to do then.
    """
    found: dict[int, TensorValue] = {}
    taken: set[str] = set()
    for position, fake in enumerate(node.meta["val"]):
        for origin in filter(None, (_operand_of(module, position) for module in modules)):
            value = operands[origin - 1]
            if not isinstance(value, TensorValue) or value.storage.buffer in taken:
                continue
            same_layout = value.stride == storage_stride(fake) and value.dtype == fake.dtype
            known = take_over(driver, node, value, operands) if same_layout else None
            if known is not None:
                found[position] = known
                taken.add(buffer_of(known))
                break
    return found


def _operand_of(module: torch.fx.GraphModule, position: int) -> int | None:
    """The number (from 1) of the operand of which a result of ``module`` is a version."""
    results = module.graph.output_node().args[0]
    value: Any = results[position] if isinstance(results, tuple | list) else results
    while isinstance(value, torch.fx.Node) and value.target in (*_WINDOWS, aten.clone.default):
        value = value.args[0]
    placeholders = module.graph.find_nodes(op="placeholder")
    return placeholders.index(value) + 1 if value in placeholders else None


def _is_written_again(node: torch.fx.Node) -> bool:
    """Whether the new version is itself the base of a write to a part, or the first of an empty tensor.

    Or whether it is a result, and the base is given: where that is its new value, nothing is copied.
    """
    base = node.args[0]
    is_result = any(user.op == "output" for user in node.users)
    if isinstance(base, torch.fx.Node) and base.op == "placeholder" and is_result:
        return True
    empty = isinstance(base, torch.fx.Node) and base.target in _EMPTY
    return empty or any(u.target in _WINDOWS and u.args[0] is node for u in node.users)


def _own_version(driver: Driver, node: torch.fx.Node, base: TensorValue) -> TensorValue:
    """A buffer with the elements of ``base`` that writes may change; nothing is copied from an empty one."""
    context = driver.context
    fake = node.meta["val"]
    size, stride = base.size, storage_stride(fake)
    name = context.new_buffer(size, stride, base.dtype, base.device)
    driver.versions.add(name)
    first = node.args[0]
    if not (isinstance(first, torch.fx.Node) and first.target in _EMPTY):
        context.write_node(name, size, stride, base.load, context.origin() | base.storage.origins)
    return context.buffer_tensor(name)


def _release_old_version(driver: Driver, node: torch.fx.Node, base: TensorValue) -> bool:
    """Whether nothing reads the old version after ``node``; lazy values that would are made first."""
    name = buffer_of(base)
    order = {n: k for k, n in enumerate(node.graph.nodes)}
    waiting = []
    for earlier, value in driver.values.items():
        used = any(order[user] > order[node] for user in earlier.users)
        for tensor in value if isinstance(value, tuple | list) else (value,):
            if not used or not isinstance(tensor, TensorValue):
                continue
            if tensor.storage.buffer == name:
                return False
            if name in tensor.cost.reads:
                waiting.append(tensor)
    for tensor in waiting:
        driver.context.realize(tensor)
    return True


# By operator: what writes its sum into given memory.
_ADDING: dict[Any, Any] = {
    aten.addmm.default: aten.addmm.out,
    aten.addmm.dtype: aten.addmm.dtype_out,
    aten.baddbmm.default: aten.baddbmm.out,
}

# By operator: what finds the part of the base that it replaces.
_WINDOWS: dict[Any, Any] = {
    aten.select_scatter.default: selected,
    aten.slice_scatter.default: sliced,
}

# By operator: the one that reads that part, and what its arguments after the tensor are by default.
_READS: dict[Any, tuple[Any, tuple[int | None, ...]]] = {
    aten.select_scatter.default: (aten.select.int, ()),
    aten.slice_scatter.default: (aten.slice.Tensor, (0, None, None, 1)),
}

# Operators whose results hold nothing that a program may rely on.
_EMPTY = frozenset(
    {
        aten.empty.memory_format,
        aten.empty_like.default,
        aten.empty_strided.default,
        aten.new_empty.default,
        aten.empty_permuted.default,
    }
)

"""Step 1 for control flow: the graphs that ``cond`` and ``while_loop`` run, each recorded as a block.

A region's graph is recorded on fake values of its own and converted at once (the innermost first); the
block around it gets one node, whose results are new tensors.  What the region writes is noted on the node
(:mod:`.tensor_ssa.block_propagation`).  Tensors that a region's module holds itself become operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from ._torch import HigherOrderOperator, new_integer, storage_identity
from .aten_recorder import AtenRecorder, RecordedInput
from .counted_loops import CountedTest, Counter, find_counter
from .functional_graph import InputKind
from .region_conversion import ConvertedBlock, convert_block, written_inputs
from .tensor_ssa.block_propagation import order_parameters, set_region_writes
from .tensor_ssa.layout import dense_order, same_layout
from .unsupported import Unsupported

Run = Callable[[torch.fx.GraphModule, AtenRecorder, Sequence[Any]], tuple[Any, ...]]
"""Runs a captured graph's nodes on values under a recorder: what the graph returns."""

MAX_ATTEMPTS = 4  # at recording a region whose tensors turn out to need other strides


class RegionRecorder(AtenRecorder):
    """Records a region; a tensor that it reads besides its operands is taken from the parent."""

    def __init__(self, module: torch.fx.GraphModule, parent: AtenRecorder) -> None:
        super().__init__(module, parent.fake_mode)
        self.parent = parent
        self.taken: dict[
            int, tuple[torch.Tensor, int]
        ] = {}  # by id; the parent's, and its position

    def _lift(self, tensor: torch.Tensor, path: str) -> torch.Tensor:
        known = self._fakes.get(id(tensor))
        if known is None:
            with self.paused():
                outer = self.parent.fake_of(tensor)
            known = self.inputs[self.take(outer)].value
            self._fakes[id(tensor)] = known
            self._alive[id(tensor)] = tensor
        return known

    def take(self, outer: torch.Tensor) -> int:
        """Add a placeholder after the others for the parent's tensor ``outer``; its position."""
        if id(outer) not in self.taken:
            placeholders = self.graph.find_nodes(op="placeholder")
            with self.parent.paused():
                fake = self._own_fake(outer)
            with self.graph.inserting_after(placeholders[-1] if placeholders else None):
                node = self._placeholder("taken", fake)
            self.taken[id(outer)] = (outer, len(self.inputs))
            self.inputs.append(
                RecordedInput(node, InputKind.CONSTANT, "", None, fake, None, outer.requires_grad)
            )
            self._register(fake, node)
        return self.taken[id(outer)][1]


@dataclass
class _Block:
    recorder: RegionRecorder
    outputs: tuple[Any, ...]


@dataclass
class _Operands:
    """What a region operator is given: the program's values, and the nodes that are passed for them.

    ``passed`` differs from ``values`` where a copy with other strides is passed.
    """

    values: list[Any]
    passed: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.passed = list(self.values)

    def give_strides(self, position: int, wanted: torch.Tensor) -> None:
        """Pass a copy in the dense layout of ``wanted``."""
        order = dense_order(wanted)
        assert order is not None
        inverse = [order.index(d) for d in range(len(order))]
        dense = self.passed[position].permute(order).clone(memory_format=torch.contiguous_format)
        self.passed[position] = dense.permute(inverse)


def record_region_operator(
    recorder: AtenRecorder, target: HigherOrderOperator, args: Sequence[Any], run: Run
) -> tuple[Any, ...]:
    """Record a call of ``cond`` or ``while_loop`` (arguments as torch defines them) and its regions.

    ``recorder`` is the block's around it, and active.  Returns the operator's results.  Raises
    :class:`Unsupported` for other operators, and for regions whose states can't be joined.
    """
    rule = _RULES.get(target.name())
    if rule is None:
        raise Unsupported("control-flow operator", str(target))
    return rule(recorder, target, args, run)


def _record(
    parent: AtenRecorder, module: torch.fx.GraphModule, values: Sequence[Any], run: Run
) -> _Block:
    recorder = RegionRecorder(module, parent)
    with parent.paused():
        return _Block(recorder, run(module, recorder, values))


def _share_taken(blocks: Sequence[_Block]) -> list[torch.Tensor]:
    """Let every block have a placeholder for what any has taken; these tensors, in one order."""
    outers = {key: outer for b in blocks for key, (outer, _) in b.recorder.taken.items()}
    for block in blocks:
        for outer in outers.values():
            block.recorder.take(outer)
    return list(outers.values())


def _positions(block: _Block, given: int, taken: Sequence[torch.Tensor]) -> list[int]:
    """The block's inputs in the order of the operator's operands."""
    return [*range(given), *(block.recorder.take(outer) for outer in taken)]


def _convert(
    block: _Block, outputs: Sequence[tuple[Any, Any]], written: Sequence[int], order: Sequence[int]
) -> ConvertedBlock:
    """Convert with the placeholders in ``order`` (positions in the recorder's inputs)."""
    with block.recorder.parent.paused():
        converted = convert_block(block.recorder, outputs, written)
        nodes = [block.recorder.inputs[i].node for i in order]
        order_parameters(converted.module.graph, nodes)
        converted.module.recompile()
    return converted


def _check_not_shared(parent: AtenRecorder, values: Sequence[Any], written: Sequence[int]) -> None:
    """A written operand must be the only operand on its storage: each is a value of its own inside."""
    storages = [storage_identity(v) if isinstance(v, torch.Tensor) else None for v in values]
    for position in written:
        if storages.count(storages[position]) > 1:
            name = parent.node_of(values[position]).name
            raise Unsupported("write in a region to one of several views of a tensor", name)


def _fresh(parent: AtenRecorder, like: torch.Tensor) -> torch.Tensor:
    """A fake tensor with storage of its own in the layout of ``like``."""
    with parent.paused():
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)


def _placed(parent: AtenRecorder, tensor: torch.Tensor) -> torch.Tensor:
    """A fresh tensor like ``tensor``, contiguous if that has gaps or overlaps."""
    if dense_order(tensor) is not None:
        return _fresh(parent, tensor)
    with parent.paused():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _node(parent: AtenRecorder, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return parent.node_of(value)
    return parent.numbers.node_of(value) if isinstance(value, torch.SymInt) else value


def _note_aliases(
    parent: AtenRecorder,
    blocks: Sequence[ConvertedBlock],
    items: Sequence[Any],
    values: Sequence[Any],
) -> None:
    for converted in blocks:
        for result, operand in converted.input_aliases:
            if result < len(items) and isinstance(values[operand], torch.Tensor):
                parent.region_aliases.append((items[result], parent.node_of(values[operand])))
        for result, other in converted.result_aliases:
            parent.region_aliases.append((items[result], items[other]))


def _record_cond(
    parent: AtenRecorder, target: HigherOrderOperator, args: Sequence[Any], run: Run
) -> tuple[Any, ...]:
    predicate, true_module, false_module, given = args
    if not isinstance(predicate, torch.Tensor) or predicate.dtype != torch.bool or predicate.dim():
        raise Unsupported(
            "predicate of a branch", str(predicate), "a bool tensor without dimensions"
        )
    operands = _Operands(list(given))
    for _ in range(MAX_ATTEMPTS):
        branches = [_record(parent, m, operands.passed, run) for m in (true_module, false_module)]
        taken = _share_taken(branches)
        orders = [_positions(b, len(given), taken) for b in branches]
        written = sorted(
            {
                o.index(i)
                for b, o in zip(branches, orders, strict=True)
                for i in written_inputs(b.recorder)
            }
        )
        if not _pass_dense(parent, operands, written):
            break
    values, passed = [*operands.values, *taken], [*operands.passed, *taken]
    _check_not_shared(parent, values, written)
    first, second = (b.outputs for b in branches)
    layouts = _joined(parent, first, second)
    converted = [
        _convert(b, list(zip(b.outputs, layouts, strict=True)), [o[i] for i in written], o)
        for b, o in zip(branches, orders, strict=True)
    ]
    results = [_fresh(parent, t) if isinstance(t, torch.Tensor) else t for t in layouts]
    results = [first[k] if r is None else r for k, r in enumerate(results)]
    versions = [_fresh(parent, branches[0].recorder.inputs[orders[0][i]].value) for i in written]
    graphs = [
        parent.add_region(name, c.module)
        for name, c in zip(("true_graph", "false_graph"), converted, strict=True)
    ]
    arguments = (_node(parent, predicate), *graphs, tuple(_node(parent, v) for v in passed))
    node, items = parent.append_region_operator(target, arguments, [*results, *versions])
    writes = [(parent.node_of(values[p]), len(results) + k) for k, p in enumerate(written)]
    set_region_writes(node, writes)
    _note_aliases(parent, converted, items, values)
    return tuple(results)


def _pass_dense(parent: AtenRecorder, operands: _Operands, written: Sequence[int]) -> bool:
    """Pass dense copies for written operands that are not; whether any had to be changed."""
    changed = False
    for position in written:
        if position < len(operands.passed):
            passed = operands.passed[position]
            if dense_order(passed) is None:
                operands.give_strides(position, _placed(parent, passed))
                changed = True
    return changed


def _joined(parent: AtenRecorder, first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """What stands for each result of two branches: a tensor in its layout, None for equal numbers."""
    if len(first) != len(second):
        raise Unsupported("branches with different numbers of results")
    layouts: list[Any] = []
    for left, right in zip(first, second, strict=True):
        if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
            _check_same(left, right, "branches that give different tensors")
            layouts.append(_placed(parent, left))
        elif type(left) is type(right) and left == right:
            layouts.append(None)
        else:
            raise Unsupported("branches that give different values", f"{left} and {right}")
    return layouts


def _check_same(left: torch.Tensor, right: torch.Tensor, kind: str) -> None:
    described = [(tuple(t.shape), t.dtype, t.device) for t in (left, right)]
    if described[0] != described[1]:
        raise Unsupported(kind, f"{described[0]} and {described[1]}")


def _record_while(
    parent: AtenRecorder, target: HigherOrderOperator, args: Sequence[Any], run: Run
) -> tuple[Any, ...]:
    condition_module, body_module, carried, additional = args
    count = len(carried)
    counter = find_counter(condition_module, body_module, carried, additional)
    operands = _Operands([*carried, *additional])
    body, written = _record_body(parent, body_module, operands, count, counter, run)
    inner = _loop_values(parent, operands, count, counter, extra_steps=1)
    condition = _record(parent, condition_module, inner, run)
    if written_inputs(condition.recorder):
        raise Unsupported("write in a loop's condition")
    taken = _share_taken([body, condition])
    values, passed = [*operands.values, *taken], [*operands.passed, *taken]
    orders = [_positions(b, len(operands.values), taken) for b in (body, condition)]
    written = sorted({orders[0].index(i) for i in written_inputs(body.recorder)})
    _check_not_shared(parent, values, written)
    rest = [p for p in range(count, len(values)) if p not in written]
    order = [*range(count), *written, *rest]
    carried_inputs = [body.recorder.inputs[k].value for k in range(count)]
    outputs = list(zip(body.outputs, carried_inputs, strict=True))
    converted = _convert(
        body, outputs, [orders[0][p] for p in written], [orders[0][p] for p in order]
    )
    tested = _convert(condition, [(_predicate(condition), None)], (), [orders[1][p] for p in order])
    _return_bare(tested.module)
    graphs = [
        parent.add_region("condition", tested.module),
        parent.add_region("body", converted.module),
    ]
    nodes = [_node(parent, passed[p]) for p in order]
    split = count + len(written)
    counts = counter if isinstance(condition.outputs[0], torch.SymBool) else None
    results = [_loop_result(parent, k, v, counts) for k, v in enumerate(carried_inputs)]
    versions = [_fresh(parent, body.recorder.inputs[orders[0][p]].value) for p in written]
    node, items = parent.append_region_operator(
        target, (*graphs, tuple(nodes[:split]), tuple(nodes[split:])), [*results, *versions]
    )
    writes = [(parent.node_of(values[p]), count + k) for k, p in enumerate(written)]
    set_region_writes(node, writes)
    _note_aliases(parent, [converted], items, values)
    if counter is None or not counter.trips:  # it may run no iteration: results are the operands
        for item, value in zip(items, values[:count], strict=False):
            if isinstance(value, torch.Tensor):
                parent.region_aliases.append((item, parent.node_of(value)))
    return tuple(results)


def _record_body(
    parent: AtenRecorder,
    module: torch.fx.GraphModule,
    operands: _Operands,
    count: int,
    counter: Counter | None,
    run: Run,
) -> tuple[_Block, list[int]]:
    """Record a loop's body until the carried tensors keep their strides; it, and what it writes."""
    for _ in range(MAX_ATTEMPTS):
        inner = _loop_values(parent, operands, count, counter)
        body = _record(parent, module, inner, run)
        if len(body.outputs) != count:
            raise Unsupported("loop body with another number of results than carried values")
        written = sorted(written_inputs(body.recorder))
        if any(position < count for position in written):
            raise Unsupported(
                "write to a carried tensor",
                "",
                "carry a new tensor, or pass it as additional input",
            )
        changed = _pass_dense(parent, operands, written)
        for k, (value, result) in enumerate(zip(inner, body.outputs, strict=False)):
            if not isinstance(value, torch.Tensor):
                _check_number(k, value, result, counter)
                continue
            if not isinstance(result, torch.Tensor):
                raise Unsupported("carried tensor that becomes another value", str(result))
            _check_same(value, result, "carried tensor that changes")
            wanted = _placed(parent, result)
            if not same_layout(wanted, operands.passed[k]):
                operands.give_strides(k, wanted)
                changed = True
        if not changed:
            return body, written
    raise Unsupported("carried tensor whose strides change with each iteration")


def _loop_values(
    parent: AtenRecorder,
    operands: _Operands,
    count: int,
    counter: Counter | None,
    extra_steps: int = 0,
) -> list[Any]:
    """What the loop's graphs are recorded on: carried values are any iteration's."""
    values = list(operands.passed)
    for k in range(count):
        value = values[k]
        if isinstance(value, torch.Tensor):
            values[k] = _placed(parent, value)
        elif isinstance(value, (bool, float)) or not isinstance(value, (int, torch.SymInt)):
            raise Unsupported("carried value that is no tensor or integer", str(value))
        else:
            bounds: tuple[int | None, int | None] = (None, None)
            if counter is not None and counter.position == k:
                bounds = counter.bounds(extra_steps)
            values[k] = new_integer(parent.fake_mode, *bounds)
    return values


def _check_number(position: int, value: Any, result: Any, counter: Counter | None) -> None:
    if not isinstance(result, (int, torch.SymInt)) or isinstance(result, bool):
        raise Unsupported("carried integer that becomes another value", str(result))


def _predicate(condition: _Block) -> Any:
    if len(condition.outputs) != 1:
        raise Unsupported("loop condition with several results")
    (value,) = condition.outputs
    flag = value.goes_on if isinstance(value, CountedTest) else value
    if isinstance(flag, torch.Tensor) and (flag.dtype != torch.bool or flag.dim()):
        raise Unsupported("predicate of a loop", str(value), "a bool tensor without dimensions")
    if not isinstance(value, (torch.Tensor, torch.SymBool, CountedTest)):
        raise Unsupported("loop condition that is always the same", str(value))
    return value


def _return_bare(module: torch.fx.GraphModule) -> None:
    """torch's loops want the condition's value itself, not a tuple of one."""
    (output,) = module.graph.find_nodes(op="output")
    output.args = output.args[0]
    output.meta["val"] = output.meta["val"][0]
    module.recompile()


def _loop_result(parent: AtenRecorder, position: int, value: Any, counter: Counter | None) -> Any:
    if isinstance(value, torch.Tensor):
        return _fresh(parent, value)
    if counter is not None and counter.position == position and counter.final is not None:
        return counter.final
    return new_integer(parent.fake_mode, None, None)


_RULES = {"cond": _record_cond, "while_loop": _record_while}

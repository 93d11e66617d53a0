"""Lowering of control-flow operators: their graphs become blocks of nodes over the same buffers.

A region's results are buffers that its blocks write: both blocks of a branch, each iteration of a loop.  A
loop's carried state lies in buffers that nodes before the loop fill.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import sympy
import torch

from weft_loop_ir.expressions import contiguous_stride, from_torch, to_expression
from weft_loop_ir.ir import Branch, Count, Loop
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype, is_read, storage_stride
from weft_loop_ir.lowering.in_place import assign, take_over, update_in_place
from weft_loop_ir.lowering.reductions import cast
from weft_loop_ir.lowering.scans import needed_values, scan_whole
from weft_loop_ir.lowering.tensors import TensorValue, buffer_of
from weft_loop_ir.lowering.varying_state import VaryingState, unknown_sizes
from weft_loop_ir.lowering.views import select_index
from weft_loop_ir.unsupported import Unsupported

if TYPE_CHECKING:
    from weft_loop_ir.lowering.lower import Driver


def lower_region(driver: Driver, node: torch.fx.Node, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Append the region of ``node``, a call of a control-flow operator; its results.

    Raises :class:`Unsupported` for operators other than ``cond``, ``while_loop`` and ``associative_scan``,
    for carried integers that don't count, and for complex results: kernels copy them and hold no such values.
    """
    name = str(node.target)
    for result in node.meta["val"]:
        if isinstance(result, torch.Tensor) and result.is_complex():
            raise Unsupported(
                "complex result of a region", node.name, "Leave it outside the graph."
            )
    rules: dict[str, Callable[..., tuple[Any, ...]]]
    rules = {"associative_scan": _scan, "cond": _branch, "while_loop": _loop}
    if name not in rules:
        raise Unsupported("control-flow operator", name, "Leave it outside the graph.")
    return rules[name](driver, node, *arguments)


def _operands(driver: Driver, operands: Sequence[Any]) -> None:
    """Materialise what a region reads before it: a buffer made inside one may not exist after it."""
    for operand in operands:
        if isinstance(operand, TensorValue):
            driver.context.realize(operand)


def _run_block(
    driver: Driver,
    module: torch.fx.GraphModule,
    values: Sequence[Any],
    counters: frozenset[sympy.Symbol],
    carried: frozenset[str],
    context: LoweringContext | None = None,
) -> tuple[Any, ...]:
    """Lower a region's graph into the context's open block; the values that the graph returns."""
    context = driver.context if context is None else context
    inner = type(driver)(driver.name, module, frozenset(), context.options)
    inner.context = context
    inner.symbols, inner.floats, inner.constants = driver.symbols, driver.floats, driver.constants
    inner.fallbacks, inner.device = driver.fallbacks, driver.device
    inner.counters, inner.carried = driver.counters | counters, carried
    outer_node = context.node
    placeholders = module.graph.find_nodes(op="placeholder")
    inner.values.update(zip(placeholders, values, strict=True))
    try:
        for node in module.graph.nodes:
            context.node = node
            if node.op == "output":
                return tuple(torch.fx.map_arg(_results(node), inner.values.__getitem__))
            if node.op != "placeholder":
                inner.lower_node(node)
    finally:
        context.node = outer_node
    raise ValueError("the graph of a region has no output")


def _results(output: torch.fx.Node) -> Sequence[Any]:
    results = output.args[0]
    return results if isinstance(results, list | tuple) else (results,)


def _state(driver: Driver, fake: torch.Tensor) -> TensorValue:
    """A new buffer with the layout of ``fake``, as a tensor."""
    size = tuple(to_expression(s) for s in fake.shape)
    stride = storage_stride(fake)
    name = driver.context.new_buffer(size, stride, fake.dtype, torch.device(fake.device))
    return driver.context.buffer_tensor(name)


def _branch(
    driver: Driver,
    node: torch.fx.Node,
    predicate: TensorValue,
    true_module: torch.fx.GraphModule,
    false_module: torch.fx.GraphModule,
    operands: Sequence[Any],
) -> tuple[Any, ...]:
    context = driver.context
    test = context.as_buffer_view(predicate)
    _operands(driver, operands)
    fakes = node.meta["val"]
    modules = (true_module, false_module)
    updated = update_in_place(driver, node, modules, operands)
    own = frozenset(buffer_of(tensor) for tensor in updated.values())
    results = [
        updated.get(k) or (_state(driver, fake) if isinstance(fake, torch.Tensor) else fake)
        for k, fake in enumerate(fakes)
    ]
    blocks = []
    for module in modules:
        with context.block() as block:
            values = _run_block(driver, module, operands, frozenset(), own)
            assign(context, results, values)
        blocks.append(tuple(block))
    context.nodes.append(Branch(_name(node), test, blocks[0], blocks[1], node.name))
    return tuple(results)


def _loop(
    driver: Driver,
    node: torch.fx.Node,
    condition_module: torch.fx.GraphModule,
    body_module: torch.fx.GraphModule,
    carried: Sequence[Any],
    additional: Sequence[Any],
) -> tuple[Any, ...]:
    context = driver.context
    _operands(driver, additional)
    parameters = body_module.graph.find_nodes(op="placeholder")
    tested_parameters = condition_module.graph.find_nodes(op="placeholder")
    state: list[Any] = []
    sizes: dict[int, dict[int, sympy.Symbol]] = {}
    for k, (value, parameter) in enumerate(zip(carried, parameters, strict=False)):
        fake = parameter.meta["val"]
        if not isinstance(value, TensorValue):
            state.append(_counter(context, fake))
            continue
        known = None
        sizes[k] = unknown_sizes(fake, value, driver.known_symbols())
        if not sizes[k] and value.stride == storage_stride(fake) and value.dtype == fake.dtype:
            known = take_over(driver, node, value, [*carried, *additional])
        state.append(known or _state(driver, fake))
    varying = VaryingState(context, {k: state[k] for k, dims in sizes.items() if dims}, sizes)
    fixed = [None if sizes.get(k) else s for k, s in enumerate(state)]  # is overwritten in place
    assign(context, fixed, carried)
    varying.begin(carried)
    own = [
        to_expression(p.meta["val"])
        for s, p in zip(state, tested_parameters, strict=False)
        if isinstance(s, sympy.Expr)
    ]
    symbols = [s for s in state if isinstance(s, sympy.Expr)]
    buffers = tuple(buffer_of(s) for s in state if isinstance(s, TensorValue))
    overwritten = frozenset(buffer_of(s) for s in fixed if isinstance(s, TensorValue))
    with context.block() as condition:
        (test,) = _run_block(
            driver,
            condition_module,
            [*state, *additional],
            frozenset((*symbols, *own)),
            frozenset(),
        )
        comparison, flag = test if isinstance(test, tuple) else (test, test)
        view = context.as_buffer_view(flag) if isinstance(flag, TensorValue) else None
    with context.block() as body:
        values = _run_block(
            driver, body_module, [*state, *additional], frozenset(symbols), overwritten
        )
        left = varying.values_of(values, overwritten)
        assign(context, fixed, values)
        varying.leave(left)
    bound = None if isinstance(comparison, TensorValue) else comparison
    count = _count(symbols, own, carried, state, values, bound)
    context.nodes.append(
        Loop(_name(node), count, tuple(condition), view, tuple(body), buffers, node.name)
    )
    results: list[Any] = []
    for k, (s, fake) in enumerate(zip(state, node.meta["val"], strict=True)):
        if isinstance(s, TensorValue):
            results.append(varying.after(k, fake) if sizes[k] else s)
        else:
            results.append(fake if isinstance(fake, int) else to_expression(fake))
    return tuple(results)


def _scan(
    driver: Driver,
    node: torch.fx.Node,
    combine: torch.fx.GraphModule,
    rows: Sequence[TensorValue],
    additional: Sequence[Any],
) -> tuple[Any, ...]:
    """One node where the function combines nothing but rows; else a loop, whose state is the last row so far.

    The state of halves is float32: rounding each row as it is combined would add up along the rows.
    """
    context = driver.context
    if context.options.scans and not additional:
        run = functools.partial(
            _run_block, driver, combine, counters=frozenset(), carried=frozenset()
        )
        whole = scan_whole(context, node, combine, rows, lambda v, c: run(values=v, context=c))
        if whole is not None:
            return whole
    _operands(driver, [*rows, *additional])
    position = sympy.Symbol(f"{node.name}_row", integer=True, positive=True)
    fakes = enumerate(node.meta["val"])
    results = [_state(driver, fake) if is_read(node, k) else None for k, fake in fakes]
    needed = needed_values(combine, [k for k, result in enumerate(results) if result is not None])
    state = {k: _row_state(context, rows[k]) for k in needed}
    wide = [cast(context, row, compute_dtype(row.dtype)) for row in rows]
    first, following = ([select_index(row, 0, k) for row in wide] for k in (sympy.S.Zero, position))
    assign(context, list(state.values()), [first[k] for k in needed])
    _assign_rows(context, results, sympy.S.Zero, state)
    with context.block() as body:
        left = [state.get(k, first[k]) for k in range(len(rows))]
        operands = [*left, *following, *additional]
        values = _run_block(driver, combine, operands, frozenset((position,)), frozenset())
        made = [cast(context, values[k], wide[k].dtype) for k in needed]
        assign(context, list(state.values()), made)
        _assign_rows(context, results, position, state)
    written = [*state.values(), *(result for result in results if result is not None)]
    buffers = tuple(buffer_of(tensor) for tensor in written)
    count = Count(position, sympy.S.One, 1, rows[0].size[0])
    context.nodes.append(Loop(_name(node), count, (), None, tuple(body), buffers, node.name))
    return tuple(results)


def _row_state(context: LoweringContext, rows: TensorValue) -> TensorValue:
    """A new buffer for one row, in the dtype in which rows are combined."""
    size, dtype = rows.size[1:], compute_dtype(rows.dtype)
    name = context.new_buffer(size, contiguous_stride(size), dtype, rows.device)
    return context.buffer_tensor(name)


def _assign_rows(
    context: LoweringContext,
    tensors: Sequence[TensorValue | None],
    position: sympy.Expr,
    values: Mapping[int, TensorValue],
) -> None:
    """Append what stores each value in a row of its tensor."""
    pairs = [(t, values[k]) for k, t in enumerate(tensors) if t is not None]
    targets = [select_index(tensor, 0, position) for tensor, _ in pairs]
    assign(context, targets, [cast(context, value, tensor.dtype) for tensor, value in pairs])


def _counter(context: LoweringContext, carried: Any) -> sympy.Expr:
    """The symbol of an integer that a loop carries.

    The body of a loop that turns out to run once (``range(n)`` where ``n`` is 1) knows the integer.
    """
    known = to_expression(carried)
    return context.new_counter() if known.is_number else known


def _count(
    symbols: Sequence[Any],
    tested: Sequence[Any],
    carried: Sequence[Any],
    state: Sequence[Any],
    values: Sequence[Any],
    test: Any,
) -> Count | None:
    """The counter of a loop: the one integer that it carries, and (with ``test``) its bound."""
    if not symbols:
        if test is not None:
            raise Unsupported("loop condition", str(test), "It tests no carried value.")
        return None
    if len(symbols) > 1:
        raise Unsupported("several carried integers", str(symbols), "Carry tensors.")
    (symbol,), (own,) = symbols, tested  # the condition's graph names it by a symbol of its own
    position = next(k for k, s in enumerate(state) if s is symbol)
    difference = sympy.expand(to_expression(values[position]) - symbol)
    start = to_expression(carried[position])
    step = int(difference) if difference.is_Integer else difference
    if step == 0 or symbol in difference.free_symbols:
        raise Unsupported("carried integer that doesn't count", str(values[position]), "")
    if test is None:
        if not isinstance(step, int):
            raise Unsupported("carried integer that doesn't count", str(values[position]), "")
        return Count(symbol, start, step, None)
    ascends, bound = _bound(test.node.expr, own)
    count = Count(symbol, start, step, bound, is_descending=not ascends)
    if ascends != count.ascends:
        raise Unsupported("loop condition", str(test), "A counter is below or above a bound.")
    return count


def _bound(relation: Any, counter: Any) -> tuple[bool, sympy.Expr]:
    """Whether a relation holds below a bound of the counter, and the bound: SymPy may turn it round."""
    if relation.func in (sympy.StrictLessThan, sympy.StrictGreaterThan):
        difference = sympy.expand(relation.lhs - relation.rhs)
        factor = difference.coeff(counter)
        rest = sympy.expand(difference - factor * counter)
        if factor in (1, -1) and counter not in rest.free_symbols:
            below = (relation.func is sympy.StrictLessThan) == (factor > 0)
            return below, from_torch(-rest / factor)
    raise Unsupported("loop condition", str(relation), "A counter is below or above a bound.")


def _name(node: torch.fx.Node) -> str:
    return f"region_{node.name}"

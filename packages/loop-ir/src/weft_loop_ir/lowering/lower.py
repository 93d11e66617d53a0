"""The driver: interprets an ATen graph symbolically, node by node, through the table of rules."""

from __future__ import annotations

import operator as python_operator
from collections import Counter
from dataclasses import replace
from typing import Any

import sympy
import torch

from weft_loop_ir._torch import (
    HigherOrderOperator,
    OpOverload,
    hint_of,
    is_symbolic_number,
    is_view_operator,
    must_keep,
    writes_argument,
)
from weft_loop_ir.expressions import constant_float, to_expression
from weft_loop_ir.ir import Buffer, BufferKind, BufferView, ExternCall, Layout, Region, SymbolInput
from weft_loop_ir.loop_graph import LoopGraph, LoopNode, all_items, item_reads, item_writes
from weft_loop_ir.lowering.buffer_names import safe_buffer_name
from weft_loop_ir.lowering.collectives import with_held_arguments
from weft_loop_ir.lowering.context import LoweringContext, LoweringOptions, storage_stride
from weft_loop_ir.lowering.data_dependence import ASSERTION, READ
from weft_loop_ir.lowering.devices import check_loops, device_of_loops, is_elsewhere
from weft_loop_ir.lowering.eager_numerics import is_eagers
from weft_loop_ir.lowering.in_place import add_in_place, note_sum, overwrite_in_place
from weft_loop_ir.lowering.regions import lower_region
from weft_loop_ir.lowering.registry import (
    KNOWN_NUMBERS,
    NEEDS_OWN_ELEMENTS,
    RULES,
    TAKES_FLOATS,
    NoLowering,
)
from weft_loop_ir.lowering.row_blocks import Block, enter_block
from weft_loop_ir.lowering.sharing import realize_if_last, realize_if_shared
from weft_loop_ir.lowering.tensors import Cost, Storage, TensorValue, whole
from weft_loop_ir.lowering.views import strided_window
from weft_loop_ir.size_float import GRAPH_FUNCTIONS, SizeFloat, as_size_float, size_float
from weft_loop_ir.unsupported import Unsupported


def lower(
    graph_module: torch.fx.GraphModule,
    *,
    name: str = "graph",
    constant_inputs: frozenset[int] = frozenset(),
    options: LoweringOptions | None = None,
) -> LoopGraph:
    """Lower a functional ATen graph to loops.

    ``node.meta["val"]`` of every node holds FakeTensors, numbers or symbolic numbers.  Placeholders at the
    positions in ``constant_inputs`` become buffers of kind CONSTANT.  An operator without a rule becomes an
    extern call, counted in ``fallbacks``.

    Raises ``ValueError`` for a graph that is not functional ATen, naming the node, and :class:`Unsupported`
    for sizes that depend on data and layouts other than strided.
    """
    driver = Driver(name, graph_module, constant_inputs, options or LoweringOptions())
    return driver.run()


COMPUTED = {
    torch.ops.aten._conj.default: torch.ops.aten._conj_physical.default,
    torch.ops.aten._neg_view.default: torch.ops.aten.neg.default,
}
"""Views whose values are not those in memory; a buffer of the program holds the values themselves."""


class Driver:
    def __init__(
        self,
        name: str,
        graph_module: torch.fx.GraphModule,
        constant_inputs: frozenset[int],
        options: LoweringOptions,
    ) -> None:
        self.name = name
        self.graph_module = graph_module
        self.constant_inputs = constant_inputs
        self.context = LoweringContext(options)
        self.values: dict[torch.fx.Node, Any] = {}
        self.inputs: list[str | SymbolInput] = []
        self.symbols: dict[sympy.Symbol, SymbolInput] = {}
        self.floats: dict[sympy.Symbol, SizeFloat] = {}  # floats that are symbols of their own
        self.read_from: dict[sympy.Symbol, torch.fx.Node] = {}  # numbers that depend on data
        self.constants: dict[str, torch.Tensor] = {}
        self.fallbacks: Counter[str] = Counter()
        self.outputs: tuple[Any, ...] = ()
        self.given: set[sympy.Symbol] = set()  # by the inputs' sizes, strides and numbers
        self.counters: frozenset[sympy.Symbol] = frozenset()  # of the loops around this block
        self.carried: frozenset[str] = frozenset()  # buffers that the block may overwrite in place
        self.versions: set[str] = set()  # buffers that the block itself has made for that
        self.sums: set[str] = set()  # those that the block's matmuls have made in a library
        self.row_block: Block = Block(None)
        self.device = device_of_loops(graph_module.graph)
        self.elsewhere: dict[torch.fx.Node, bool] = {}  # what was found of each node

    def run(self) -> LoopGraph:
        placeholders = self.graph_module.graph.find_nodes(op="placeholder")
        self.given = _symbols_given_by([node.meta.get("val") for node in placeholders])
        for node in self.graph_module.graph.nodes:
            self.context.node = node
            if node.op == "placeholder":
                self.values[node] = self._placeholder(node)
            elif node.op == "output":
                self.context.node = None
                self.outputs = self._outputs(node)
            else:
                self.lower_node(node)
        return self._finish()

    def lower_node(self, node: torch.fx.Node) -> None:
        """Lower an attribute or a call: ``values[node]`` becomes what it gives."""
        self.row_block = enter_block(self, self.row_block, node)
        if node.op == "get_attr":
            self.values[node] = self._attribute(node)
        elif node.op == "call_function":
            self.values[node] = self._call(node)
        else:
            raise ValueError(f"node {node.name} of kind {node.op} is not functional ATen")

    # -- inputs ----------------------------------------------------------------------------------------

    def _placeholder(self, node: torch.fx.Node) -> Any:
        position = len(self.inputs)
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            kind = BufferKind.CONSTANT if position in self.constant_inputs else BufferKind.INPUT
            name = safe_buffer_name(node.name, self.context.buffers)
            self.inputs.append(name)
            self._define_symbols(value, name, position)
            return self._resolved(self._input_buffer(name, kind, value), value)
        if isinstance(value, torch.SymInt):
            expression = to_expression(value)
            symbol = (
                expression
                if expression.is_Symbol
                else sympy.Symbol(f"input{position}", integer=True)
            )
            defined = SymbolInput(symbol, None, 0, position, hint=hint_of(value))
            self.symbols.setdefault(symbol, defined)
            self.inputs.append(defined)
            # Backward may be given a number computed from others that it is not given.
            return expression if expression.free_symbols <= self.given else symbol
        if isinstance(value, torch.SymFloat) and not value.node.expr.is_number:
            return self._float_input(value.node.expr, position)
        # a plain number (specialised) or None: the graph doesn't read it from the input
        symbol = sympy.Symbol(f"input{position}", integer=True)
        self.inputs.append(SymbolInput(symbol, None, 0, position))
        return float(value) if isinstance(value, torch.SymFloat) else value

    def _float_input(self, symbol: sympy.Expr, position: int) -> SizeFloat:
        if not symbol.is_Symbol:
            raise Unsupported("symbolic number", f"input {symbol}", "Pass the numbers in it.")
        defined = SymbolInput(symbol, None, 0, position)
        self.symbols.setdefault(symbol, defined)
        self.inputs.append(defined)
        number = self.floats[symbol] = SizeFloat("input", (symbol,))
        return number

    def _define_symbols(self, fake: torch.Tensor, buffer: str, position: int) -> None:
        found = [(extent, k, False) for k, extent in enumerate(fake.shape)]
        if fake.layout == torch.strided:
            found += [(extent, k, True) for k, extent in enumerate(fake.stride())]
        for extent, dimension, is_stride in found:
            if isinstance(extent, int):
                continue
            expression = to_expression(extent)
            if expression.is_Symbol and expression not in self.symbols:
                self.symbols[expression] = SymbolInput(
                    expression, buffer, dimension, position, is_stride, hint_of(extent)
                )

    def _input_buffer(self, name: str, kind: BufferKind, fake: torch.Tensor) -> TensorValue:
        if fake.layout != torch.strided:
            raise Unsupported("sparse tensor", f"input {name}", "Keep it out of the graph.")
        size = tuple(to_expression(s) for s in fake.shape)
        stride = tuple(to_expression(s) for s in fake.stride())
        device = torch.device(fake.device)
        self.context.buffers[name] = Buffer(name, kind, Layout(device, fake.dtype, size, stride))
        cost = Cost(1, frozenset((name,)), False)
        storage = Storage(size, fake.dtype, device, buffer=name, stride=stride, cost=cost)
        storage.storage_offset = to_expression(fake.storage_offset())
        return whole(storage)

    def _attribute(self, node: torch.fx.Node) -> Any:
        value: Any = self.graph_module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            return value  # a subgraph of a higher-order operator
        name = safe_buffer_name(node.name, self.context.buffers)
        self.constants[name] = value
        return self._resolved(self._input_buffer(name, BufferKind.CONSTANT, value), value)

    def _resolved(self, tensor: TensorValue, source: torch.Tensor) -> TensorValue:
        """``tensor`` as it is read: the memory of a lazy conjugate or negative holds other values."""
        if not (source.is_conj() or source.is_neg()):
            return tensor
        clone = torch.ops.aten.clone.default
        fake = torch.empty_like(source)
        found: TensorValue = self.context.extern(clone, [tensor], {}, fake, "a lazy conjugate")
        return found

    # -- calls -----------------------------------------------------------------------------------------

    def _call(self, node: torch.fx.Node) -> Any:
        value = node.meta.get("val")
        if isinstance(node.target, HigherOrderOperator):
            return lower_region(self, node, torch.fx.map_arg(node.args, self._value_of))
        if node.target is READ:
            return self._read_number(node, value)
        if node.target is ASSERTION:
            condition, message = node.args
            if isinstance(condition, torch.fx.Node):
                condition = condition.meta["val"]
            self.context.data.require_condition(self.context.open_blocks, condition, str(message))
            return None
        self._check_representable(node, value)
        if isinstance(value, torch.SymInt):
            return to_expression(value)
        if isinstance(value, torch.SymFloat):
            return self._symbolic_float(node, value)
        if isinstance(value, int | float | bool) or is_symbolic_number(value):
            return value
        arguments: Any = torch.fx.map_arg(node.args, self._value_of)
        keywords = torch.fx.map_arg(node.kwargs, self._value_of)
        if node.target is python_operator.getitem:
            return arguments[0][arguments[1]]
        if node.target is python_operator.and_:
            return tuple(arguments)  # a loop's condition, by its counter and by a tensor
        if not isinstance(node.target, OpOverload):
            raise ValueError(
                f"node {node.name} calls {node.target}, which is not an operator overload"
            )
        if writes_argument(node.target):
            raise ValueError(f"node {node.name}: {node.target} writes to its argument")
        overwritten = overwrite_in_place(self, node, arguments)
        if overwritten is None:
            overwritten = add_in_place(self, node, arguments, keywords)
        if overwritten is not None:
            return overwritten
        result = self._apply(node, node.target, arguments, keywords)
        note_sum(self, node, result)
        given = isinstance(result, TensorValue) and any(result is a for a in arguments)
        shares = is_view_operator(node.target) or node.target is torch.ops.aten._unsafe_view.default
        if given and not shares:
            result = self.context.copy_of(result)  # as the running sum of a tensor without dims
        if isinstance(result, tuple):
            assert isinstance(value, (tuple, list))
            return tuple(self._settle(node, r, f) for r, f in zip(result, value, strict=True))
        return self._settle(node, result, value)

    def _read_number(self, node: torch.fx.Node, value: Any) -> Any:
        """A number that the host program reads from a tensor."""
        if not isinstance(value, torch.SymInt | torch.SymFloat):
            raise Unsupported("data-dependent number", node.name, "Keep it a tensor.")
        symbol = value.node.expr
        tensor = node.args[0]
        assert isinstance(tensor, torch.fx.Node)
        if not symbol.is_Symbol or self.read_from.setdefault(symbol, tensor) is not tensor:
            raise Unsupported(
                "data-dependent number",
                f"{node.name}, which is asserted to be {symbol}",
                "Compute with the number that it is to be.",
            )
        self.context.read_number(self.values[tensor], symbol)
        if isinstance(value, torch.SymInt):
            return symbol
        number = self.floats[symbol] = SizeFloat("input", (symbol,))
        return number

    def known_symbols(self) -> set[sympy.Symbol]:
        """The symbols of inputs and counters, and those that calls before have defined."""
        return {*self.symbols, *self.counters, *self.context.data.defined}

    def _check_representable(self, node: torch.fx.Node, value: Any) -> None:
        """Refuse results whose sizes nothing determines, and layouts other than strided.

        A call of an operator without a rule may give sizes itself.
        """
        if isinstance(value, list | tuple):
            for item in value:
                self._check_representable(node, item)
            return
        numbers: list[Any] = []
        given: set[sympy.Expr] = set()
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided:
                raise Unsupported("sparse tensor", f"node {node.name}", "Keep it out of the graph.")
            numbers = [n for n in (*value.shape, *value.stride()) if not isinstance(n, int)]
            if numbers:
                is_call = isinstance(node.target, OpOverload)
                if is_call and not is_view_operator(node.target):
                    own = map(to_expression, value.shape)
                    given = {extent for extent in own if extent.is_Symbol}
                self.context.data.require_sizes(self.context.open_blocks, value)
            offset = value.storage_offset()
            if self.counters and not isinstance(offset, int):
                numbers.append(offset)  # a position that depends on data is a symbol of its own
        elif isinstance(value, torch.SymInt):
            numbers = [value]
        for number in numbers:
            unknown = to_expression(number).free_symbols - self.known_symbols() - given
            if unknown:
                raise Unsupported(
                    "data-dependent size",
                    f"{number} of node {node.name}",
                    "No input's size gives it: leave the operator outside the graph.",
                )

    def _symbolic_float(self, node: torch.fx.Node, value: torch.SymFloat) -> float | SizeFloat:
        symbol = value.node.expr
        if symbol.is_Symbol:  # floating-point arithmetic as it is written, no SymPy expression
            operands = torch.fx.map_arg(node.args, self._value_of)
            number = SizeFloat(_float_operation(node), tuple(map(as_size_float, operands)))
            self.floats[symbol] = number
            return number
        constant = constant_float(value)
        if constant is not None:
            return constant
        result = size_float(symbol, self.floats)
        if result.free_symbols - self.known_symbols():
            raise Unsupported(
                "data-dependent number",
                f"{value} of node {node.name}",
                "No input's size gives it: leave the operator outside the graph.",
            )
        return result

    def _value_of(self, node: torch.fx.Node) -> Any:
        return self.values[node]

    def _apply(
        self, node: torch.fx.Node, target: OpOverload, arguments: Any, keywords: dict[str, Any]
    ) -> Any:
        context = self.context
        context.known_symbols = {*self.symbols, *self.counters}
        fake = node.meta.get("val")
        if target in COMPUTED and not isinstance(arguments[0], complex):
            assert isinstance(fake, torch.Tensor)
            target, fake = COMPUTED[target], torch.empty_like(fake)
        rule = RULES.get(target)
        reason = "no lowering rule"
        name = target._schema.name
        if name not in TAKES_FLOATS and _holds(SizeFloat, (arguments, keywords)):
            rule, reason = None, "a float that varies"
        elif name in KNOWN_NUMBERS and _holds(sympy.Expr, (arguments, keywords)):
            rule, reason = None, "a number that varies"
        exact = not context.options.eager_numerics or is_view_operator(target)
        if rule is not None and not exact and not is_eagers(target, arguments, keywords):
            rule, reason = None, "eager's bits"
        if is_elsewhere(node, self.device, self.elsewhere):
            rule, reason = None, f"not on {self.device}"
        if rule is not None:
            try:
                return rule(context, *arguments, **keywords)
            except NoLowering as refusal:
                reason = str(refusal)
        if is_view_operator(target) and isinstance(fake, torch.Tensor):
            return self._view(node, target, arguments, keywords, fake, reason)
        self.fallbacks[str(target)] += 1
        if name in NEEDS_OWN_ELEMENTS:
            arguments = [self._with_own_elements(argument) for argument in arguments]
        return context.extern(target, arguments, keywords, fake, reason)

    def _with_own_elements(self, value: Any) -> Any:
        """``value``, or a copy where several of its elements are one in memory."""
        if not isinstance(value, TensorValue) or value.stride is None:
            return value
        repeats = any(
            n != 1 and step == 0 for n, step in zip(value.size, value.stride, strict=True)
        )
        return self.context.copy_of(value) if repeats else value

    def _view(
        self,
        node: torch.fx.Node,
        target: OpOverload,
        arguments: Any,
        keywords: dict[str, Any],
        fake: torch.Tensor,
        reason: str,
    ) -> Any:
        """A view without a rule: the FakeTensor's strides on the same buffer, if its elements are the same.

        Else the operator runs on a copy that an extern call owns: no buffer shares its memory.
        """
        context = self.context
        base = arguments[0]
        if isinstance(base, complex) and target == torch.ops.aten._conj.default:
            return self._conjugate_of_number(base, fake, reason)
        if not isinstance(base, TensorValue):
            raise ValueError(f"node {node.name}: {target} of something that is not a tensor")
        if base.dtype == fake.dtype and not fake.dtype.is_complex:
            context.realize(base)
            return strided_window(base, fake, fake.storage_offset())
        self.fallbacks[str(target)] += 1
        source = node.all_input_nodes[0].meta["val"]
        copy = context.extern(torch.ops.aten.clone.default, [base], {}, source, reason)
        return context.extern(target, [copy, *arguments[1:]], keywords, fake, reason)

    def _conjugate_of_number(self, number: complex, fake: torch.Tensor, reason: str) -> Any:
        """A tensor of the conjugate: a gradient's factor, where eager had wrapped the number."""
        make = torch.ops.aten.scalar_tensor.default
        self.fallbacks[str(make)] += 1
        keywords = {"dtype": fake.dtype, "device": fake.device}
        return self.context.extern(
            make, [number.conjugate()], keywords, torch.empty_like(fake), reason
        )

    def _settle(self, node: torch.fx.Node, result: Any, fake: Any) -> Any:
        """Give a result the FakeTensor's strides, and realise it where that pays."""
        if not isinstance(result, TensorValue) or fake is None:
            return result
        storage = result.storage
        if result.stride is None:
            result = self.context.copy_of(result, storage_stride(fake))
        elif result.index_map is None and not storage.is_realized and storage.size == result.size:
            stride = storage_stride(fake)
            if storage.stride != stride:
                storage.stride = stride
                result = whole(storage)
        elif not result.dtype.is_complex and not _same_layout(result, fake):
            result = self.context.copy_of(result, storage_stride(fake))
        result = _with_unit_strides(result, fake)
        realize_if_shared(self.context, self.values, node, result)
        realize_if_last(self.context, node, result)
        return result

    # -- outputs ---------------------------------------------------------------------------------------

    def _outputs(self, node: torch.fx.Node) -> tuple[Any, ...]:
        results = node.args[0]
        if not isinstance(results, list | tuple):
            results = (results,)
        return tuple(self._output(r) for r in results)

    def _output(self, result: Any) -> Any:
        if isinstance(result, list | tuple | dict):
            raise ValueError("the graph returns a nested structure: it must return a flat tuple")
        if not isinstance(result, torch.fx.Node):
            return result
        value = self.values[result]
        if isinstance(value, SizeFloat) or is_symbolic_number(value):
            raise Unsupported(
                "symbolic number", f"result {result.name}", "Only integers may be results."
            )
        if not isinstance(value, TensorValue):
            return value
        return self.context.as_buffer_view(value)

    def _check_strides(self) -> None:
        """Refuse inputs whose strides have symbols that neither a size nor a stride gives."""
        for name, buffer in self.context.buffers.items():
            layout = buffer.layout
            if buffer.kind is BufferKind.INTERMEDIATE:
                continue
            unknown = {s for n in (*layout.size, *layout.stride) for s in n.free_symbols}
            if unknown - self.symbols.keys():
                raise Unsupported(
                    "symbolic strides",
                    f"input {name} with strides {layout.stride}",
                    "Pass it contiguous, or keep its strides static.",
                )

    def _finish(self) -> LoopGraph:
        context = self.context
        self._check_strides()
        returned = [o.buffer for o in self.outputs if isinstance(o, BufferView)]
        nodes = _live_nodes(with_held_arguments(context.nodes), returned)
        check_loops(nodes, context.buffers, self.device)
        buffers = dict(context.buffers)
        used = set(returned)
        for node in nodes:
            used.update(item_reads(node) + item_writes(node))
        for buffer_name, buffer in context.buffers.items():
            if buffer.kind is not BufferKind.INTERMEDIATE:
                continue
            if buffer_name not in used:
                del buffers[buffer_name]
            elif buffer_name in returned:
                buffers[buffer_name] = Buffer(buffer_name, BufferKind.OUTPUT, buffer.layout)
        return LoopGraph(
            self.name,
            tuple(self.inputs),
            tuple(self.symbols.values()),
            buffers,
            nodes,
            self.outputs,
            dict(self.fallbacks),
            self.constants,
            self.context.operator_names,
        )


def _symbols_given_by(values: list[Any]) -> set[sympy.Symbol]:
    """The symbols that are numbers among ``values``, or sizes or strides of tensors."""
    numbers = [value for value in values if isinstance(value, torch.SymInt | torch.SymFloat)]
    for value in values:
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            numbers += [n for n in (*value.shape, *value.stride()) if not isinstance(n, int)]
    return {number.node.expr for number in numbers if number.node.expr.is_Symbol}


def _holds(kind: type, value: Any) -> bool:
    """Whether an operator's arguments hold a number of that kind."""
    if isinstance(value, list | tuple):
        return any(_holds(kind, item) for item in value)
    if isinstance(value, dict):
        return _holds(kind, tuple(value.values()))
    return isinstance(value, kind)


def _float_operation(node: torch.fx.Node) -> str:
    name = GRAPH_FUNCTIONS.get(node.target)
    if name is None:
        raise Unsupported(
            "symbolic number",
            f"{node.target} of node {node.name}",
            f"A float that varies takes part in {', '.join(sorted(set(GRAPH_FUNCTIONS.values())))}.",
        )
    return name


def _same_layout(tensor: TensorValue, fake: torch.Tensor) -> bool:
    """Whether the strides agree with the FakeTensor's where they matter."""
    assert tensor.stride is not None
    for extent, stride, fake_stride in zip(tensor.size, tensor.stride, fake.stride(), strict=True):
        if extent == 0:
            return True
        if extent != 1 and stride != to_expression(fake_stride):
            return False
    return True


def _with_unit_strides(tensor: TensorValue, fake: torch.Tensor) -> TensorValue:
    """``tensor`` with the FakeTensor's strides where an extent is 1: no element is elsewhere for that.

    Libraries ask for them: attention in float32 refuses one key whose row is said to follow 1 element on.
    """
    assert tensor.stride is not None
    stride = tuple(
        to_expression(of_fake) if extent == 1 else own
        for extent, own, of_fake in zip(tensor.size, tensor.stride, fake.stride(), strict=True)
    )
    return tensor if stride == tensor.stride else replace(tensor, stride=stride)


def _live_nodes(
    nodes: list[LoopNode | ExternCall | Region], returned: list[str]
) -> tuple[LoopNode | ExternCall | Region, ...]:
    """The nodes that the outputs need, or that have an effect of their own, in order."""
    wanted = set(returned)
    kept: list[LoopNode | ExternCall | Region] = []
    for node in reversed(nodes):
        if _has_effect(node) or any(n in wanted for n in item_writes(node)):
            if isinstance(node, ExternCall):
                read = {d.result for d in node.defines}
                outputs = tuple(
                    name if name in wanted or position in read else None
                    for position, name in enumerate(node.outputs)
                )
                node = replace(node, outputs=outputs)
            kept.append(node)
            wanted.update(item_reads(node))
    return tuple(reversed(kept))


def _has_effect(node: LoopNode | ExternCall | Region) -> bool:
    return any(
        isinstance(i, ExternCall) and (must_keep(i.operator) or i.defines)
        for i in all_items([node])
    )

"""Readable dumps: loop graphs and schedules as pseudo-code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from weft_loop_ir.bodies import (
    CombineFunction,
    Constant,
    Conversion,
    IndexValue,
    Indirect,
    Instruction,
    Load,
    LoopBody,
    Masked,
    Reduction,
    Scalar,
    Store,
    Value,
)
from weft_loop_ir.ir import (
    Branch,
    Buffer,
    BufferView,
    ExternCall,
    FusedKernel,
    Kernel,
    LoopVariable,
    ParallelKernels,
    Schedule,
    SymbolDefinition,
    SymbolInput,
)
from weft_loop_ir.loop_graph import Item, LoopGraph, LoopNode

Buffers = Mapping[str, Buffer]


def format_schedule(schedule: Schedule) -> str:
    """The schedule as pseudo-code, with buffers and the memory plan."""
    lines = _header("schedule", schedule)
    lines.append(f"arena: {schedule.memory.arena_bytes} bytes")
    for name, buffer in schedule.buffers.items():
        offset = schedule.memory.offsets.get(name)
        place = schedule.memory.reused.get(name) if offset is None else offset
        lines.append(_buffer(buffer) + ("" if place is None else f"  @ {place}"))
    for step in schedule.steps:
        lines += ["", *_item(step, schedule.buffers)]
    lines.append("")
    lines.append(_outputs(schedule.outputs))
    return "\n".join(lines) + "\n"


def format_loop_graph(loop_graph: LoopGraph) -> str:
    """The loop graph as pseudo-code, with its buffers."""
    lines = _header("loop graph", loop_graph)
    lines.extend(_buffer(b) for b in loop_graph.buffers.values())
    for node in loop_graph.nodes:
        lines += ["", *_item(node, loop_graph.buffers)]
    lines.append("")
    lines.append(_outputs(loop_graph.outputs))
    return "\n".join(lines) + "\n"


def _header(kind: str, program: Schedule | LoopGraph) -> list[str]:
    inputs = [i if isinstance(i, str) else f"{i.symbol}: int" for i in program.inputs]
    lines = [f"{kind} {program.name}({', '.join(inputs)})"]
    for symbol in program.symbols:
        lines.append(f"symbol {_symbol(symbol)}")
    for name, number in program.fallbacks.items():
        lines.append(f"fallback {name} x{number}")
    return lines


def _symbol(symbol: SymbolInput) -> str:
    if symbol.input is None:
        return f"{symbol.symbol} = input {symbol.position}"
    what = "stride" if symbol.is_stride else "size"
    return f"{symbol.symbol} = {symbol.input}.{what}({symbol.dimension})"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _buffer(buffer: Buffer) -> str:
    layout = buffer.layout
    size = ", ".join(str(s) for s in layout.size)
    stride = ", ".join(str(s) for s in layout.stride)
    return (
        f"{buffer.kind.value} {buffer.name}: {_dtype(layout.dtype)}[{size}] "
        f"stride [{stride}] {layout.device}"
    )


def _outputs(outputs: Sequence[Any]) -> str:
    return f"return {', '.join(_argument(o) for o in outputs)}"


def _view(view: BufferView) -> str:
    size = ", ".join(str(s) for s in view.size)
    stride = ", ".join(str(s) for s in view.stride)
    return f"{view.buffer}[size ({size}) stride ({stride}) offset {view.offset}]"


def _argument(argument: Any) -> str:
    if isinstance(argument, BufferView):
        return _view(argument)
    if isinstance(argument, list | tuple):
        return "[" + ", ".join(_argument(a) for a in argument) + "]"
    return str(argument)


def _item(item: Item, buffers: Buffers) -> list[str]:
    if isinstance(item, Kernel):
        return _kernel(item, buffers)
    if isinstance(item, ParallelKernels):
        return [f"in parallel, {item.name}:", *_block(item.kernels, buffers)]
    if isinstance(item, LoopNode):
        return _node(item)
    if isinstance(item, ExternCall):
        return _extern(item)
    if isinstance(item, Branch):
        lines = [f"if {_view(item.predicate)}:", *_block(item.true_block, buffers)]
        return [*lines, "else:", *_block(item.false_block, buffers)]
    head, count = "while True", item.count
    if count is not None:
        stop = "" if count.stop is None else str(count.stop)
        head = f"for {count.symbol} from {count.start} to {stop} by {count.step}"
    lines = [f"# {item.origin}", f"{head}:  # carries {', '.join(item.carried)}"]
    if item.predicate is not None:
        lines += [*_block(item.condition, buffers), f"    break unless {_view(item.predicate)}"]
    return lines + _block(item.body, buffers)


def _block(block: Sequence[Item], buffers: Buffers) -> list[str]:
    return ["    " + line for item in block for line in _item(item, buffers)]


def _node(node: LoopNode) -> list[str]:
    lines = [f"# {', '.join(node.origins)}", f"node {node.name}:"]
    depth = _loops(lines, node.loops, 1)
    depth = _loops(lines, node.reduction_loops, depth, "reduce")
    _body(lines, node.body, depth)
    return lines


def _extern(call: ExternCall) -> list[str]:
    arguments = [_argument(a) for a in call.arguments]
    arguments += [f"{k}={_argument(v)}" for k, v in call.keywords.items()]
    outputs = ", ".join(str(o) for o in call.outputs)
    out = "" if call.out_variant is None else " into"
    return [
        f"# {call.origin}: {call.reason}",
        f"extern {call.name}:",
        f"    {outputs} ={out} {call.operator}({', '.join(arguments)})",
        *(f"    {d.symbol} = {_definition(d)}" for d in call.defines),
        *(f"    require {r.expression} {r.relation}" for r in call.requires),
    ]


def _definition(definition: SymbolDefinition) -> str:
    result = f"result {definition.result}"
    return result if definition.dimension is None else f"{result}.size({definition.dimension})"


def _kernel(kernel: Kernel, buffers: Buffers) -> list[str]:
    lines = [f"# {', '.join(kernel.origins)}"]
    lines.append(f"kernel {kernel.name}({', '.join(kernel.reads)} -> {', '.join(kernel.writes)}):")
    if isinstance(kernel, FusedKernel):
        expansion = kernel.expanded(buffers)
        lines += [f"    temporary {_buffer(buffer)}" for buffer in expansion.buffers.values()]
        nests = [_kernel(nest, buffers)[1:] for nest in expansion.kernels]
        return lines + ["    " + line for nest in nests for line in nest]
    depth = _loops(lines, kernel.outer, 1)
    pad = "    " * depth
    for buffer in kernel.local_buffers:
        lines.append(f"{pad}local {buffer.name}: {_dtype(buffer.dtype)}[{buffer.size}]")
    for stage in kernel.stages:
        word = "reduce" if stage.is_reduction else "loop" if stage.is_sequential else "for"
        inner = _loops(lines, stage.inner, depth, word)
        if stage.goes_on is not None:
            if not stage.inner:
                lines.append(f"{pad}loop:")
                inner += 1
            lines.append(f"{'    ' * inner}break unless {stage.goes_on}[0]")
        _body(lines, stage.body, inner)
    return lines


def _loops(lines: list[str], loops: Sequence[LoopVariable], depth: int, word: str = "for") -> int:
    for variable in loops:
        lines.append(f"{'    ' * depth}{word} {variable.symbol} in range({variable.size}):")
        depth += 1
    return depth


def _body(lines: list[str], body: LoopBody, depth: int) -> None:
    pad = "    " * depth
    for position, instruction in enumerate(body.instructions):
        if isinstance(instruction, Masked):
            body, mask = instruction.body, _operand(instruction.mask)
            lines.append(f"{pad}t{position} = {instruction.other} unless {mask}:")
            _body(lines, body, depth + 1)
            lines.append(f"{pad}    yield {_operand(body.result)}")
            continue
        lines.append(pad + format_instruction(position, instruction))


def _operand(argument: Any) -> str:
    if isinstance(argument, Value):
        return f"t{argument.index}"
    if isinstance(argument, torch.dtype):
        return _dtype(argument)
    if isinstance(argument, CombineFunction):
        return _combine_function(argument)
    if isinstance(argument, LoopBody):
        return f"<body of {len(argument.instructions)}>"
    return str(argument)


def _combine_function(combine_function: CombineFunction) -> str:
    """The function in braces, a statement after the other."""
    instructions = combine_function.body.instructions
    return f"{{{'; '.join(format_instruction(k, i) for k, i in enumerate(instructions))}}}"


def format_instruction(position: int, instruction: Instruction) -> str:
    """One instruction, the one at ``position`` of its body, as a line of text."""
    match instruction:
        case Store():
            place = f"{instruction.buffer}[{instruction.index}]"
            return f"{place} {instruction.mode or '='} {_operand(instruction.value)}"
        case Indirect():
            value, size = _operand(instruction.value), instruction.size
            return f"{instruction.symbol} = index({value}, size={size}, check={instruction.check})"
        case Load():
            text = f"{instruction.buffer}[{instruction.index}]"
        case Reduction():
            text = f"{instruction.kind}({_operand(instruction.value)})"
        case Constant() | Scalar() | Conversion() | IndexValue():
            first, *_ = instruction.arguments
            text = f"{_operand(instruction.dtype)}({_operand(first)})"
        case _:
            operands = [_operand(a) for a in instruction.arguments]
            operation = instruction.operation
            text = f" {operation.infix} ".join(operands)
            if operation.infix is None:
                text = f"{operation}({', '.join(operands)})"
    return f"t{position} = {text}"

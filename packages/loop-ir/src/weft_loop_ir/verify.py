"""The verifier: whether a loop graph or a schedule is well-formed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch

from weft_loop_ir import ops
from weft_loop_ir.data_symbols import defined_symbols, item_symbols, layout_symbols
from weft_loop_ir.ir import (
    Branch,
    Buffer,
    BufferKind,
    BufferView,
    ExternCall,
    Instruction,
    Kernel,
    LoopBody,
    LoopVariable,
    ParallelKernels,
    Region,
    Schedule,
    Value,
)
from weft_loop_ir.loop_graph import (
    Item,
    LoopGraph,
    LoopNode,
    body_accesses,
    extern_reads,
    extern_writes,
)


class VerificationError(Exception):
    """The IR breaks a rule.  The message shows the instructions around the fault."""


def verify(program: LoopGraph | Schedule) -> None:
    """Check ``program``; raises :class:`VerificationError` at the first fault.

    Checked: every buffer is known and written before it is read; the dtype rules of
    :mod:`weft_loop_ir.ops`; values are defined before use; indices use symbols that are in scope;
    reductions are in reduction stages only, and their results only stored; the memory plan covers what it
    must and nothing else; kernels that run in parallel are independent; sequential stages have one loop.
    """
    steps: Sequence[Item] = program.steps if isinstance(program, Schedule) else program.nodes
    sizes = {s.symbol for s in program.symbols}
    sizes |= {i.symbol for i in program.inputs if not isinstance(i, str)}
    written = {
        name
        for name, buffer in program.buffers.items()
        if buffer.kind in (BufferKind.INPUT, BufferKind.CONSTANT)
    }
    _verify_block(steps, program.buffers, sizes, written)
    for output in program.outputs:
        if isinstance(output, BufferView):
            _require_written("the outputs", [output.buffer], written, program.buffers)
    if isinstance(program, Schedule):
        _verify_memory(program)


def _verify_block(
    items: Sequence[Item],
    buffers: Mapping[str, Buffer],
    sizes: set[sympy.Symbol],
    written: set[str],
) -> None:
    """Check a block; ``written`` grows by what it writes."""
    for item in items:
        if isinstance(item, ExternCall):
            _require_written(item.name, extern_reads(item), written, buffers)
            written.update(extern_writes(item))
            sizes |= {definition.symbol for definition in item.defines}
            _require_known(item.name, item_symbols(item, buffers), sizes)
        elif isinstance(item, LoopNode):
            _require_written(item.name, item.reads, written, buffers)
            _Checker(item.name, buffers, {}, sizes).stage(
                item.loops, item.reduction_loops, item.body, bool(item.reduction_loops), written
            )
            written.update(item.writes)
        elif isinstance(item, Kernel):
            _verify_kernel(item, buffers, sizes, written)
        elif isinstance(item, ParallelKernels):
            _verify_independence(item)
            for kernel in item.kernels:
                _verify_kernel(kernel, buffers, sizes, written)
        else:
            _verify_region(item, buffers, sizes, written)


def _require_known(where: str, used: set[sympy.Symbol], sizes: set[sympy.Symbol]) -> None:
    unknown = used - sizes
    if unknown:
        raise VerificationError(f"{where}: unknown symbol {min(unknown, key=str)}")


def _verify_independence(item: ParallelKernels) -> None:
    writers = {name: kernel.name for kernel in item.kernels for name in kernel.writes}
    for kernel in item.kernels:
        for name in (*kernel.reads, *kernel.writes):
            if writers.get(name, kernel.name) != kernel.name:
                problem = f"{kernel.name} touches {name}, which {writers[name]} writes"
                raise VerificationError(f"{item.name}: {problem}")


def _verify_region(
    region: Region, buffers: Mapping[str, Buffer], sizes: set[sympy.Symbol], written: set[str]
) -> None:
    """A block's own buffers aren't there after it: a branch leaves what both blocks write."""
    if isinstance(region, Branch):
        _require_written(region.name, [region.predicate.buffer], written, buffers)
        after = [set(written), set(written)]
        for block, known in zip(region.blocks, after, strict=True):
            _verify_block(block, buffers, set(sizes), known)
        written |= after[0] & after[1]
        return
    _require_written(region.name, region.carried, written, buffers)
    inner = set(written)
    symbols = sizes | (set() if region.count is None else {region.count.symbol})
    _verify_block(region.condition, buffers, symbols, inner)
    if region.predicate is not None:
        _require_written(region.name, [region.predicate.buffer], inner, buffers)
    _verify_block(region.body, buffers, symbols, inner)


def _require_written(
    where: str, names: Iterable[str], written: set[str], buffers: Mapping[str, Buffer]
) -> None:
    for name in names:
        if name not in buffers:
            raise VerificationError(f"{where}: buffer {name} is not declared")
        if name not in written:
            raise VerificationError(f"{where}: buffer {name} is read before it is written")


def _verify_kernel(
    kernel: Kernel, buffers: Mapping[str, Buffer], sizes: set[sympy.Symbol], written: set[str]
) -> None:
    local = {b.name: b.dtype for b in kernel.local_buffers}
    for stage in kernel.stages:
        if stage.is_sequential and (len(stage.inner) > 1 or stage.is_reduction):
            raise VerificationError(f"{kernel.name}: a sequential stage has one inner loop")
        ends = stage.goes_on is not None and local.get(stage.goes_on) is torch.bool
        if (stage.is_sequential and not (stage.inner or ends)) or (stage.goes_on and not ends):
            raise VerificationError(f"{kernel.name}: nothing ends a sequential stage")
        checker = _Checker(kernel.name, buffers, local, sizes)
        checker.stage(kernel.outer, stage.inner, stage.body, stage.is_reduction, written)
        _, stage_writes = body_accesses(stage.body)
        for name in stage_writes:
            if name not in local and name not in kernel.writes:
                raise VerificationError(f"{kernel.name}: stores to {name}, not in its writes")
        written.update(stage_writes)
    missing = [n for n in kernel.writes if n not in written]
    if missing:
        raise VerificationError(f"{kernel.name}: {missing[0]} is in its writes but not stored")
    written.difference_update(local)


def _verify_memory(schedule: Schedule) -> None:
    from weft_loop_ir.schedule.memory_plan import allocated_by_extern

    external = allocated_by_extern(schedule.steps)
    late = defined_symbols(schedule.steps)
    for name, buffer in schedule.buffers.items():
        memory = schedule.memory
        source = memory.reused.get(name)
        if source in memory.offsets:
            raise VerificationError(
                f"memory plan: {name} takes over {source}, which is in the arena"
            )
        planned = [name in memory.offsets, source is not None, name in memory.alone].count(
            True
        ) == 1
        wanted = buffer.kind is BufferKind.INTERMEDIATE and name not in external
        wanted = wanted and not layout_symbols(buffer) & late
        if planned != wanted:
            problem = "has no place" if wanted else "has a place but isn't in the arena"
            raise VerificationError(f"memory plan: {name} {problem}")


class _Checker:
    def __init__(
        self,
        where: str,
        buffers: Mapping[str, Buffer],
        local: Mapping[str, torch.dtype],
        sizes: set[sympy.Symbol],
    ) -> None:
        self.where = where
        self.buffers = buffers
        self.local = local
        self.symbols = set(sizes)

    def stage(
        self,
        outer: Sequence[LoopVariable],
        inner: Sequence[LoopVariable],
        body: LoopBody,
        is_reduction: bool,
        written: set[str],
    ) -> None:
        variables = [v.symbol for v in (*outer, *inner)]
        if len(set(variables)) != len(variables):
            raise VerificationError(f"{self.where}: two loops share a symbol")
        self.symbols.update(variables)
        self.inner = {v.symbol for v in inner}
        self._body(body, is_reduction, set(written), set(self.symbols))

    def _fail(self, body: LoopBody, position: int, problem: str) -> None:
        lines = [f"{self.where}, instruction {position}: {problem}"]
        for k in range(max(0, position - 3), min(len(body.instructions), position + 4)):
            mark = "->" if k == position else "  "
            lines.append(f"  {mark} {k}: {describe(body.instructions[k])}")
        raise VerificationError("\n".join(lines))

    def _body(
        self, body: LoopBody, is_reduction: bool, written: set[str], symbols: set[sympy.Symbol]
    ) -> None:
        for position, instruction in enumerate(body.instructions):
            problem = self._operands(body, position, instruction)
            problem = problem or self._index(instruction, written, symbols)
            problem = problem or self._dtypes(body, instruction)
            problem = problem or self._reduction(body, position, instruction, is_reduction)
            if problem is not None:
                self._fail(body, position, problem)
            if instruction.operation == "indirect":
                symbols.add(instruction.arguments[1])
            elif instruction.operation == "masked":
                nested = instruction.arguments[1]
                if nested.result is None:
                    self._fail(body, position, "the nested body has no result")
                self._body(nested, False, written, set(symbols))
            elif instruction.operation == "store":
                written.add(instruction.arguments[0])

    def _operands(self, body: LoopBody, position: int, instruction: Instruction) -> str | None:
        for argument in instruction.arguments:
            if isinstance(argument, Value):
                if not 0 <= argument.index < position:
                    return f"value {argument.index} is not defined before it"
                if body.instructions[argument.index].dtype is None:
                    return f"instruction {argument.index} has no value"
        return None

    def _index(
        self, instruction: Instruction, written: set[str], symbols: set[sympy.Symbol]
    ) -> str | None:
        operation, arguments = instruction.operation, instruction.arguments
        if operation in ("load", "store"):
            name = arguments[0]
            if name not in self.buffers and name not in self.local:
                return f"buffer {name} is not declared"
            if operation == "load" and name not in written:
                return f"buffer {name} is read before it is written"
            index = arguments[1]
            if name in self.local and not (index.free_symbols <= self.inner | _size_symbols(index)):
                return f"local buffer {name} is indexed by more than the inner loops"
        elif operation in ("index_expr", "scalar"):
            index = arguments[0]
        else:
            return None
        unknown = [s for s in index.free_symbols if s not in symbols]
        return f"unknown symbol {unknown[0]} in {index}" if unknown else None

    def _dtype_of_buffer(self, name: str) -> torch.dtype:
        return self.local[name] if name in self.local else self.buffers[name].layout.dtype

    def _dtypes(self, body: LoopBody, instruction: Instruction) -> str | None:
        operation, arguments, dtype = (
            instruction.operation,
            instruction.arguments,
            instruction.dtype,
        )
        operands = [body.instructions[a.index].dtype for a in arguments if isinstance(a, Value)]
        if operation == "load":
            expected: torch.dtype | None = self._dtype_of_buffer(arguments[0])
        elif operation == "store":
            target = self._dtype_of_buffer(arguments[0])
            return f"stores {operands[0]} to {target}" if operands[0] != target else None
        elif operation in ("constant", "scalar", "index_expr", "to_dtype", "to_dtype_bitcast"):
            expected = arguments[1]
        elif operation == "where":
            if operands[0] != torch.bool:
                return f"the condition is {operands[0]}"
            operands, expected = operands[1:], operands[1]
        elif operation == "masked":
            if operands != [torch.bool]:
                return f"the mask is {operands[0]}"
            return None
        elif operation == "reduction":
            position = arguments[0] in ("argmax", "argmin")
            if operands[0] != arguments[1]:
                return f"reduces {operands[0]} in {arguments[1]}"
            expected = torch.int64 if position else arguments[1]
        elif operation in ("scan", "fold"):
            if operands != list(arguments[0].dtypes):
                return f"combines {operands} by a function of {arguments[0].dtypes}"
            return None
        elif operation in ops.UNARY_TO_BOOL + ops.BINARY_TO_BOOL:
            expected = torch.bool
        elif operation in ops.UNARY + ops.BINARY:
            expected = operands[0]
        elif operation in ("indirect", "rand", "randn"):
            return None
        else:
            return f"unknown operation {operation}"
        if dtype != expected:
            return f"gives {dtype}, expected {expected}"
        return _operand_problem(operation, operands)

    def _reduction(
        self, body: LoopBody, position: int, instruction: Instruction, is_reduction: bool
    ) -> str | None:
        if instruction.operation == "reduction":
            if not is_reduction:
                return "a reduction outside a reduction stage"
            if instruction.arguments[0] not in ops.REDUCTIONS:
                return f"unknown reduction {instruction.arguments[0]}"
            return None
        if instruction.operation in ("scan", "fold") and not (
            is_reduction and len(self.inner) == 1
        ):
            return "a scan outside a reduction stage of one inner loop"
        for argument in instruction.arguments:
            if isinstance(argument, Value):
                source = body.instructions[argument.index]
                if source.operation in _OF_ALL and instruction.operation != "store":
                    return "a reduction's result is used by more than a store"
        if instruction.operation == "store":
            value = body.instructions[instruction.arguments[2].index]
            if value.operation in _OF_ALL and instruction.arguments[1].free_symbols & self.inner:
                return "a reduction's result is stored at an index over the inner loops"
        return None


_OF_ALL = ("reduction", "fold")
"""Instructions whose result is known after the inner loops."""


def _operand_problem(operation: str, operands: Sequence[Any]) -> str | None:
    """The rules on operands of elementwise operations."""
    if operation in ("to_dtype", "to_dtype_bitcast"):
        return None
    if any(d in ops.STORAGE_ONLY for d in operands):
        return "arithmetic on a half-precision value"
    if any(d is not None and d.is_complex for d in operands):
        return "a complex value"
    if len(set(operands)) > 1:
        return f"operands of different dtypes: {', '.join(str(d) for d in operands)}"
    if operation == "truediv" and not operands[0].is_floating_point:
        return "truediv of integers"
    return None


def _size_symbols(index: sympy.Expr) -> set[sympy.Symbol]:
    return {s for s in index.free_symbols if not str(s).startswith(("i", "r"))}


def describe(instruction: Instruction) -> str:
    """One instruction as a line of text."""
    arguments = []
    for argument in instruction.arguments:
        if isinstance(argument, Value):
            arguments.append(f"%{argument.index}")
        elif isinstance(argument, LoopBody):
            arguments.append(f"<body of {len(argument.instructions)}>")
        elif isinstance(argument, torch.dtype):
            arguments.append(str(argument).removeprefix("torch."))
        else:
            arguments.append(str(argument))
    suffix = "" if instruction.dtype is None else f" : {str(instruction.dtype)[6:]}"
    return f"{instruction.operation}({', '.join(arguments)}){suffix}"

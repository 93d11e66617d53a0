"""The verifier: whether a loop graph or a schedule is well-formed."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence

import sympy
import torch

from weft_loop_ir.bodies import (
    Access,
    Combining,
    Indirect,
    Instruction,
    Load,
    LoopBody,
    Scalar,
    Store,
    Value,
)
from weft_loop_ir.data_symbols import defined_symbols, item_symbols, layout_symbols
from weft_loop_ir.expressions import foreign_part
from weft_loop_ir.format import format_instruction
from weft_loop_ir.ir import (
    Branch,
    Buffer,
    BufferKind,
    BufferView,
    ExternCall,
    FusedKernel,
    Kernel,
    LoopVariable,
    ParallelKernels,
    Region,
    Schedule,
)
from weft_loop_ir.loop_graph import Item, LoopGraph, LoopNode, extern_writes, touches


class SymbolKind(enum.Enum):
    """Who gives a symbol its value."""

    LOOP = "loop"
    """A loop whose iterations are independent."""
    INNER_LOOP = "inner loop"
    """A loop inside one iteration of these: over what is reduced, scanned, or kept in a row."""
    INDIRECT = "indirect"
    """A value of the body."""
    SIZE = "size"
    """The caller, or a call before: a size or a number of the program, a counter of a loop around it."""


class VerificationError(Exception):
    """The IR breaks a rule.  The message shows the instructions around the fault."""


def verify(program: LoopGraph | Schedule) -> None:
    """Check ``program``; raises :class:`VerificationError` at the first fault.

    Checked: every buffer is known and written before it is read; the dtype rules of
    the table of operations; values are defined before use; indices and sizes have no functions but those of
    index expressions, indices use symbols that are in scope;
    reductions are in reduction stages only, and their results only stored; the memory plan covers what it
    must and nothing else; kernels that run in parallel are independent; sequential stages have one loop.
    """
    steps: Sequence[Item] = program.steps if isinstance(program, Schedule) else program.nodes
    sizes = {s.symbol for s in program.symbols}
    sizes |= {i.symbol for i in program.inputs if not isinstance(i, str)}
    written = {name for name, buffer in program.buffers.items() if buffer.kind.is_given}
    for name, buffer in program.buffers.items():
        _require_forms(name, (*buffer.layout.size, *buffer.layout.stride))
    _verify_block(steps, program.buffers, sizes, written)
    for output in program.outputs:
        if isinstance(output, BufferView):
            _require_forms("the outputs", (*output.size, *output.stride, output.offset))
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
            _require_written(item.name, item.reads, written, buffers)
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


def _require_forms(where: str, expressions: Iterable[sympy.Expr]) -> None:
    foreign = _foreign(expressions)
    if foreign is not None:
        raise VerificationError(f"{where}: {foreign}")


def _foreign(expressions: Iterable[sympy.Expr]) -> str | None:
    """What is wrong with the first expression that holds a function of another package."""
    part = next(filter(None, map(foreign_part, expressions)), None)
    return None if part is None else f"{type(part)} {part} in an index expression"


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
    if isinstance(kernel, FusedKernel):
        _require_written(kernel.name, kernel.reads, written, buffers)
        _verify_expansion(kernel, buffers, sizes, written)
        return
    local = {b.name: b.dtype for b in kernel.local_buffers}
    for stage in kernel.stages:
        if stage.is_sequential and (len(stage.inner) > 1 or stage.is_reduction):
            raise VerificationError(f"{kernel.name}: a sequential stage has one inner loop")
        ends = stage.goes_on is not None and local.get(stage.goes_on) is torch.bool
        if (stage.is_sequential and not (stage.inner or ends)) or (stage.goes_on and not ends):
            raise VerificationError(f"{kernel.name}: nothing ends a sequential stage")
        checker = _Checker(kernel.name, buffers, local, sizes)
        checker.stage(kernel.outer, stage.inner, stage.body, stage.is_reduction, written)
        for name in stage.body.writes:
            if name not in local and name not in kernel.writes:
                raise VerificationError(f"{kernel.name}: stores to {name}, not in its writes")
        written.update(stage.body.writes)
    missing = [n for n in kernel.writes if n not in written]
    if missing:
        raise VerificationError(f"{kernel.name}: {missing[0]} is in its writes but not stored")
    written.difference_update(local)


def _verify_expansion(
    kernel: FusedKernel, buffers: Mapping[str, Buffer], sizes: set[sympy.Symbol], written: set[str]
) -> None:
    """Check the loop nests that a kernel stands for: they read no other buffers, and write all of its."""
    expansion = kernel.expanded(buffers)
    known = set(kernel.reads)
    for nest in expansion.kernels:
        _require_written(nest.name, nest.reads, known, {**buffers, **expansion.buffers})
        _verify_kernel(nest, {**buffers, **expansion.buffers}, sizes, known)
    if not known.issuperset(kernel.writes):
        raise VerificationError(f"{kernel.name}: not all of its writes are stored")
    written.update(kernel.writes)


def _verify_memory(schedule: Schedule) -> None:
    from weft_loop_ir.schedule.memory_plan import allocated_by_extern

    external = allocated_by_extern(schedule.steps)
    late, used = defined_symbols(schedule.steps), touches(schedule.steps)
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
        wanted = buffer.kind is BufferKind.INTERMEDIATE and name in used and name not in external
        wanted = wanted and not layout_symbols(buffer) & late
        if planned != wanted:
            problem = "has no place" if wanted else "has a place but isn't in the arena"
            raise VerificationError(f"memory plan: {name} {problem}")


class _Checker:
    """Checks bodies.  ``sizes`` are the symbols of the program; loops and values bind others."""

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
        self.kinds = dict.fromkeys(sizes, SymbolKind.SIZE)
        self.body = LoopBody(())

    def stage(
        self,
        outer: Sequence[LoopVariable],
        inner: Sequence[LoopVariable],
        body: LoopBody,
        is_reduction: bool,
        written: set[str],
    ) -> None:
        _require_forms(self.where, (v.size for v in (*outer, *inner)))
        variables = [v.symbol for v in (*outer, *inner)]
        if len({*self.kinds, *variables}) != len(self.kinds) + len(variables):
            raise VerificationError(
                f"{self.where}: two loops, or a loop and a size, share a symbol"
            )
        self.kinds |= dict.fromkeys((v.symbol for v in outer), SymbolKind.LOOP)
        self.kinds |= dict.fromkeys((v.symbol for v in inner), SymbolKind.INNER_LOOP)
        self.is_row = len(inner) == 1
        self._body(body, is_reduction, set(written), dict(self.kinds))

    # -- what rules ask --------------------------------------------------------------------------------

    def dtype_of(self, value: Value) -> torch.dtype:
        dtype = self.body.at(value).dtype
        assert dtype is not None
        return dtype

    def buffer_dtype(self, name: str) -> torch.dtype:
        return self.local[name] if name in self.local else self.buffers[name].layout.dtype

    # -- bodies ----------------------------------------------------------------------------------------

    def _fail(self, position: int, problem: str) -> None:
        body = self.body
        lines = [f"{self.where}, instruction {position}: {problem}"]
        for k in range(max(0, position - 3), min(len(body.instructions), position + 4)):
            mark = "->" if k == position else "  "
            lines.append(f"  {mark} {format_instruction(k, body.instructions[k])}")
        raise VerificationError("\n".join(lines))

    def _body(
        self,
        body: LoopBody,
        is_reduction: bool,
        written: set[str],
        kinds: dict[sympy.Symbol, SymbolKind],
    ) -> None:
        for position, instruction in enumerate(body.instructions):
            self.body = body
            problem = (
                self._operands(position, instruction)
                or self._index(instruction, written, kinds)
                or self._dtypes(instruction)
                or self._reduction(instruction, is_reduction, kinds)
            )
            if problem is not None:
                self._fail(position, problem)
            if isinstance(instruction, Indirect):
                kinds[instruction.symbol] = SymbolKind.INDIRECT
            elif isinstance(instruction, Store):
                written.add(instruction.buffer)
            for nested in instruction.bodies:
                self._body(nested, False, written, dict(kinds))

    def _operands(self, position: int, instruction: Instruction) -> str | None:
        for value in instruction.operands:
            if not 0 <= value.index < position:
                return f"value {value.index} is not defined before it"
            if self.body.at(value).dtype is None:
                return f"instruction {value.index} has no value"
        for nested in instruction.bodies:
            if nested.result is None:
                return "the nested body has no result"
        return None

    def _index(
        self, instruction: Instruction, written: set[str], kinds: dict[sympy.Symbol, SymbolKind]
    ) -> str | None:
        if isinstance(instruction, Access):
            name = instruction.buffer
            if name not in self.buffers and name not in self.local:
                return f"buffer {name} is not declared"
            if isinstance(instruction, Load) and name not in written:
                return f"buffer {name} is read before it is written"
            used = {kinds.get(symbol) for symbol in instruction.index.free_symbols}
            if name in self.local and not used <= {SymbolKind.INNER_LOOP, SymbolKind.SIZE, None}:
                return f"local buffer {name} is indexed by more than the inner loops"
        foreign = _foreign(instruction.expressions)
        if foreign is not None:
            return foreign
        symbols = instruction.free_symbols
        if isinstance(instruction, Scalar):
            symbols |= instruction.number.free_symbols
        if isinstance(instruction, Indirect):
            if instruction.symbol in kinds:
                return f"{instruction.symbol} is bound before"
            symbols.remove(instruction.symbol)
        unknown = min((s for s in symbols if s not in kinds), key=str, default=None)
        if unknown is None:
            return None
        where = ", ".join(map(str, instruction.expressions))
        return f"unknown symbol {unknown} in {where or instruction.operation}"

    def _dtypes(self, instruction: Instruction) -> str | None:
        operation = instruction.operation
        operands = [self.dtype_of(value) for value in instruction.operands]
        problem = operation.check(instruction, operands)
        if problem is not None:
            return problem
        if isinstance(instruction, Store):
            target = self.buffer_dtype(instruction.buffer)
            return f"stores {operands[0]} to {target}" if operands[0] != target else None
        expected = operation.result(instruction.arguments, self)
        if instruction.dtype != expected:
            return f"gives {instruction.dtype}, expected {expected}"
        return None

    def _reduction(
        self, instruction: Instruction, is_reduction: bool, kinds: dict[sympy.Symbol, SymbolKind]
    ) -> str | None:
        if instruction.operation.combines:
            if not is_reduction:
                return f"a {instruction.operation} outside a reduction stage"
            if isinstance(instruction, Combining) and not self.is_row:
                return "a scan outside a reduction stage of one inner loop"
        late = [v for v in instruction.operands if self.body.at(v).operation.ends_loop]
        if late and not isinstance(instruction, Store):
            return "a reduction's result is used by more than a store"
        if late and isinstance(instruction, Store):
            inner = {s for s, kind in kinds.items() if kind is SymbolKind.INNER_LOOP}
            if instruction.index.free_symbols & inner:
                return "a reduction's result is stored at an index over the inner loops"
        return None

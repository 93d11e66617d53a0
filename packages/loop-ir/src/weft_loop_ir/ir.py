"""The types of the loop-level IR: loop bodies, kernels and the schedule.

A :class:`Schedule` is what a code generator receives.  It is plain data: every loop body is a recorded
straight-line program over the operations of :mod:`weft_loop_ir.ops`, every index is a SymPy expression over
loop symbols and size symbols, a ``scalar`` is a
:class:`~weft_loop_ir.SizeFloat`, and every buffer has a fixed layout.  A code generator, an analysis and the
reference evaluator are all handlers of ``ops`` that replay bodies (:meth:`LoopBody.replay`).

Index expressions are made of ``Integer``, ``Symbol``, ``Add``, ``Mul``, ``Pow``, ``Min``, ``Max`` and the two
functions of :mod:`weft_loop_ir.expressions`, ``FloorDiv`` and ``Mod`` (floor semantics, positive divisor).

A pointwise kernel has all its loops in ``outer`` and one stage with ``inner=()``.  A kernel with reductions
has the kept dimensions in ``outer`` (none for a full reduction) and the reduced ones in ``Stage.inner``.  The
result of a ``reduction`` is the operand of ``store`` only, at an index over the outer symbols (or in a local
buffer of size 1): arithmetic on it is in a later stage with ``inner=()``.  A buffer may have several writers
(the parts of a concatenation, a copy followed by a scatter).

Added since the first version: ``ExternCall.out_variant``, ``Schedule.constants``, ``Branch`` and ``Loop``,
``ParallelKernels`` (only where :class:`~weft_loop_ir.ScheduleOptions` ask for it).
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Self

import sympy
import torch

from weft_loop_ir._torch import OpOverload, named_arguments
from weft_loop_ir.bodies.instructions import Access, Instruction, LoopBody
from weft_loop_ir.expressions import contiguous_stride


@dataclass(frozen=True)
class Layout:
    """Where the elements of a buffer lie.  ``size``, ``stride`` and ``offset`` count elements."""

    device: torch.device
    dtype: torch.dtype
    size: tuple[sympy.Expr, ...]
    stride: tuple[sympy.Expr, ...]
    offset: sympy.Expr = sympy.S.Zero


class BufferKind(enum.Enum):
    """Who makes a buffer's memory, and how long it lives."""

    INPUT = "input"  # handed over by the caller at each call
    CONSTANT = "constant"  # a graph input bound once when the program is made (parameter, buffer)
    INTERMEDIATE = (
        "intermediate"  # lives in the arena, or is allocated by the extern call that makes it
    )
    OUTPUT = "output"  # allocated fresh each call and returned

    @property
    def is_given(self) -> bool:
        """Whether the buffer holds something before the first step."""
        return self in (BufferKind.INPUT, BufferKind.CONSTANT)


@dataclass(frozen=True)
class Buffer:
    """Memory that a schedule's steps read and write under a name."""

    name: str
    kind: BufferKind
    layout: Layout


@dataclass(frozen=True)
class LoopVariable:
    """A loop ``for symbol in range(size)``; the symbol is an integer, not negative."""

    symbol: sympy.Symbol
    size: sympy.Expr


@dataclass(frozen=True)
class Stage:
    """One inner loop nest of a kernel, run to its end before the next stage of the same outer iteration.

    In a reduction stage, ``reduction`` instructions accumulate over ``inner``; a ``store`` of a value
    computed from a reduction's result runs once, after the inner loops.  A reduction's result may be used
    only by ``store`` in its own stage.  With ``inner`` empty the body runs once per outer iteration.
    ``scan`` instructions are in reduction stages with one inner loop; their results are values like others.

    Iterations of ``inner`` may be reordered, but for a sequential stage, whose one inner loop may read what
    earlier iterations of it have stored: a loop of the program, with its state in local buffers.
    ``goes_on`` names one of them, a bool, that ends it: an outer iteration makes iterations while it is set,
    without ``inner`` as many as that takes.  One that is over may be made to go on beside others, which
    leaves its state as it is.
    """

    inner: tuple[LoopVariable, ...]
    body: LoopBody
    is_reduction: bool = False
    is_sequential: bool = False
    goes_on: str | None = None


@dataclass(frozen=True)
class LocalBuffer:
    """A buffer that lives for one iteration of a kernel's outer loops only.

    ``size`` is the element count (1 for a scalar, the inner extent for a row).  It is indexed by an
    expression over the inner symbols alone.
    """

    name: str
    dtype: torch.dtype
    size: sympy.Expr


@dataclass(frozen=True)
class Kernel:
    """A fused loop nest: ``for outer...: for stage in stages: for stage.inner...: stage.body``.

    Iterations of ``outer`` are independent of each other unless a store has an atomic mode.
    ``origins`` names the FX nodes that the kernel computes.
    """

    name: str
    outer: tuple[LoopVariable, ...]
    stages: tuple[Stage, ...]
    local_buffers: tuple[LocalBuffer, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    origins: tuple[str, ...]

    @classmethod
    def of_stages(
        cls,
        name: str,
        outer: Sequence[LoopVariable],
        stages: Sequence[Stage],
        local: Sequence[LocalBuffer] = (),
        origins: Sequence[str] = (),
    ) -> Kernel:
        """One that reads and writes what its stages do, but for its ``local`` buffers."""
        own = {buffer.name for buffer in local}
        read = dict.fromkeys(n for s in stages for n in s.body.reads if n not in own)
        written = dict.fromkeys(n for s in stages for n in s.body.writes if n not in own)
        touched = tuple(read), tuple(written)
        return Kernel(name, tuple(outer), tuple(stages), tuple(local), *touched, tuple(origins))

    @property
    def inner_loops(self) -> tuple[LoopVariable, ...]:
        """The loops of its stages, stage by stage."""
        return tuple(v for stage in self.stages for v in stage.inner)

    @property
    def all_loops(self) -> tuple[LoopVariable, ...]:
        """Its outer loops, and those of its stages."""
        return (*self.outer, *self.inner_loops)

    @property
    def ranges(self) -> tuple[tuple[LoopVariable, ...], ...]:
        """What stages loop over, each once."""
        return tuple(dict.fromkeys(stage.inner for stage in self.stages if stage.inner))

    @property
    def local_names(self) -> set[str]:
        """The names of its local buffers."""
        return {buffer.name for buffer in self.local_buffers}

    @property
    def bodies(self) -> tuple[LoopBody, ...]:
        """Those of its stages."""
        return tuple(stage.body for stage in self.stages)

    def walk(self) -> Iterator[Instruction]:
        """Every instruction, as :meth:`LoopBody.walk` gives them."""
        return (i for body in self.bodies for i in body.walk())

    def holds(self, *forms: type[Instruction]) -> bool:
        """Whether an instruction has one of ``forms``, nested bodies included."""
        return any(body.holds(*forms) for body in self.bodies)

    def accesses(self) -> list[Access]:
        """Loads and stores in order, nested bodies included."""
        return [access for body in self.bodies for access in body.accesses()]

    def places_of(self, name: str) -> set[tuple[tuple[LoopVariable, ...], sympy.Expr]]:
        """Where it accesses the buffer ``name``: what the stage loops over, and the index."""
        stages = (
            (stage.inner, access) for stage in self.stages for access in stage.body.accesses()
        )
        return {(inner, access.index) for inner, access in stages if access.buffer == name}

    def with_ranges(
        self, change: Callable[[tuple[LoopVariable, ...]], tuple[LoopVariable, ...]]
    ) -> Self:
        """The same with what each stage loops over changed."""
        stages = tuple(replace(stage, inner=change(stage.inner)) for stage in self.stages)
        return replace(self, stages=stages)

    @property
    def pointwise_body(self) -> LoopBody | None:
        """Its body, if it is one that runs once for each outer iteration."""
        is_pointwise = len(self.stages) == 1 and not self.stages[0].inner
        return self.stages[0].body if is_pointwise else None

    @property
    def free_sizes(self) -> tuple[sympy.Symbol, ...]:
        """The sizes and numbers of the program that it depends on: what no loop and no value binds."""
        free = {s for v in self.all_loops for s in v.size.free_symbols}
        free.update(*(buffer.size.free_symbols for buffer in self.local_buffers))
        free.update(*(body.free_symbols for body in self.bodies))
        bound = {v.symbol for v in self.all_loops}
        bound.update(*(body.bound_symbols for body in self.bodies))
        return tuple(sorted(free - bound, key=lambda s: str(s.name)))


@dataclass(frozen=True)
class Expansion:
    """Kernels of ordinary loop nests, in order, and the buffers that only they use."""

    buffers: Mapping[str, Buffer]
    kernels: tuple[Kernel, ...]


@dataclass(frozen=True)
class FusedKernel(Kernel):
    """A kernel that does what several do, without the memory between them."""

    def expanded(self, buffers: Mapping[str, Buffer]) -> Expansion:
        """The loop nests that it stands for, on the ``buffers`` of its program."""
        raise NotImplementedError


@dataclass(frozen=True)
class ParallelKernels:
    """Kernels none of which touches what another one writes: one parallel region, or one launch, for all."""

    name: str
    kernels: tuple[Kernel, ...]


@dataclass(frozen=True)
class BufferView:
    """A strided window on a buffer, as an extern call takes it or a graph output returns it."""

    buffer: str
    size: tuple[sympy.Expr, ...]
    stride: tuple[sympy.Expr, ...]
    offset: sympy.Expr
    dtype: torch.dtype


@dataclass(frozen=True)
class SymbolDefinition:
    """``symbol`` is a call's result at position ``result``, a number, or its size in ``dimension``."""

    symbol: sympy.Symbol
    result: int
    dimension: int | None


@dataclass(frozen=True)
class Requirement:
    """What later steps rely on: ``expression`` is ``"nonnegative"``, ``"zero"`` or ``"nonzero"``.

    A program raises RuntimeError with ``message`` where it is not.
    """

    relation: str
    expression: sympy.Expr
    message: str

    @property
    def comparison(self) -> str:
        """The relation behind the expression, as C++ and Python write it: ``">= 0"``."""
        return {"nonnegative": ">= 0", "zero": "== 0", "nonzero": "!= 0"}[self.relation]

    def holds(self, value: int) -> bool:
        """Whether it is met where the expression is ``value``."""
        return {"nonnegative": value >= 0, "zero": value == 0, "nonzero": value != 0}[self.relation]


@dataclass(frozen=True)
class ExternCall:
    """A call of an ATen or custom operator that weft does not generate code for.

    ``arguments`` and ``keywords`` are in the operator schema's order and form, nested lists included,
    with :class:`BufferView` in place of tensors, SymPy expressions in place of symbolic ints and
    :class:`~weft_loop_ir.SizeFloat` in place of symbolic floats.
    ``outputs`` names the buffers that the results become (None for a result that is not a tensor or not
    used).  ``reason`` says why the operator is extern ("library" for a contraction, else the missing rule).
    """

    name: str
    operator: OpOverload
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    outputs: tuple[str | None, ...]
    reason: str
    origin: str
    out_variant: OpOverload | None = None
    """The ``out=`` overload that writes the single output into given memory (an arena or OUTPUT buffer);
    None: the call allocates its results, and their buffers are not in ``MemoryPlan.offsets``."""
    holds: tuple[str, ...] = ()
    """Buffers that have to keep their memory until this call, besides those that it takes."""
    defines: tuple[SymbolDefinition, ...] = ()
    """Sizes and numbers that depend on data, known after this call (``_local_scalar_dense``: a number)."""
    requires: tuple[Requirement, ...] = ()
    """What is checked right after that."""

    @property
    def named_arguments(self) -> dict[str, Any]:
        """``arguments`` and ``keywords`` by the names of the operator's schema; defaults are left out."""
        return named_arguments(self.operator, self.arguments, self.keywords)

    @property
    def leaves(self) -> list[Any]:
        """What its arguments and keywords hold, in order, those in lists one by one."""
        return leaves_of([*self.arguments, *self.keywords.values()])

    @property
    def views(self) -> list[BufferView]:
        """The tensors that it takes, in order."""
        return [leaf for leaf in self.leaves if isinstance(leaf, BufferView)]

    @functools.cached_property
    def reads(self) -> tuple[str, ...]:
        """The names of the buffers that it reads or holds, in order, once each."""
        return tuple(dict.fromkeys([*(view.buffer for view in self.views), *self.holds]))

    def with_leaves(self, change: Callable[[Any], Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments and keywords with each leaf changed in the order of :attr:`leaves`, lists kept."""
        arguments = [with_leaves(value, change) for value in self.arguments]
        return arguments, {n: with_leaves(value, change) for n, value in self.keywords.items()}

    def mapped(self, change: Callable[[Any], Any]) -> ExternCall:
        """The same call with each leaf of its arguments changed."""
        arguments, keywords = self.with_leaves(change)
        return replace(self, arguments=tuple(arguments), keywords=keywords)

    @property
    def out_name(self) -> str:
        """The keyword by which :attr:`out_variant` is given the memory of its result."""
        assert self.out_variant is not None
        return next(a.name for a in self.out_variant._schema.arguments if a.is_out)


def leaves_of(argument: Any) -> list[Any]:
    """What an operator's argument holds, nested lists and tuples opened, in order."""
    if isinstance(argument, list | tuple):
        return [leaf for item in argument for leaf in leaves_of(item)]
    return [argument]


def with_leaves(argument: Any, change: Callable[[Any], Any]) -> Any:
    """An operator's argument with each of its leaves changed, lists and tuples kept."""
    if isinstance(argument, list | tuple):
        return type(argument)(with_leaves(item, change) for item in argument)
    return change(argument)


def is_dense(place: Layout | BufferView, order: Sequence[int] | None = None) -> bool:
    """Whether elements lie one after another from the start of a buffer, dimensions in ``order``."""
    dimensions = order or range(len(place.size))
    size, stride = ([numbers[k] for k in dimensions] for numbers in (place.size, place.stride))
    steps = zip(size, stride, contiguous_stride(tuple(size)), strict=True)
    fits = all(n == 1 or sympy.expand(step - dense) == 0 for n, step, dense in steps)
    return fits and place.offset == 0


Block = tuple[Any, ...]
"""What a region runs, in order: steps in a :class:`Schedule`, nodes in a loop graph; regions nest."""


@dataclass(frozen=True)
class Branch:
    """``if predicate: true_block else: false_block``; ``predicate`` is one bool element."""

    name: str
    predicate: BufferView
    true_block: Block
    false_block: Block
    origin: str

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (self.true_block, self.false_block)

    def with_blocks(self, true_block: Block, false_block: Block) -> Branch:
        return replace(self, true_block=true_block, false_block=false_block)


@dataclass(frozen=True)
class Count:
    """The counter of a loop: ``symbol`` is ``start`` in the first iteration, ``step`` more in each later one.

    With ``stop`` the loop ends before the first value that is not below it (above it for a negative step).
    ``is_descending``: a symbolic step is negative in every call, rather than positive.
    """

    symbol: sympy.Symbol
    start: sympy.Expr
    step: int | sympy.Expr
    stop: sympy.Expr | None
    is_descending: bool = False

    @property
    def ascends(self) -> bool:
        """Whether the counter grows."""
        return self.step > 0 if isinstance(self.step, int) else not self.is_descending


@dataclass(frozen=True)
class Loop:
    """A loop of the host program, whose iterations run one after another.

    Each iteration runs ``condition``, ends the loop where the bool element ``predicate`` is false (None: the
    counter alone decides), and runs ``body``.  ``carried`` are the buffers that hold state from one iteration
    to the next: steps before the loop fill them, the body reads and overwrites them, and what they hold
    after the loop is its result.
    """

    name: str
    count: Count | None
    condition: Block
    predicate: BufferView | None
    body: Block
    carried: tuple[str, ...]
    origin: str

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (self.condition, self.body)

    @property
    def only_count(self) -> Count | None:
        """The counter, where it alone ends the loop; else None."""
        is_open = self.predicate is not None or self.condition
        return None if is_open or self.count is None or self.count.stop is None else self.count

    def with_blocks(self, condition: Block, body: Block) -> Loop:
        return replace(self, condition=condition, body=body)


Region = Branch | Loop
Step = Kernel | ParallelKernels | ExternCall | Region


@dataclass(frozen=True)
class SymbolInput:
    """A graph input that is a symbolic number, or a tensor's size or stride that defines a symbol."""

    symbol: sympy.Symbol
    input: (
        str | None
    )  # the buffer whose size defines it; None: the input at ``position`` is a number
    dimension: int
    position: int
    is_stride: bool = False  # the stride of ``dimension`` defines it, not the size
    hint: int | None = (
        None  # its value in the call that the graph was made for, where that is known
    )


def size_hints(symbols: Iterable[SymbolInput]) -> dict[sympy.Symbol, sympy.Integer]:
    """The values of integers among ``symbols`` in the call that the graph was made for, where known.

    They may choose between programs that are right for all values; nothing else may depend on them.
    """
    return {s.symbol: sympy.Integer(s.hint) for s in symbols if s.hint is not None}


@dataclass(frozen=True)
class MemoryPlan:
    """Byte offsets of intermediate buffers in one arena, and which others have memory from where.

    ``alone`` are allocated before their first write and freed after their last use, as results of calls are.
    ``reused`` gives, for a buffer that overwrites another one that is not in the arena, that one; both span
    as many bytes.
    """

    arena_bytes: sympy.Expr
    offsets: Mapping[str, sympy.Expr]
    reused: Mapping[str, str] = field(default_factory=dict)
    alone: Set[str] = frozenset()


@dataclass(frozen=True)
class Schedule:
    """A program: steps in order of execution over named buffers.

    ``inputs`` lists the graph's placeholders in order: a buffer name, or a :class:`SymbolInput` for a
    number.  ``outputs`` lists the graph's results in order: a :class:`BufferView` (a view of an input
    included), an integer expression, or a constant (None included).
    """

    name: str
    inputs: tuple[str | SymbolInput, ...]
    symbols: tuple[SymbolInput, ...]
    buffers: Mapping[str, Buffer]
    steps: tuple[Step, ...]
    outputs: tuple[BufferView | sympy.Expr | int | float | bool | None, ...]
    memory: MemoryPlan
    fallbacks: Mapping[str, int] = field(default_factory=dict)  # extern operator -> count
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Tensors that the graph module itself holds (``get_attr``): CONSTANT buffers that are not inputs."""
    private: frozenset[str] = frozenset()
    """Buffers of results that the caller gives to nobody, and of no others: what backward reads, say."""
    gives_gradients: bool = False
    """Whether results are gradients, which a step of training lets go of before the next asks for them."""

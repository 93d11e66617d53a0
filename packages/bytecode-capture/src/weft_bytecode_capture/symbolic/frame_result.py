"""What goes into the symbolic evaluation of one frame, and what comes out of it."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from weft_guards import Guard

from ..captured_graph import CapturedGraph, GraphBreak, UnkeptRegion
from ..frame.emitter import Emitter
from .graph.recovery import Recovery
from .shapes import ShapeSymbols, ValueHistory
from .variables.base import Variable


@dataclass(frozen=True)
class FrameInput:
    """A frame as the hook finds it: arguments bound, nothing run.

    ``arguments`` maps names of argument slots (positional, keyword-only, ``*args``, ``**kwargs``) to
    values, in slot order.  ``code`` may be a resume function's: its arguments then include the values of
    the interrupted frame's stack and locals, and its first instructions push them and jump.
    ``history`` is what earlier compilations of ``code`` have seen.  ``separate_histories``: the caller may
    ask for the place in autograd's graph of each tensor that the frame returns.
    """

    code: types.CodeType
    arguments: Mapping[str, Any]
    globals: dict[str, Any]
    builtins: Mapping[str, Any]
    closure: Mapping[str, types.CellType]
    history: ValueHistory = field(default_factory=ValueHistory)
    separate_histories: bool = False


@dataclass(frozen=True)
class CaptureOptions:
    """How to capture.

    ``fullgraph``: a graph break is an error.
    ``dynamic``: None makes sizes and numbers symbolic once they have changed, True from the beginning, False
    never.
    ``marks``: users' marks on tensors count.
    ``inline_depth``: calls nested deeper are not inlined.
    ``recompile_limit``: how many entries a code object may have before it runs as it is; those whose objects
    have died count no more.
    ``keep_control_flow``: branches and loops on tensors' values become regions of the graph, and so do long
    loops over a range or a tensor's rows.
    ``rolled_loop_length``: iterations from which such a loop is long; the others are unrolled.
    ``region_devices``: the types of devices of which a region may take tensors, those whose code generator
    has loops and branches.
    ``eager_in_training``: functions of torch whose calls that need gradients stay Python's, because the
    stages behind cannot differentiate them.
    ``steps_in_training``: likewise recurrent functions of more steps, over layers and directions, than the
    number beside them, and where the steps are not known.
    ``sparse_gradients``: likewise functions where their argument ``sparse``, whose position is beside the
    function, is true.
    ``backend_folders``: folders of packages whose code runs inside compiled calls, a backward pass for one,
    and is not captured.
    ``check_operands``: raises for an operator and fake arguments that eager refuses and the operator's fake
    lets pass; the program then runs as it is from there, with eager's own error.
    ``python_limit``: a frame that evaluates so many instructions and meets no tensor is left to CPython; an
    element of a sequence from outside counts as ten.
    ``data_dependent_scalars``: numbers that the program reads from tensors (``item()``) are symbols of the
    graph.  What capture relies on is checked when the graph runs; where it does not hold the frame runs as it
    was written.
    ``data_dependent_sizes``: so are sizes that depend on data (``nonzero``, masks).
    ``error_on_recompile``: code that has an entry and needs another raises :class:`RecompileError`.
    ``guard_filter``: which of a frame's guards are checked, a truth value for each; what the others say is
    relied on unchecked.
    ``guard_libraries``: functions and classes that library code finds in library modules are guarded too, so
    that patching them is noticed (see policy.py).
    ``read_contents``: what small tensors of integers hold is a constant where Python needs it, and guarded;
    None: in frames that would break otherwise.
    ``assume_decisions``: decisions on data that no region holds fall as they do in the first call, and the
    graph checks it; None: in frames that would break otherwise.
    """

    fullgraph: bool = False
    dynamic: bool | None = None
    marks: bool = True
    inline_depth: int = 200
    recompile_limit: int = 8
    keep_control_flow: bool = True
    rolled_loop_length: int = 16
    region_devices: frozenset[str] = frozenset({"cpu", "cuda", "meta"})
    eager_in_training: frozenset[Callable[..., object]] = frozenset()
    steps_in_training: Mapping[Callable[..., object], int] = field(default_factory=dict)
    sparse_gradients: Mapping[Callable[..., object], int] = field(default_factory=dict)
    backend_folders: frozenset[str] = frozenset()
    check_operands: Callable[[Any, Sequence[Any], Mapping[str, Any]], None] | None = None
    python_limit: int = 50_000
    data_dependent_scalars: bool = True
    data_dependent_sizes: bool = True
    error_on_recompile: bool = False
    guard_filter: Callable[[Sequence[Guard]], Sequence[bool]] | None = None
    guard_libraries: bool = False
    read_contents: bool | None = None
    assume_decisions: bool | None = False


class Replayable(Protocol):
    """Side effects on objects that existed before the frame, and on globals and cells."""

    def emit(self, emitter: Emitter) -> None:
        """Emit code that replays every effect, in the order of the program."""

    @property
    def names(self) -> tuple[str, ...]:
        """What changes that was there before the call, by where it is read, and what is called."""
        ...


@dataclass(frozen=True)
class Return:
    """The frame ran to a return of ``value``."""

    value: Variable


@dataclass(frozen=True)
class Raise:
    """The frame ended by an exception that its caller must see; ``exception`` is the exception object.

    ``instruction`` is the root frame's instruction that raised (index in ``dis`` order), for the line in
    the traceback.
    """

    exception: Variable
    instruction: int | None = None


@dataclass(frozen=True)
class Break:
    """The frame stopped just before the instruction at ``instruction`` (index in ``dis`` order).

    ``stack`` is the value stack, bottom first, None for a NULL that CPython's calling convention pushed;
    ``locals`` the bound locals that are live or have a source, cell contents excluded; ``cells`` maps
    the names of the frame's own cell variables to the contents' variables (None: an empty cell).
    ``cell_variables`` maps them to the variables of the cells themselves, so that closures made before
    the break share the frame's cells.
    ``handled`` is the exception that the frame's innermost except clause handles, if it stopped in one.
    """

    instruction: int
    stack: tuple[Variable | None, ...]
    locals: Mapping[str, Variable]
    cells: Mapping[str, Variable | None]
    reason: GraphBreak
    cell_variables: Mapping[str, Variable] = field(default_factory=dict)
    handled: Variable | None = None


@dataclass(frozen=True)
class FrameResult:
    """``graph`` is None when the frame has no tensor operation; ``graph_outputs`` are the variables that
    the graph's outputs become, in order.  ``graph.input_sources`` says what to call the graph with.
    ``recovery``: if the graph raises, this is put back, and the frame runs as the program was written, which
    handles the exception where it was raised.  ``instruction_count`` is how many instructions were evaluated,
    those of inlined calls included.
    ``shapes`` are the symbolic sizes and numbers: the graph is compiled by their rules, and asked for their
    guards after that, as its compilation may come to rely on more.
    ``unkept_regions`` are branches and loops that are not in the graph though they were tried, and long loops
    for which no region was.
    """

    graph: CapturedGraph | None
    graph_outputs: tuple[Variable, ...]
    guards: tuple[Guard, ...]
    side_effects: Replayable
    ending: Return | Raise | Break
    instruction_count: int = 0
    recovery: Recovery | None = None
    shapes: ShapeSymbols | None = None
    release: Callable[[], None] = lambda: None
    """Lets go of the program's objects, whose finalizers may not wait for the garbage collector."""

    unkept_regions: tuple[UnkeptRegion, ...] = ()
    assumed: tuple[tuple[types.CodeType, int], ...] = ()
    """Places of decisions on data that fall as in this call, which the graph checks."""

    has_tensors: bool = True
    """Whether the frame met a tensor, although there may be no operation on it."""

    separate_in: frozenset[types.CodeType] = frozenset()
    """Functions called behind the break: each of their results needs its own place in autograd's graph."""


@dataclass(frozen=True)
class Skip:
    """The frame is left to CPython; ``forever`` if no other arguments could change that."""

    reason: str
    forever: bool = True
    graph_break: GraphBreak | None = field(default=None)

"""What comes out of the symbolic evaluation of one frame."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from weft_guards import Guard, Source

from ..captured_graph import CapturedGraph, GraphBreak, UnkeptRegion
from ..frame.emitter import Emitter
from .capture_options import CaptureOptions as CaptureOptions
from .capture_options import FrameInput as FrameInput
from .graph.recovery import Recovery
from .shapes import ShapeSymbols
from .variables.base import Variable


class Replayable(Protocol):
    """Side effects on objects that existed before the frame, and on globals and cells."""

    def emit(self, emitter: Emitter) -> None:
        """Emit code that replays every effect, in the order of the program."""

    @property
    def names(self) -> tuple[str, ...]:
        """What changes that was there before the call, by where it is read, and what is called."""
        ...

    def as_given(self, source: Source) -> Source:
        """Where a tensor is found as it is on entry, if its layout changes."""
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

    expected_errors: tuple[type[Exception], ...] = ()
    """What the graph may raise where the frame, run as it was written, gives a result.

    It checks what data says, or the program handles exceptions.
    """

    drawn: Source | None = None
    """Where the random numbers are that code draws on entry of the frame."""

    has_tensors: bool = True
    """Whether the frame met a tensor, although there may be no operation on it."""

    marked_inputs: tuple[int, ...] = ()
    """The graph's inputs that begin to require gradients when it is called."""

    exchanges_memory: bool = False
    """Whether the code behind the graph gives tensors of the caller's other memory."""

    separate_in: frozenset[types.CodeType] = frozenset()
    """Functions called behind the break: each of their results needs its own place in autograd's graph."""


@dataclass(frozen=True)
class Skip:
    """The frame is left to CPython; ``forever`` if no other arguments could change that.

    ``with_callees``: so is all that it calls, which would be captured otherwise.
    """

    reason: str
    forever: bool = True
    graph_break: GraphBreak | None = field(default=None)
    with_callees: bool = False

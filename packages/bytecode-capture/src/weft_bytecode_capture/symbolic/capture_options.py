"""What goes into the symbolic evaluation of one frame."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from weft_guards import Guard

from .graph.known_results import ResultsOfFrame
from .shapes.history import ValueHistory


@dataclass(frozen=True)
class FrameInput:
    """A frame as the hook finds it: arguments bound, nothing run.

    ``arguments`` maps names of argument slots (positional, keyword-only, ``*args``, ``**kwargs``) to
    values, in slot order.  ``code`` may be a resume function's: its arguments then include the values of
    the interrupted frame's stack and locals, and its first instructions push them and jump.
    ``history`` is what earlier compilations of ``code`` have seen.  ``separate_histories``: the caller may
    ask for the place in autograd's graph of each tensor that the frame returns.  ``has_cut_loop``: a loop
    of the program's code was too long to be written out before.  ``callers_may_write``: whether a caller may
    write to tensors behind the call without autograd being told.
    """

    code: types.CodeType
    arguments: Mapping[str, Any]
    globals: dict[str, Any]
    builtins: Mapping[str, Any]
    closure: Mapping[str, types.CellType]
    history: ValueHistory = field(default_factory=ValueHistory)
    separate_histories: bool = False
    has_cut_loop: bool = False
    callers_may_write: Callable[[], bool] = lambda: False


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
    ``unrolled_limits``: an unrolled loop ends the graph in each iteration, instead, once so many iterations
    have put so many nodes into it, by any of the pairs.  A deep model's layers are few, of many nodes.
    ``region_devices``: the types of devices of which a region may take tensors, those whose code generator
    has loops and branches.
    ``eager_in_training``: functions of torch whose calls that need gradients stay Python's, because the
    stages behind cannot differentiate them.
    ``steps_in_training``: likewise recurrent functions of more steps, over layers and directions, than the
    number beside them, and where the steps are not known.
    ``sparse_gradients``: likewise functions where their argument ``sparse``, whose position is beside the
    function, is true.
    ``library_recurrences``: types of devices, each with a dtype, where recurrent functions stay Python's: a
    library computes them there from weights in one memory, which no stage behind makes of them.
    ``backend_folders``: folders of packages whose code runs inside compiled calls, a backward pass for one,
    and is not captured.
    ``check_operands``: raises for an operator and fake arguments that eager refuses and the operator's fake
    lets pass; the program then runs as it is from there, with eager's own error.
    ``known_results``: opens, for the capture of a frame of some code, what operators gave on fake tensors in
    other captures, to which this one adds; None: what the frame's own evaluations find.
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
    ``read_contents``: what small tensors of integers, or of floats in order, hold is known, and guarded;
    None: in frames that would break otherwise.
    ``assume_decisions``: decisions on data that no region holds fall as they do in the first call, and the
    graph checks it; None: in frames that would break otherwise.
    ``make_leaves``: tensors made in the graph that the program lets require gradients are inputs of it, which
    the graph writes to; None: in frames that would break otherwise.
    ``numbers_by_code``: what Python makes of sizes and numbers that vary, numbers and texts, is made in each
    call by the code around the graph; where it is off they are those of the first call, and guarded.
    ``operator_warnings``: so are the warnings that torch's Python gives, which a compiled graph does not run.
    """

    fullgraph: bool = False
    dynamic: bool | None = None
    marks: bool = True
    inline_depth: int = 200
    recompile_limit: int = 8
    keep_control_flow: bool = True
    rolled_loop_length: int = 16
    unrolled_limits: tuple[tuple[int, int], ...] = ((1000, 4000), (16, 40_000))
    region_devices: frozenset[str] = frozenset({"cpu", "cuda", "meta"})
    eager_in_training: frozenset[Callable[..., object]] = frozenset()
    steps_in_training: Mapping[Callable[..., object], int] = field(default_factory=dict)
    sparse_gradients: Mapping[Callable[..., object], int] = field(default_factory=dict)
    library_recurrences: frozenset[tuple[str, torch.dtype]] = frozenset()
    backend_folders: frozenset[str] = frozenset()
    check_operands: Callable[[Any, Sequence[Any], Mapping[str, Any]], None] | None = None
    known_results: ResultsOfFrame | None = None
    python_limit: int = 50_000
    data_dependent_scalars: bool = True
    data_dependent_sizes: bool = True
    error_on_recompile: bool = False
    guard_filter: Callable[[Sequence[Guard]], Sequence[bool]] | None = None
    guard_libraries: bool = False
    read_contents: bool | None = None
    assume_decisions: bool | None = False
    make_leaves: bool | None = None
    numbers_by_code: bool = True
    operator_warnings: bool = False

"""What is told of each frame that is converted."""

from __future__ import annotations

import types
from dataclasses import dataclass

from weft_guards import Guard, GuardFailure

from ..captured_graph import CapturedGraph, GraphBreak, UnkeptRegion
from ..user_location import UserLocation


@dataclass(frozen=True)
class CaptureReport:
    """What became of one frame.

    ``code`` is the user's code object, ``resumed_at`` the line where a resume function's frame began (None
    at the function's own beginning).  ``skip_reason`` says why the frame runs as it is, ``error`` is the
    exception that capture or the backend raised, ``recompile_reason`` the guard that the entry used last
    failed on, ``seconds`` the wall-clock time of all of it, ``instruction_count`` how many instructions
    were evaluated, those of inlined calls included.  ``unkept_regions`` are the branches and loops that were
    tried and are not in the graph.  ``transformed_code`` takes the frame's place where the guards hold.
    ``side_effects`` names the objects of before the call that this code changes, and the calls that it makes.
    ``callers`` are the frames that the call was made in, outermost first, the compiler's own among them.
    """

    code: types.CodeType
    location: UserLocation
    resumed_at: int | None
    graph: CapturedGraph | None
    guards: tuple[Guard, ...]
    graph_break: GraphBreak | None
    skip_reason: str | None
    error: Exception | None
    recompile_reason: GuardFailure | None
    seconds: float
    instruction_count: int = 0
    unkept_regions: tuple[UnkeptRegion, ...] = ()
    transformed_code: types.CodeType | None = None
    side_effects: tuple[str, ...] = ()
    callers: tuple[UserLocation, ...] = ()

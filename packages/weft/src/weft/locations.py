"""How places in a program are told: the user's own line, and which library's it went through.

``my_model.py:12 in forward, through torch/nn/modules/linear.py:134``
"""

from __future__ import annotations

import contextlib
import functools
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.fx
import weft_bytecode_capture
import weft_guards
from weft_bytecode_capture import UserLocation, running_frames

from .registry import stage_folders

_LINE = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.*)$')

OWN, PACKAGE, LIBRARY, COMPILER = range(4)
"""Whose a file is: the user's, an installed package's, torch's or the interpreter's, weft's.

Of several frames the innermost of the first of these kinds is the one that a reader looks for.
"""


UNKNOWN = "<unknown>"
"""A place of which nothing is known."""


def frames_of_trace(trace: str) -> tuple[UserLocation, ...]:
    """The frames of a text that looks as a traceback does, outermost first."""
    matches = filter(None, map(_LINE.match, trace.splitlines()))
    return tuple(UserLocation(m["file"], int(m["line"]), m["function"]) for m in matches)


def user_location(graph_module: torch.fx.GraphModule) -> str:
    """Where in the user's code the graph's first operation came from."""
    for node in graph_module.graph.nodes:
        trace = node.meta.get("stack_trace")
        if node.op in ("call_function", "call_method") and trace:
            return describe_frames(frames_of_trace(trace), running_frames())
    return describe_frames((), running_frames())


def describe_frames(frames: Sequence[UserLocation], callers: Sequence[UserLocation] = ()) -> str:
    """The user's frame among ``frames`` (outermost first), and the innermost if that is another's.

    ``callers`` are those who called the outermost: one is named where all frames are a library's.
    """
    found = _users(frames)
    if found is None or owner_of(found.file) >= LIBRARY:
        found = _users(callers) or found
    if found is None:
        return UNKNOWN
    told = [frame for frame in frames if owner_of(frame.file) != COMPILER]
    if not told or told[-1] == found or owner_of(told[-1].file) == OWN:
        return describe_place(found)
    return f"{describe_place(found)}, through {short_path(told[-1].file)}:{told[-1].line}"


def _users(frames: Sequence[UserLocation]) -> UserLocation | None:
    """Of the frames that are nearest to the user's own the innermost; None where all are the compiler's."""
    owner = min((owner_of(frame.file) for frame in frames), default=COMPILER)
    of_owner = [frame for frame in frames if owner_of(frame.file) == owner]
    return None if owner == COMPILER else of_owner[-1]


def describe_place(location: UserLocation) -> str:
    """``my_model.py:12 in forward``."""
    return f"{short_path(location.file)}:{location.line} in {location.function.rpartition('.')[2]}"


@functools.lru_cache(maxsize=4096)
def owner_of(file: str) -> int:
    """Whose ``file`` is, as one of the kinds above."""
    path = Path(file)
    if any(map(path.is_relative_to, [*map(Path, stage_folders()), *_OWN_FOLDERS])):
        return COMPILER
    if path.is_relative_to(_TORCH) or file.startswith("<frozen"):
        return LIBRARY
    if "site-packages" in path.parts:
        return PACKAGE
    return LIBRARY if path.is_relative_to(_STANDARD_LIBRARY) else OWN


def short_path(file: str) -> str:
    """The path from the working directory, or within the library that it belongs to."""
    path = Path(file)
    if "site-packages" in path.parts:
        return file.rpartition("site-packages/")[2]
    if path.is_relative_to(_TORCH):
        return str(path.relative_to(_TORCH.parent))
    with contextlib.suppress(OSError, ValueError):  # it is gone, or the path is not in it
        return str(path.relative_to(Path.cwd()))
    return file


_TORCH = Path(torch.__file__).parent
_OWN_FOLDERS: tuple[Path, ...] = (
    Path(__file__).parent,
    Path(str(weft_bytecode_capture.__file__)).parent,
    Path(str(weft_guards.__file__)).parent,
)
_STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"])

"""``sys._getframe(1)``: which line of which code calls, for a frame that is captured with its callee."""

from __future__ import annotations

import types
from pathlib import Path

from ....unsupported import Unsupported
from ...protocol import Evaluator, Frame
from ...variables.base import Variable

_OURS = str(Path(__file__).parents[3])
"""The folder of this package, whose own Python stands in for functions that have no frame."""

_OF_CODE = frozenset({"co_filename", "co_firstlineno", "co_name", "co_qualname"})
"""What a resume function's code has as the function's."""


class SeenFrame(Variable):
    """A frame of which the program asks where it is."""

    kind = types.FrameType

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def truth(self, evaluator: Evaluator) -> bool:
        return True

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name == "f_code":
            return SeenCode(self.frame.code)
        if name == "f_lineno" and any(frame is self.frame for frame in evaluator.frame.frames()):
            return evaluator.wrap_constant(self.frame.location().line)
        if name == "f_back":
            return seen_frame(self.frame, 1)
        raise Unsupported("frame object", f"{name} of {self.frame.code.co_qualname}")

    def same_object(self, evaluator: Evaluator, other: Variable) -> bool | None:
        return self.frame is other.frame if isinstance(other, SeenFrame) else None

    def __repr__(self) -> str:
        return f"Frame({self.frame.code.co_qualname})"


class SeenCode(Variable):
    """Its code, of which it may ask the names and the place."""

    kind = types.CodeType

    def __init__(self, code: types.CodeType) -> None:
        self.code = code

    def truth(self, evaluator: Evaluator) -> bool:
        return True

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name not in _OF_CODE:
            raise Unsupported("frame object", f"{name} of {self.code.co_qualname}")
        return evaluator.wrap_constant(getattr(self.code, name))

    def same_object(self, evaluator: Evaluator, other: Variable) -> bool | None:
        raise Unsupported("frame object", f"identity of the code of {self.code.co_qualname}")

    def __repr__(self) -> str:
        return f"Code({self.code.co_qualname})"


def seen_frame(frame: Frame, depth: int) -> Variable:
    """The caller of ``frame``, ``depth`` calls before it.

    :raises Unsupported: it is not captured with it, or stands in for what has no frame in eager.
    """
    frames = list(frame.frames())
    found = frames[: depth + 1]
    if len(found) <= depth or any(f.code.co_filename.startswith(_OURS) for f in found):
        raise Unsupported("frame object", f"of {frame.code.co_qualname}")
    return SeenFrame(found[depth])

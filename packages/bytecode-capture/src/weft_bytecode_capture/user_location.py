"""A line of the user's code."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass

from .source_lines import source_line


@dataclass(frozen=True)
class UserLocation:
    """A place in the user's code; ``function`` is the qualified name."""

    file: str
    line: int
    function: str

    def quoted(self) -> list[str]:
        """The place and its line, as tracebacks show them."""
        lines = [f'  File "{self.file}", line {self.line}, in {self.function}']
        text = source_line(self.file, self.line)
        if text:
            lines.append(f"    {text}")
        return lines


def running_frames() -> tuple[UserLocation, ...]:
    """Where the calls of this thread stand, outermost first, without the caller of this."""
    places = []
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        places.append(UserLocation(code.co_filename, frame.f_lineno or 0, code.co_qualname))
        frame = frame.f_back
    return tuple(reversed(places))

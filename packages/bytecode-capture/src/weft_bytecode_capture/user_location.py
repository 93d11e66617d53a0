"""A line of the user's code."""

from __future__ import annotations

import linecache
from dataclasses import dataclass


@dataclass(frozen=True)
class UserLocation:
    """A place in the user's code; ``function`` is the qualified name."""

    file: str
    line: int
    function: str

    def quoted(self) -> list[str]:
        """The place and its line, as tracebacks show them."""
        lines = [f'  File "{self.file}", line {self.line}, in {self.function}']
        text = linecache.getline(self.file, self.line).strip()
        if text:
            lines.append(f"    {text}")
        return lines

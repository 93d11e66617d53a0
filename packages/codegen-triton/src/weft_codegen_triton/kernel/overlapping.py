"""Kernels that begin while the one before them ends (programmatic dependent launch).

The first of a program waits for what ran before, then lets the next one begin; later ones let the next one
begin, then wait for the one before, which has waited in turn.  So all that ran before a program is done when
its second kernel begins, and a kernel of it may load what no kernel of the program writes before it waits:
its text says where it waits then, else that is its first line.

Waiting empties the first-level cache, in each program of a kernel.  Only kernels of few programs do it.
"""

from __future__ import annotations

import enum
import re

WAIT = "weft.after_previous_kernel()"
"""The statement that waits, but in the first kernel of a program."""
FIRST_WAIT = "weft.after_what_ran_before()"

CAPABILITY = 90
"""The least compute capability, as 10 times its number, of GPUs that can do this."""

MAX_PROGRAMS = 1056
"""Eight for each multiprocessor of an H100.

Measured there, of kernels of 1024 programs in a chain: products of 2048 x 2048 by a vector 3.1 us instead of
4.9, of 4096 x 4096 11.7 instead of 13.0.  A step of training whose kernels have many more took 18% longer.
"""

_LINE = re.compile(rf"^ *{re.escape(WAIT)}\n", re.MULTILINE)


class Overlap(enum.Enum):
    """Whether a kernel overlaps with the one before it, and as which one of a program."""

    NONE = "none"
    FIRST = "first"
    LATER = "later"


def waiting(text: str, name: str, statement: str = WAIT) -> str:
    """``text`` in which the function ``name`` waits: as its first statement, unless it does so already."""
    head = re.search(rf"^def {re.escape(name)}\(.*\):\n", text, re.MULTILINE)
    assert head is not None
    following = text.find("@triton.jit", head.end())
    end = len(text) if following < 0 else following
    if WAIT in text[head.end() : end]:
        return text
    return f"{text[: head.end()]}    {statement}\n{text[head.end() :]}"


def without_waits(text: str) -> str:
    """``text`` for kernels that run one after another."""
    return _LINE.sub("", text)

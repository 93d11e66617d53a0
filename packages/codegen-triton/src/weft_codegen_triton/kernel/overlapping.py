"""Kernels that begin while the one before them ends (programmatic dependent launch).

A kernel waits for the one before it before it touches memory, and only then lets the next one begin: when
that runs, all but the kernel just before it is done.  So every one of these kernels waits, whatever it
computes.  The text of a kernel may say where, behind loads of what no kernel of its program writes; else that
is its first line.
"""

from __future__ import annotations

import re

WAIT = "weft.after_previous_kernel()"
"""The statement that waits."""

CAPABILITY = 90
"""The least compute capability, as 10 times its number, of GPUs that can do this."""

_LINE = re.compile(rf"^ *{re.escape(WAIT)}\n", re.MULTILINE)


def waiting(text: str, name: str) -> str:
    """``text`` in which the function ``name`` waits: as its first statement, unless it does so already."""
    head = re.search(rf"^def {re.escape(name)}\(.*\):\n", text, re.MULTILINE)
    assert head is not None
    following = text.find("@triton.jit", head.end())
    end = len(text) if following < 0 else following
    if WAIT in text[head.end() : end]:
        return text
    return f"{text[: head.end()]}    {WAIT}\n{text[head.end() :]}"


def without_waits(text: str) -> str:
    """``text`` for devices whose kernels run one after another."""
    return _LINE.sub("", text)

"""``weft explain SCRIPT``: run a program and say what became of all that it compiled."""

from __future__ import annotations

import contextlib
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from .api import compile as weft_compile
from .explain import Explanation, explanation_of
from .report import CompileLog, observe


def explain_script(
    script: Path, arguments: Sequence[str] = (), *, takes_torch_compile: bool = False
) -> Explanation:
    """Run ``script`` as ``python script arguments`` does, and give what was compiled by then.

    ``takes_torch_compile``: ``torch.compile`` is :func:`weft.compile` in it.  An exit of the script ends it
    as it would end the program; any other exception is raised, with what was compiled by then as its
    ``explanation``.

    :raises FileNotFoundError: there is no such script.
    """
    if not script.is_file():
        raise FileNotFoundError(2, "no such script", str(script))
    log = CompileLog()
    with _as_program(script, arguments), observe(log):
        before = torch.compile
        if takes_torch_compile:
            torch.compile = weft_compile  # type: ignore[assignment]
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit:
            pass
        except BaseException as error:  # whatever ends the script: what it compiled is kept
            error.explanation = explanation_of(log, None)  # type: ignore[attr-defined]
            raise
        finally:
            torch.compile = before
    return explanation_of(log, None)


@contextlib.contextmanager
def _as_program(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """``sys.argv`` and ``sys.path`` as the script finds them when it is run by itself."""
    before = sys.argv, sys.path[:]
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before

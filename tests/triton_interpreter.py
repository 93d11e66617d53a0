"""Triton's interpreter, in which tests of kernels run without a GPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HELPERS = Path(__file__).parents[1] / "packages" / "codegen-triton" / "tests"


def require_interpreter() -> None:
    """Skip the module that calls this unless kernels can run in the interpreter, and make that quicker."""
    if "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"
    triton = pytest.importorskip("triton")
    if not triton.knobs.runtime.interpret:
        pytest.skip("Triton is imported already, to compile", allow_module_level=True)
    if str(HELPERS) not in sys.path:
        sys.path.append(str(HELPERS))  # the package's own tests find it there, too
    from quick_interpreter import make_interpreter_quick

    make_interpreter_quick()

"""The code generator for GPUs: Triton kernels and a host program for a schedule of loops.

Importing the package is cheap: the processes that compile kernels import it, and have no use for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from weft_codegen_triton.errors import CompileError, DeviceUnavailable, LaunchError
from weft_codegen_triton.options import TritonOptions

if TYPE_CHECKING:
    from weft_loop_ir import Unsupported

    from weft_codegen_triton.codegen import TritonCodegen
    from weft_codegen_triton.program import TritonProgram

__all__ = [
    "CompileError",
    "DeviceUnavailable",
    "LaunchError",
    "TritonCodegen",
    "TritonOptions",
    "TritonProgram",
    "Unsupported",
]


_MODULES = {
    "TritonCodegen": "weft_codegen_triton.codegen",
    "TritonProgram": "weft_codegen_triton.program",
    "Unsupported": "weft_loop_ir",
}
"""Where the names are that are imported at their first use."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)

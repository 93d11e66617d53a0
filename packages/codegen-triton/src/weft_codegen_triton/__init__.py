"""The code generator for GPUs: Triton kernels and a host program for a schedule of loops.

Importing the package is cheap: the processes that compile kernels import it, and have no use for torch.
"""

from __future__ import annotations

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


def __getattr__(name: str) -> Any:
    if name == "TritonCodegen":
        from weft_codegen_triton.codegen import TritonCodegen

        return TritonCodegen
    if name == "TritonProgram":
        from weft_codegen_triton.program import TritonProgram

        return TritonProgram
    if name == "Unsupported":
        from weft_loop_ir import Unsupported

        return Unsupported
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""A code generator whose kernels run in Triton's interpreter; without it the importing tests are skipped."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

if "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"
triton = pytest.importorskip("triton")
if not triton.knobs.runtime.interpret:
    pytest.skip("Triton is imported already, to compile", allow_module_level=True)

from weft_codegen_triton import TritonCodegen, TritonOptions, TritonProgram  # noqa: E402


@dataclass
class Interpreted(TritonCodegen):
    """Keeps the programs that it compiles.  ``fuse_attention``: None where dtypes and sizes decide."""

    fuse_attention: bool | None = None
    programs: list[TritonProgram] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(TritonOptions(interpret=True, fuse_attention=self.fuse_attention))

    def compile(self, *arguments: Any) -> Any:
        program = super().compile(*arguments)
        self.programs.append(program)
        return program

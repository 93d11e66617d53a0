"""A code generator whose kernels run in Triton's interpreter; without it the importing tests are skipped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from weft_codegen_triton import TritonCodegen, TritonOptions, TritonProgram

from tests.triton_interpreter import require_interpreter

require_interpreter()


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

"""Generates vectorised C++ kernels and a native host program from weft's loop IR."""

from weft_loop_ir import Unsupported

from weft_codegen_cpp.codegen import CppCodegen
from weft_codegen_cpp.errors import CodegenError, CompileError, CompilerNotFound, CompilerTimeout
from weft_codegen_cpp.options import CppOptions
from weft_codegen_cpp.program import CppProgram

__all__ = [
    "CodegenError",
    "CompileError",
    "CompilerNotFound",
    "CompilerTimeout",
    "CppCodegen",
    "CppOptions",
    "CppProgram",
    "Unsupported",
]

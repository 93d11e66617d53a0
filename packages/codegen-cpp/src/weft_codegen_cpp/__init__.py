"""Generates vectorised C++ kernels and a native host program from weft's loop IR."""

from weft_loop_ir import Unsupported as Unsupported

from weft_codegen_cpp.codegen import CppCodegen as CppCodegen
from weft_codegen_cpp.errors import CodegenError as CodegenError
from weft_codegen_cpp.errors import CompileError as CompileError
from weft_codegen_cpp.errors import CompilerNotFound as CompilerNotFound
from weft_codegen_cpp.errors import CompilerTimeout as CompilerTimeout
from weft_codegen_cpp.options import CppOptions as CppOptions
from weft_codegen_cpp.program import CppProgram as CppProgram

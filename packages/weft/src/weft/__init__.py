"""weft: a compiler for PyTorch programs.  ``weft.compile(model)`` is used as ``torch.compile`` is."""

from weft_bytecode_capture import RecompileError as RecompileError
from weft_bytecode_capture import allow_in_graph as allow_in_graph
from weft_bytecode_capture import assume_constant_result as assume_constant_result
from weft_bytecode_capture import disable as disable
from weft_bytecode_capture import is_compiling as is_compiling
from weft_bytecode_capture import mark_dynamic as mark_dynamic
from weft_bytecode_capture import mark_static as mark_static
from weft_bytecode_capture import mark_unbacked as mark_unbacked
from weft_bytecode_capture import maybe_mark_dynamic as maybe_mark_dynamic
from weft_bytecode_capture import reset as reset
from weft_bytecode_capture import set_stance as set_stance
from weft_bytecode_capture import substitute_in_graph as substitute_in_graph

from .api import compile as compile
from .api import compile_module as compile_module
from .caches import load_cache_artifacts as load_cache_artifacts
from .caches import save_cache_artifacts as save_cache_artifacts
from .errors import StageError as StageError
from .errors import WeftError as WeftError
from .errors import WeftWarning as WeftWarning
from .explain import Explanation as Explanation
from .explain import explain as explain
from .graph_report import GraphReport as GraphReport
from .guard_filter import GuardEntry as GuardEntry
from .options import CompileOptions as CompileOptions
from .registry import list_backends as list_backends
from .registry import register_backend as register_backend
from .registry import register_codegen as register_codegen
from .report import CompileLog as CompileLog
from .report import observe as observe
from .saved_file import SavedProgramError as SavedProgramError
from .saved_programs import SavedProgram as SavedProgram
from .saved_programs import load as load
from .saved_programs import save as save

__version__ = "0.1.0"

__all__ = [
    "CompileLog",
    "CompileOptions",
    "Explanation",
    "GraphReport",
    "GuardEntry",
    "RecompileError",
    "SavedProgram",
    "SavedProgramError",
    "StageError",
    "WeftError",
    "WeftWarning",
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "compile_module",
    "disable",
    "explain",
    "is_compiling",
    "list_backends",
    "load",
    "load_cache_artifacts",
    "mark_dynamic",
    "mark_static",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "observe",
    "register_backend",
    "register_codegen",
    "reset",
    "save",
    "save_cache_artifacts",
    "set_stance",
    "substitute_in_graph",
]

"""Code objects that are taken apart and put together."""

import types

from weft_bytecode_capture.code_objects.code_builder import CodeBuilder
from weft_bytecode_capture.code_objects.instructions import decode


def rebuild(code: types.CodeType) -> types.CodeType:
    """Equal to ``code`` but for stack size and spelling."""
    builder = CodeBuilder(code)
    builder.instructions = decode(code).instructions
    return builder.finish(code, code.co_varnames, code.co_cellvars, code.co_freevars)

"""What the evaluator does with every opcode of CPython 3.11 to 3.15.

Sources: ``Lib/opcode.py`` and ``Python/bytecodes.c`` of CPython 3.12 to 3.15, ``Python/ceval.c`` of 3.11.
What an opcode of one name does differently is in :mod:`..code_objects.dialects`, by version.
Opcodes that only the specialising interpreter or ``sys.monitoring`` writes never show in ``co_code``.
"""

from __future__ import annotations

import enum


class Disposition(enum.Enum):
    """``HANDLED``: evaluated as CPython does, or :class:`Unsupported` for operands out of reach.
    ``BREAKS``: always a graph break.  ``NEVER_SEEN``: not in the bytecode of functions that are captured."""

    HANDLED = "handled"
    BREAKS = "breaks"
    NEVER_SEEN = "never seen in user code"


_HANDLED = (
    # All versions, and those up to 3.12 or 3.13.
    "BEFORE_WITH", "BINARY_OP", "BINARY_SUBSCR", "BUILD_CONST_KEY_MAP", "BUILD_LIST", "BUILD_MAP",
    "BUILD_SET", "BUILD_SLICE", "BUILD_STRING", "BUILD_TUPLE", "CACHE", "CALL", "CALL_FUNCTION_EX",
    "CHECK_EG_MATCH", "CHECK_EXC_MATCH", "COMPARE_OP", "CONTAINS_OP", "COPY", "COPY_FREE_VARS", "DELETE_ATTR",
    "DELETE_DEREF", "DELETE_FAST", "DELETE_GLOBAL", "DELETE_SUBSCR", "DICT_MERGE", "DICT_UPDATE",
    "EXTENDED_ARG", "FORMAT_VALUE", "FOR_ITER", "GET_ITER", "GET_LEN", "GET_YIELD_FROM_ITER",
    "IMPORT_FROM", "IMPORT_NAME", "IS_OP", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT",
    "JUMP_FORWARD", "KW_NAMES", "LIST_APPEND", "LIST_EXTEND", "LOAD_ASSERTION_ERROR", "LOAD_ATTR",
    "LOAD_CLOSURE", "LOAD_CONST", "LOAD_DEREF", "LOAD_FAST", "LOAD_GLOBAL", "MAKE_CELL",
    "MAKE_FUNCTION", "MAP_ADD", "MATCH_CLASS", "MATCH_KEYS", "MATCH_MAPPING", "MATCH_SEQUENCE", "NOP",
    "POP_EXCEPT", "POP_TOP", "PUSH_EXC_INFO", "PUSH_NULL", "RAISE_VARARGS", "RERAISE", "RESUME",
    "RETURN_GENERATOR", "RETURN_VALUE", "SEND", "SET_ADD", "SET_UPDATE", "STORE_ATTR", "STORE_DEREF",
    "STORE_FAST", "STORE_GLOBAL", "STORE_SUBSCR", "SWAP", "UNARY_INVERT", "UNARY_NEGATIVE", "UNARY_NOT",
    "UNPACK_EX", "UNPACK_SEQUENCE", "WITH_EXCEPT_START", "YIELD_VALUE",
    # Bodies of classes.
    "DELETE_NAME", "LOAD_BUILD_CLASS", "LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS",
    "LOAD_LOCALS", "LOAD_NAME", "SETUP_ANNOTATIONS", "STORE_NAME",
    # 3.11 alone.
    "JUMP_IF_FALSE_OR_POP", "JUMP_IF_TRUE_OR_POP", "LIST_TO_TUPLE", "LOAD_CLASSDEREF", "LOAD_METHOD",
    "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE",
    "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_FORWARD_IF_NONE",
    "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_TRUE", "PRECALL", "PREP_RERAISE_STAR",
    "UNARY_POSITIVE",
    # New in 3.12.
    "BINARY_SLICE", "CALL_INTRINSIC_1", "CALL_INTRINSIC_2", "CLEANUP_THROW", "END_FOR", "END_SEND",
    "LOAD_FAST_AND_CLEAR", "LOAD_FAST_CHECK", "LOAD_SUPER_ATTR", "POP_JUMP_IF_FALSE", "POP_JUMP_IF_NONE",
    "POP_JUMP_IF_NOT_NONE", "POP_JUMP_IF_TRUE", "RETURN_CONST", "STORE_SLICE",
    # New in 3.13.
    "CALL_KW", "CONVERT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "SET_FUNCTION_ATTRIBUTE", "TO_BOOL",
    # New in 3.14.
    "LOAD_COMMON_CONSTANT", "LOAD_SMALL_INT",
)  # fmt: skip

_BREAKS = (
    # Coroutines and asynchronous generators.
    "ASYNC_GEN_WRAP", "BEFORE_ASYNC_WITH", "END_ASYNC_FOR", "GET_AITER", "GET_ANEXT", "GET_AWAITABLE",
    # Template strings (3.14).
    "BUILD_INTERPOLATION", "BUILD_TEMPLATE",
    # Modules' code.
    "IMPORT_STAR",
)  # fmt: skip

_NEVER_SEEN = (
    # The interactive loop's, the interpreter's own entry frame, and a number kept free.
    "PRINT_EXPR", "INTERPRETER_EXIT", "RESERVED",
    # The compiler's pseudo-instructions, replaced before the code object is made.
    "JUMP", "JUMP_NO_INTERRUPT", "LOAD_SUPER_METHOD", "LOAD_ZERO_SUPER_ATTR", "LOAD_ZERO_SUPER_METHOD",
    "ANNOTATIONS_PLACEHOLDER", "JUMP_IF_FALSE", "JUMP_IF_TRUE",
    "POP_BLOCK", "SETUP_CLEANUP", "SETUP_FINALLY", "SETUP_WITH", "STORE_FAST_MAYBE_NULL",
    # Read as the two instructions that each stands for.
    "LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST",
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
    # Read as LOAD_FAST, NOP, POP_TOP, and BEFORE_WITH or its like; 3.15's POP_ITER is passed over.
    "LOAD_FAST_BORROW", "NOT_TAKEN", "POP_ITER", "LOAD_SPECIAL",
    # The specialising interpreter's own.
    "ENTER_EXECUTOR", "EXIT_INIT_CHECK", "TRACE_RECORD",
    # Written by sys.monitoring into the running copy.
    "INSTRUMENTED_CALL", "INSTRUMENTED_CALL_FUNCTION_EX", "INSTRUMENTED_CALL_KW", "INSTRUMENTED_END_FOR",
    "INSTRUMENTED_END_SEND", "INSTRUMENTED_FOR_ITER", "INSTRUMENTED_INSTRUCTION",
    "INSTRUMENTED_JUMP_BACKWARD", "INSTRUMENTED_JUMP_FORWARD", "INSTRUMENTED_LINE",
    "INSTRUMENTED_LOAD_SUPER_ATTR", "INSTRUMENTED_POP_JUMP_IF_FALSE", "INSTRUMENTED_POP_JUMP_IF_NONE",
    "INSTRUMENTED_POP_JUMP_IF_NOT_NONE", "INSTRUMENTED_POP_JUMP_IF_TRUE", "INSTRUMENTED_RESUME",
    "INSTRUMENTED_RETURN_CONST", "INSTRUMENTED_RETURN_VALUE", "INSTRUMENTED_YIELD_VALUE",
    "INSTRUMENTED_END_ASYNC_FOR", "INSTRUMENTED_NOT_TAKEN", "INSTRUMENTED_POP_ITER",
)  # fmt: skip

DISPOSITIONS: dict[str, Disposition] = {
    **dict.fromkeys(_HANDLED, Disposition.HANDLED),
    **dict.fromkeys(_BREAKS, Disposition.BREAKS),
    **dict.fromkeys(_NEVER_SEEN, Disposition.NEVER_SEEN),
}
"""By opcode name, of all versions together."""

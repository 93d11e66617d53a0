"""The table of opcodes against the interpreter's own and against the registered handlers."""

from __future__ import annotations

import dis
import subprocess
import sys

import pytest
from weft_bytecode_capture.code_objects.dialects import DIALECT
from weft_bytecode_capture.symbolic import root_frame as root_frame  # registers all handlers
from weft_bytecode_capture.symbolic.decode import handled_operations
from weft_bytecode_capture.symbolic.opcode_table import DISPOSITIONS, Disposition

# Names of dis.opmap of CPython 3.12, pseudo-instructions and instrumented ones included.
NAMES_312 = tuple(
    """
    BEFORE_ASYNC_WITH BEFORE_WITH BINARY_OP BINARY_SLICE BINARY_SUBSCR BUILD_CONST_KEY_MAP
    BUILD_LIST BUILD_MAP BUILD_SET BUILD_SLICE BUILD_STRING BUILD_TUPLE CACHE CALL CALL_FUNCTION_EX
    CALL_INTRINSIC_1 CALL_INTRINSIC_2 CHECK_EG_MATCH CHECK_EXC_MATCH CLEANUP_THROW COMPARE_OP
    CONTAINS_OP COPY COPY_FREE_VARS DELETE_ATTR DELETE_DEREF DELETE_FAST DELETE_GLOBAL DELETE_NAME
    DELETE_SUBSCR DICT_MERGE DICT_UPDATE END_ASYNC_FOR END_FOR END_SEND EXTENDED_ARG FORMAT_VALUE
    FOR_ITER GET_AITER GET_ANEXT GET_AWAITABLE GET_ITER GET_LEN GET_YIELD_FROM_ITER IMPORT_FROM
    IMPORT_NAME INSTRUMENTED_CALL INSTRUMENTED_CALL_FUNCTION_EX INSTRUMENTED_END_FOR
    INSTRUMENTED_END_SEND INSTRUMENTED_FOR_ITER INSTRUMENTED_INSTRUCTION INSTRUMENTED_JUMP_BACKWARD
    INSTRUMENTED_JUMP_FORWARD INSTRUMENTED_LINE INSTRUMENTED_LOAD_SUPER_ATTR
    INSTRUMENTED_POP_JUMP_IF_FALSE INSTRUMENTED_POP_JUMP_IF_NONE INSTRUMENTED_POP_JUMP_IF_NOT_NONE
    INSTRUMENTED_POP_JUMP_IF_TRUE INSTRUMENTED_RESUME INSTRUMENTED_RETURN_CONST
    INSTRUMENTED_RETURN_VALUE INSTRUMENTED_YIELD_VALUE INTERPRETER_EXIT IS_OP JUMP JUMP_BACKWARD
    JUMP_BACKWARD_NO_INTERRUPT JUMP_FORWARD JUMP_NO_INTERRUPT KW_NAMES LIST_APPEND LIST_EXTEND
    LOAD_ASSERTION_ERROR LOAD_ATTR LOAD_BUILD_CLASS LOAD_CLOSURE LOAD_CONST LOAD_DEREF LOAD_FAST
    LOAD_FAST_AND_CLEAR LOAD_FAST_CHECK LOAD_FROM_DICT_OR_DEREF LOAD_FROM_DICT_OR_GLOBALS
    LOAD_GLOBAL LOAD_LOCALS LOAD_METHOD LOAD_NAME LOAD_SUPER_ATTR LOAD_SUPER_METHOD
    LOAD_ZERO_SUPER_ATTR LOAD_ZERO_SUPER_METHOD MAKE_CELL MAKE_FUNCTION MAP_ADD MATCH_CLASS
    MATCH_KEYS MATCH_MAPPING MATCH_SEQUENCE NOP POP_BLOCK POP_EXCEPT POP_JUMP_IF_FALSE
    POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE POP_JUMP_IF_TRUE POP_TOP PUSH_EXC_INFO PUSH_NULL
    RAISE_VARARGS RERAISE RESERVED RESUME RETURN_CONST RETURN_GENERATOR RETURN_VALUE SEND
    SETUP_ANNOTATIONS SETUP_CLEANUP SETUP_FINALLY SETUP_WITH SET_ADD SET_UPDATE STORE_ATTR
    STORE_DEREF STORE_FAST STORE_FAST_MAYBE_NULL STORE_GLOBAL STORE_NAME STORE_SLICE STORE_SUBSCR
    SWAP UNARY_INVERT UNARY_NEGATIVE UNARY_NOT UNPACK_EX UNPACK_SEQUENCE WITH_EXCEPT_START
    YIELD_VALUE
    """.split()
)
NEW_313 = tuple(
    """
    CALL_KW CONVERT_VALUE ENTER_EXECUTOR EXIT_INIT_CHECK FORMAT_SIMPLE FORMAT_WITH_SPEC
    INSTRUMENTED_CALL_KW LOAD_FAST_LOAD_FAST SET_FUNCTION_ATTRIBUTE STORE_FAST_LOAD_FAST
    STORE_FAST_STORE_FAST TO_BOOL
    """.split()
)
GONE_313 = ("FORMAT_VALUE", "KW_NAMES")
NEW_314 = tuple(
    """
    ANNOTATIONS_PLACEHOLDER BUILD_INTERPOLATION BUILD_TEMPLATE INSTRUMENTED_END_ASYNC_FOR
    INSTRUMENTED_NOT_TAKEN INSTRUMENTED_POP_ITER JUMP_IF_FALSE JUMP_IF_TRUE LOAD_COMMON_CONSTANT
    LOAD_FAST_BORROW LOAD_FAST_BORROW_LOAD_FAST_BORROW LOAD_SMALL_INT LOAD_SPECIAL NOT_TAKEN POP_ITER
    """.split()
)
GONE_314 = tuple(
    """
    BEFORE_ASYNC_WITH BEFORE_WITH BINARY_SUBSCR BUILD_CONST_KEY_MAP INSTRUMENTED_RETURN_CONST
    LOAD_ASSERTION_ERROR LOAD_METHOD LOAD_SUPER_METHOD LOAD_ZERO_SUPER_ATTR LOAD_ZERO_SUPER_METHOD
    RETURN_CONST
    """.split()
)
NEW_315 = ("TRACE_RECORD",)
GONE_315 = ("GET_YIELD_FROM_ITER",)
LATER_NAMES = (*NAMES_312, *NEW_313, *NEW_314, *NEW_315)


@pytest.mark.parametrize("name", sorted({*dis.opmap, *LATER_NAMES}))
def test_opcode_has_a_disposition_that_its_handler_keeps(name):
    has_handler = name in handled_operations()
    assert has_handler == (DISPOSITIONS[name] is not Disposition.NEVER_SEEN)


def test_table_has_no_other_opcodes():
    if sys.version_info[:2] == (3, 11):
        assert set(DISPOSITIONS) == {*dis.opmap, *LATER_NAMES}
    assert handled_operations() <= set(DISPOSITIONS)


def test_names_are_those_of_this_interpreter():
    if sys.version_info[:2] == (3, 12):
        assert set(NAMES_312) == set(dis.opmap)
    if sys.version_info[:2] == (3, 13):
        assert {*NAMES_312, *NEW_313} - {*GONE_313} == set(dis.opmap)
    if sys.version_info[:2] == (3, 14):
        assert {*LATER_NAMES} - {*GONE_313, *GONE_314, *NEW_315} == set(dis.opmap)
    if sys.version_info[:2] == (3, 15):
        assert {*LATER_NAMES} - {*GONE_313, *GONE_314, *GONE_315} == set(dis.opmap)


def test_opcodes_of_the_standard_library_are_all_in_the_table():
    program = (
        "import dis, types, argparse, asyncio.tasks, contextlib, dataclasses, typing, enum\n"
        "def walk(code):\n"
        "    yield from (i.opname for i in dis.get_instructions(code))\n"
        "    for c in code.co_consts:\n"
        "        if isinstance(c, types.CodeType): yield from walk(c)\n"
        "for m in (argparse, asyncio.tasks, contextlib, dataclasses, typing, enum):\n"
        "    print(*set(walk(compile(open(m.__file__).read(), m.__file__, 'exec'))))\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(set(shown)) > 60
    plain = {DIALECT.synonyms.get(name, name) for name in shown}
    seen = {part for name in plain for part in DIALECT.pairs.get(name, (name,))}
    seen -= {part for parts in DIALECT.sequences.values() for part, _ in parts}
    seen -= {*DIALECT.loop_end}  # which FOR_ITER passes over
    assert all(DISPOSITIONS[name] is not Disposition.NEVER_SEEN for name in seen)

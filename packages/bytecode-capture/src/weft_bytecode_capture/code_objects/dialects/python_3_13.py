"""CPython 3.13: the callee under its NULL, instructions in pairs, and tests of bools alone."""

import dataclasses

from . import python_3_12

DIALECT = dataclasses.replace(
    python_3_12.DIALECT,
    comparison_shift=5,
    comparison_to_bool=16,
    null_above_callee=True,
    keyword_names_on_stack=True,
    function_attributes=True,
    loop_end=("END_FOR", "POP_TOP"),
    close_gives_result=True,
    cells_are_locals=True,
    pairs={
        "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
        "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
        "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
    },
    bools_before=frozenset({"POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE", "UNARY_NOT"}),
)

"""CPython 3.14: borrowed references, ``with`` in six instructions, annotations that are functions."""

import dataclasses

from . import python_3_13

DIALECT = dataclasses.replace(
    python_3_13.DIALECT,
    docstring_flag=0x4000000,  # CO_HAS_DOCSTRING
    keywords_or_null=True,
    key_errors_say_where=True,
    tuple_asks_length=False,
    loop_end=("END_FOR", "POP_ITER"),
    pairs={
        **python_3_13.DIALECT.pairs,
        "LOAD_FAST_BORROW_LOAD_FAST_BORROW": ("LOAD_FAST", "LOAD_FAST"),
    },
    synonyms={"LOAD_FAST_BORROW": "LOAD_FAST", "NOT_TAKEN": "NOP", "POP_ITER": "POP_TOP"},
    sequences={
        "BEFORE_WITH": (
            ("COPY", 1),
            ("LOAD_SPECIAL", 1),  # __exit__
            ("SWAP", 2),
            ("SWAP", 3),
            ("LOAD_SPECIAL", 0),  # __enter__
            ("CALL", 0),
        )
    },
    stack_effects={"BEFORE_WITH": 2},
    null_above_exit=True,
)

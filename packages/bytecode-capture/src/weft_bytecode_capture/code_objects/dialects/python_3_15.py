"""CPython 3.15: iterators of two slots, generator expressions that take their iterator before they begin."""

import dataclasses

from . import python_3_14

DIALECT = dataclasses.replace(
    python_3_14.DIALECT,
    name_flags={**python_3_14.DIALECT.name_flags, "IMPORT_NAME": 2},
    synonyms={
        name: other
        for name, other in python_3_14.DIALECT.synonyms.items()
        if name != "POP_ITER"  # it pops two slots
    },
    indexed_iterators=True,
    early_iterators=True,
    stack_effects={
        **python_3_14.DIALECT.stack_effects,
        "CLEANUP_THROW": -1,
        "END_SEND": -1,
        "GET_ITER": 0,
        "GET_YIELD_FROM_ITER": 0,
        "POP_ITER": -1,
    },
)

"""CPython 3.12: ``LOAD_ATTR`` loads methods too, and loops and ``yield from`` end by instructions."""

import dataclasses

from . import python_3_11

DIALECT = dataclasses.replace(
    python_3_11.DIALECT,
    name_flags={"LOAD_GLOBAL": 1, "LOAD_ATTR": 1, "LOAD_SUPER_ATTR": 2},
    comparison_shift=4,
    announced_calls=False,
    attribute_loads_methods=True,
    loop_end=("END_FOR",),
    send_keeps_iterator=True,
)

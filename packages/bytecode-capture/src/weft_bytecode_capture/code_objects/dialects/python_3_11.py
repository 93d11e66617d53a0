"""CPython 3.11, from which the later versions' differences are counted."""

from .dialect import Dialect

DIALECT = Dialect(
    name_flags={"LOAD_GLOBAL": 1},
    comparison_shift=0,
    announced_calls=True,
    attribute_loads_methods=False,
    send_keeps_iterator=False,
)

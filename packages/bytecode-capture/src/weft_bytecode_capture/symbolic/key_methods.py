"""``__hash__`` and ``__eq__`` of keys, written by users: evaluated as often as a look-up calls them.

A dict or set that is built behind the graph calls them again, and nobody must see that.  So they may change
nothing, and neither may what they call; what they are asked of may not change as long as it is a key.
"""

from __future__ import annotations

import collections
import contextlib
import dis
import types
from collections.abc import Iterator

from ..unsupported import Unsupported
from .protocol import Evaluator

KIND = "key with methods of its own"

_STORES = frozenset(
    ("STORE_ATTR", "STORE_DEREF", "STORE_GLOBAL", "STORE_NAME", "STORE_SLICE", "STORE_SUBSCR")
)
_OTHERS = frozenset(("IMPORT_NAME", "RETURN_GENERATOR", "YIELD_VALUE", "LOAD_BUILD_CLASS"))
_NAMED = frozenset(("LOAD_ATTR", "LOAD_GLOBAL", "LOAD_METHOD", "LOAD_SUPER_ATTR"))
_READING = (tuple, frozenset, str, bytes, types.MappingProxyType, range, int)
_CHANGED = (list, dict, set, collections.deque, collections.OrderedDict, bytearray)
_CHANGING = frozenset(
    {name for kind in _CHANGED for name in dir(kind)} - {name for kind in _READING for name in dir(kind)}
) | {
    "__import__", "acquire", "breakpoint", "close", "delattr", "eval", "exec", "iter", "next", "object",
    "open", "print", "release", "send", "setattr", "throw", "write",
}  # fmt: skip


def changes_nothing(code: types.CodeType) -> bool:
    """Whether a function's own instructions change no object that was there before."""
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if name in _STORES or name in _OTHERS or name.startswith("DELETE_"):
            return False
        if name == "BINARY_OP" and instruction.argrepr.endswith("="):
            return False
        if name in _NAMED and instruction.argval in _CHANGING:
            return False
    return True


@contextlib.contextmanager
def key_method(evaluator: Evaluator, context: str) -> Iterator[None]:
    """A block that evaluates a method of a key.

    :raises Unsupported: it has an effect.
    """
    state = evaluator.state
    before = len(evaluator.side_effects), len(evaluator.graph.made_at), len(state.readings)
    state.key_methods += 1
    try:
        yield
    finally:
        state.key_methods -= 1
    after = len(evaluator.side_effects), len(evaluator.graph.made_at), len(state.readings)
    if after != before:
        raise Unsupported(KIND, context, "its methods have effects")

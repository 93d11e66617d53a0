"""What CPython's C says of an object for a copy of it: ``__reduce_ex__`` and ``__getstate__``, in Python."""

from __future__ import annotations

import collections
import copyreg
from typing import Any

from ..models.table import polyfill


def slot_names(kind: type) -> list[str]:
    """The slots of a class and its bases, as ``copyreg`` lists them."""
    names: list[str] = vars(copyreg)["_slotnames"](kind)
    return names


@polyfill(vars(object)["__getstate__"])
def get_state(self: Any, /) -> Any:
    state = None
    if hasattr(self, "__dict__") and len(self.__dict__) > 0:
        state = self.__dict__
    slots = {}
    for name in slot_names(type(self)):
        try:  # noqa: SIM105
            slots[name] = getattr(self, name)
        except AttributeError:
            pass
    return (state, slots) if slots else state


_REDUCED_WITHOUT_PROTOCOL: Any = vars(copyreg)["_reduce_ex"]


@polyfill(vars(object)["__reduce_ex__"])
def reduce_ex(self: Any, protocol: int, /) -> Any:
    kind: Any = type(self)
    if kind.__reduce__ is not object.__reduce__:
        return self.__reduce__()
    if protocol < 2:
        return _REDUCED_WITHOUT_PROTOCOL(self, protocol)
    arguments: Any = ()
    keywords: Any = {}
    if hasattr(kind, "__getnewargs_ex__"):
        arguments, keywords = self.__getnewargs_ex__()
    elif hasattr(kind, "__getnewargs__"):
        arguments = self.__getnewargs__()
    if keywords:
        made = copyreg.__newobj_ex__, (kind, arguments, keywords)  # type: ignore[attr-defined]
    else:
        made = copyreg.__newobj__, (kind, *arguments)  # type: ignore[attr-defined]
    state = self.__getstate__()
    elements = iter(self) if isinstance(self, list) else None
    entries = iter(self.items()) if isinstance(self, dict) else None
    return (*made, state, elements, entries)


@polyfill(vars(set)["__reduce__"], vars(frozenset)["__reduce__"])
def reduce_set(self: Any, /) -> Any:
    return type(self), (list(self),), self.__getstate__()


@polyfill(vars(collections.deque)["__reduce__"])
def reduce_deque(self: Any, /) -> Any:
    arguments = () if self.maxlen is None else ((), self.maxlen)
    return type(self), arguments, self.__getstate__(), iter(self)


@polyfill(vars(collections.OrderedDict)["__reduce__"])
def reduce_ordered_dict(self: Any, /) -> Any:
    return type(self), (), self.__getstate__(), None, iter(self.items())

"""Which calls of ``weft.compile`` share compiled code: those of one function or module, settings equal."""

from __future__ import annotations

import contextlib
import contextvars
import types
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from weft_bytecode_capture import Context

from .options import CompileOptions, resolve_options

_contexts: weakref.WeakKeyDictionary[Any, dict[Hashable, Context]] = weakref.WeakKeyDictionary()
"""By function or module, then by settings.  A context refers to neither, so that both can die."""

_options: weakref.WeakKeyDictionary[Context, CompileOptions] = weakref.WeakKeyDictionary()

_is_shared = contextvars.ContextVar("weft_shares_compiled_code", default=True)


@contextlib.contextmanager
def compiled_anew() -> Iterator[None]:
    """What is compiled inside the block shares no compiled code."""
    token = _is_shared.set(False)
    try:
        yield
    finally:
        _is_shared.reset(token)


def context_of(
    function: Callable[..., Any], settings: Hashable, make: Callable[[], Context]
) -> Context:
    """The context for ``function`` and ``settings``: that of an earlier call, else what ``make`` gives.

    Always what ``make`` gives in :func:`compiled_anew`, and for callables other than Python functions and
    methods of modules.
    """
    owner: Any = getattr(function, "__self__", function)
    kind: Any = type(owner)
    is_kept = isinstance(owner, types.FunctionType | torch.nn.Module)
    if not _is_shared.get() or not is_kept or kind.__hash__ is not object.__hash__:
        return make()
    known = _contexts.setdefault(owner, {})
    key = (getattr(function, "__func__", None), settings)
    if key not in known:
        known[key] = make()
    return known[key]


def note_options(context: Context, options: CompileOptions) -> None:
    """Remember with what options a context compiles."""
    _options[context] = options


def options_of(compiled: Any) -> CompileOptions:
    """The options that a function or module was compiled with; the defaults where it is not compiled."""
    for name in ("_compiled_forward", "_compiled_call_impl"):  # of a module
        compiled = getattr(compiled, name, None) or compiled
    context = getattr(compiled, "context", None)
    found = _options.get(context) if isinstance(context, Context) else None
    return resolve_options(None, None) if found is None else found

"""What a forked process must not have of threads that are not in it.

A thread that compiles while another one forks holds a converter's lock, has put the frame evaluator in place
and has stopped the collector; in the new process it would never undo that.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .. import _frame_hook


class ConversionLock:
    """A reentrant lock of the threads of one process."""

    def __init__(self) -> None:
        self._lock: Any = threading.RLock()
        _locks.add(self)

    def acquire(self, *, blocking: bool = True) -> bool:
        """As that of a lock of ``threading``."""
        return bool(self._lock.acquire(blocking=blocking))

    def release(self) -> None:
        """As that of a lock of ``threading``."""
        self._lock.release()

    def after_fork(self) -> None:
        """Be free, unless the thread that forked has it."""
        if not self._lock._is_owned():
            self._lock = threading.RLock()


_locks: weakref.WeakSet[ConversionLock] = weakref.WeakSet()
_converting: dict[int, bool] = {}  # by thread: whether it has stopped the collector


UNINTERRUPTED = 60.0  # seconds
_switch_interval: float | None = None  # of threads, to be set again


@contextmanager
def without_collector(leaves_garbage: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """A conversion, with no cyclic garbage collection inside; the function is asked at its end.

    So is what is compiled later for what was converted, whose graphs live on too.
    """
    thread = threading.get_ident()
    if thread in _converting:
        yield
        return
    collects = _converting[thread] = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        del _converting[thread]
        if collects:
            gc.enable()
            # Else what lives on is looked through twice: while it is new, and again soon.
            if _program_freezes() or leaves_garbage():
                gc.collect(1)
            else:
                gc.freeze()
                gc.unfreeze()


_has_frozen = False


def _program_freezes() -> bool:
    """Whether objects are or were frozen, by the program: they stay apart.  To count them visits them all."""
    global _has_frozen
    _has_frozen = _has_frozen or gc.get_freeze_count() > 0
    return _has_frozen


def _before_fork() -> None:
    """Wait for modules that other threads import for a conversion: their locks would be held for ever."""
    global _switch_interval
    if not _converting.keys() - {threading.get_ident()}:
        return
    interval = sys.getswitchinterval()
    while True:
        sys.setswitchinterval(UNINTERRUPTED)  # until after the fork, if nothing is being imported
        names = [name for name, module in list(sys.modules.items()) if _is_importing(module)]
        if not names:
            _switch_interval = interval
            return
        sys.setswitchinterval(interval)
        for name in names:
            with suppress(Exception):  # of the module's own, which the other thread gets too
                importlib.import_module(name)
        if all(_is_importing(sys.modules.get(name)) for name in names):
            return  # this thread imports them


def _is_importing(module: Any) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _after_fork_in_parent() -> None:
    global _switch_interval
    if _switch_interval is not None:
        sys.setswitchinterval(_switch_interval)
        _switch_interval = None


def _after_fork() -> None:
    _after_fork_in_parent()
    _frame_hook.after_fork()
    for lock in list(_locks):
        lock.after_fork()
    own = threading.get_ident()
    if any(stopped for thread, stopped in _converting.items() if thread != own):
        gc.enable()
    for thread in _converting.keys() - {own}:
        del _converting[thread]


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork
)

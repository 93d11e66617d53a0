"""What a forked process must not have of threads that are not in it.

A thread that compiles while another one forks holds a converter's lock, has put the frame evaluator in place
and has stopped the collector; in the new process it would never undo that.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
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
_stopped_by: set[int] = set()  # threads that have stopped the collector


@contextmanager
def without_collector() -> Iterator[None]:
    """No cyclic garbage collection inside."""
    if not gc.isenabled():
        yield
        return
    thread = threading.get_ident()
    _stopped_by.add(thread)
    gc.disable()
    try:
        yield
    finally:
        _stopped_by.discard(thread)
        gc.enable()


def _after_fork() -> None:
    _frame_hook.after_fork()
    for lock in list(_locks):
        lock.after_fork()
    others = _stopped_by - {threading.get_ident()}
    _stopped_by.difference_update(others)
    if others:
        gc.enable()


os.register_at_fork(after_in_child=_after_fork)

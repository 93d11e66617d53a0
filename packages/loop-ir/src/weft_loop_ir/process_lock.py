"""A lock that a forked process does not find held by a thread that it does not have."""

from __future__ import annotations

import contextlib
import os
import threading


class ProcessLock:
    """A reentrant lock of one process's threads, for ``with``: a forked process begins with it free."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process = os.getpid()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            self._lock, self._process = threading.RLock(), os.getpid()
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(RuntimeError):  # the process was forked inside, by this thread
            self._lock.release()

"""Running a compiler, which may fail, print anything, or never end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile

LONGEST_POLL = 2**31 - 1
"""Milliseconds."""


def run_compiler(command: list[str], seconds: float) -> tuple[int | None, str]:
    """Its exit status, None if it has not ended after ``seconds``, and what it printed.

    Its output goes to a file: a process that it leaves behind could keep a pipe open.  Raises OSError where
    the command can't be run.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = _status_after(process, seconds)
        finally:
            if process.returncode is None:  # too late, or interrupted
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)  # the compiler's own processes too
                process.wait()
        output.seek(0)
        return status, output.read().decode(errors="replace")


def _status_after(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Its exit status as soon as it has ended, None if it has not after ``seconds``.

    ``Popen.wait`` looks at longer and longer intervals, up to 50 ms: compilers of short programs would have
    ended for a third of their time.  Only Linux tells of a process's end to who waits with a limit.
    """
    try:
        ended = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        ended = -1
    try:
        if ended >= 0:
            poll = select.poll()
            poll.register(ended, select.POLLIN)
            return process.wait() if poll.poll(min(seconds * 1000, LONGEST_POLL)) else None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(seconds)
        return None
    finally:
        if ended >= 0:
            os.close(ended)

"""Running a compiler, which may fail, print anything, or never end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile


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
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.returncode is None:  # too late, or interrupted
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)  # the compiler's own processes too
                process.wait()
        output.seek(0)
        return status, output.read().decode(errors="replace")

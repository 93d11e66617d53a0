"""Compiles in processes that are killed, or find the disk full, at a moment at which they touch a cache.

Arguments: an empty folder; ``kill``, ``full``, or ``late``, which ends the process at some time instead, the
compiler's included; and how many moments to choose, 0 for every one (not of ``late``).  Each process
begins with an empty cache, and must give the right result if it lives; the process after it finds what the
first has left, must give the right result too, and leave what a third one loads.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import weft
from weft_loop_ir.disk_cache import ORPHAN_SECONDS, collect

TOUCHING = ("open", "os.", "shutil.", "tempfile.", "subprocess.Popen")
MAKING = ("open", "os.mkdir", "os.rename", "os.link", "os.symlink", "tempfile.mkstemp")
FOLDERS = ("cpp", "programs")
ENTRIES = (".cpp", ".so", ".sum", ".program", ".results")


class Interruption:
    """Counts what a process does to files of a folder, and ends or refuses it at the given count."""

    def __init__(self, folder: Path, at: int, kind: str) -> None:
        self.folder, self.at, self.kind = str(folder), at, kind
        self.count = 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not event.startswith(TOUCHING):
            return
        if event != "subprocess.Popen" and not self._touches(arguments):
            return
        self.count += 1
        if self.kind == "kill" and self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "full" and self.count >= self.at and self._makes(event, arguments):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))

    def _touches(self, arguments: tuple[Any, ...]) -> bool:
        return any(isinstance(a, str | Path) and str(a).startswith(self.folder) for a in arguments)

    def _makes(self, event: str, arguments: tuple[Any, ...]) -> bool:
        is_read = event == "open" and not arguments[2] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)
        return event in MAKING and not is_read


KILLS = (-signal.SIGKILL, -signal.SIGALRM)


def in_a_process(work: Callable[..., int], *arguments: Any) -> int:
    """Run ``work(*arguments)`` in a forked process; gives the number that it gave, or one of ``KILLS``."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, str(work(*arguments)).encode())
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, *KILLS):
        raise SystemExit(f"a process ended with {code}")
    return int(answer) if code == 0 else code


def program(x: torch.Tensor) -> torch.Tensor:
    return (x.exp() * 2).sum(-1)


def compile_program(folder: Path, at: int = 0, kind: str = "") -> int:
    """Compile and compare; gives how often a file of the cache was touched."""
    warnings.simplefilter("ignore")
    os.environ["WEFT_CACHE_DIR"] = str(folder)
    interruption = Interruption(folder, at, kind)
    if kind == "late":
        signal.setitimer(signal.ITIMER_REAL, at / 1000)  # nothing handles it
    sys.addaudithook(interruption)
    x = torch.linspace(-1, 1, 12).view(3, 4)
    torch.testing.assert_close(weft.compile(program)(x), program(x))
    return interruption.count


def loads(folder: Path) -> int:
    """How many programs of the cache a new process runs without compiling anything."""
    os.environ["WEFT_CACHE_DIR"] = str(folder)
    with weft.observe(weft.CompileLog()) as log:
        compile_program(folder)
    stages = {name for report in log.graphs for name in report.seconds}
    return int("program cache" in stages and "loop-ir" not in stages)


def leftovers(folder: Path) -> list[str]:
    """What is in the caches an hour later that is no entry, nor the source of one."""
    old = time.time() - 2 * ORPHAN_SECONDS
    for path in folder.rglob("*"):
        os.utime(path, (old, old))
    for name in FOLDERS:
        collect(folder / name, 0)
    files = {path.name for path in folder.rglob("*") if path.is_file()}
    return sorted(f for f in files if Path(f).suffix not in ENTRIES)


def main() -> None:
    parent, kind, chosen = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    began = time.monotonic()
    touched = in_a_process(compile_program, parent / "whole")
    if kind == "late":
        touched = int(1000 * (time.monotonic() - began))
    moments = range(1, touched + 1)
    if chosen:
        moments = sorted({1 + k * touched // chosen for k in range(chosen)})
    for moment in moments:
        folder = parent / str(moment)
        first = in_a_process(compile_program, folder, moment, kind)
        assert kind == "late" or (first in KILLS) == (kind == "kill"), (moment, first)
        in_a_process(compile_program, folder)
        assert in_a_process(loads, folder), f"nothing is kept after {moment}"
        assert not (left := leftovers(folder)), (moment, left)
        shutil.rmtree(folder)
    sys.stdout.write(f"{len(moments)} of {touched} moments\n")


if __name__ == "__main__":
    main()

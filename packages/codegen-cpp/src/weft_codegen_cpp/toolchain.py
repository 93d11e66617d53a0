"""The C++ compiler: finding it, its flags, running it.

A compiler may fail, print anything, or never end.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from weft_codegen_cpp.cpu import cpu_of
from weft_codegen_cpp.errors import CompileError, CompilerNotFound, CompilerTimeout
from weft_codegen_cpp.options import CppOptions

RUNTIME = Path(__file__).parent / "runtime"
HOST_HEADER = "weft_host.h"
PRECOMPILED = f"{HOST_HEADER}.gch"
HOST_SOURCE = "weft_host_functions.h"
HOST_OBJECT = "weft_host.o"
LINKED_HOST = "-DWEFT_LINKED_HOST"
"""The host's functions are in an object of their own, not in a program's."""

COMPILER_SECONDS = 900.0
"""How long one run of the compiler may take if nothing else is said: one that takes so long is stuck."""

VERSION_SECONDS = 30.0

FLAGS = """
    -std=c++17 -O2 -fno-math-errno -fno-trapping-math -ffp-contract=off -fwrapv -fno-exceptions
    -fno-rtti -fno-stack-protector -Wno-psabi -shared -fPIC
""".split()


@dataclass(frozen=True)
class Toolchain:
    """A compiler and the flags it is run with.  ``version`` is part of the cache's key.

    ``compiler`` is a command of one word or several (``ccache g++``), one run of which may take ``seconds``.
    """

    compiler: tuple[str, ...]
    version: str
    flags: tuple[str, ...]
    seconds: float

    def command(self, source: Path, library: Path, headers: Path | None = None) -> list[str]:
        """``headers``: a folder with what :meth:`precompile` has made."""
        made = [] if headers is None else [LINKED_HOST, f"-I{headers}", str(headers / HOST_OBJECT)]
        folders = [*made, f"-I{RUNTIME}"]
        return [*self.compiler, *self.flags, *folders, str(source), "-o", str(library)]

    def compile(
        self, source: Path, library: Path, *, units: Sequence[str] = (), headers: Path | None = None
    ) -> None:
        """Compile ``source`` to ``library``; raises :class:`CompileError`.

        Several ``units`` are what is compiled instead, all at once, beside ``source``, and then linked.
        ``headers`` is a folder with what :meth:`precompile` has made, which ``source`` is compiled with, and
        which is deleted where the compiler can't read it.
        """
        if len(units) < 2:
            if headers is not None and self._compile_with(headers, source, library):
                return
            self._run(self.command(source, library), source)
            if headers is not None:  # it was they that failed
                for name in (PRECOMPILED, HOST_OBJECT):
                    (headers / name).unlink(missing_ok=True)
            return
        parts = [source.with_suffix(f".{number}.cpp") for number in range(len(units))]
        objects = [part.with_suffix(".o") for part in parts]
        try:
            for part, unit in zip(parts, units, strict=True):
                part.write_text(unit)
            commands = [
                [*self.command(part, made), "-c", "-DWEFT_SEPARATE"]
                for part, made in zip(parts, objects, strict=True)
            ]
            with ThreadPoolExecutor(len(units)) as pool:
                list(pool.map(self._run, commands, parts))
            link = [*self.compiler, *self.flags, *map(str, objects), "-o", str(library)]
            self._run(link, source)
        finally:
            for made in objects:
                made.unlink(missing_ok=True)
        for part in parts:  # they stay if a compiler fails
            part.unlink()

    def _compile_with(self, headers: Path, source: Path, library: Path) -> bool:
        try:
            self._run(self.command(source, library, headers), source)
        except CompilerTimeout:
            raise
        except CompileError:
            return False  # of a damaged file, perhaps: without it the compiler says what is wrong
        return True

    @property
    def precompiles(self) -> bool:
        """Whether this compiler finds precompiled headers by their names, as GCC does."""
        return "clang" not in (_version(self.compiler) or "").lower()

    def precompile(self, headers: Path, functions: Path) -> None:
        """Make ``headers`` of what every program includes, and an object of the host's ``functions``.

        Raises :class:`CompileError`.  What the compiler reads is a file that includes the header, not the
        header itself: GCC takes no notice of ``#pragma once`` in the latter.
        """
        for result, name, language in (
            (headers, HOST_HEADER, "c++-header"),
            (functions, HOST_SOURCE, "c++"),
        ):
            source = result.with_suffix(".h")
            source.write_text(f'#include "{name}"\n')
            try:
                options = ["-x", language, "-c", LINKED_HOST]
                command = self.command(source, result)
                words = len(self.compiler)
                self._run([*self.compiler, *options, *command[words:]], source)
            finally:
                source.unlink()

    def _run(self, command: list[str], source: Path) -> None:
        """Run the compiler; raises :class:`CompileError` with what it printed about ``source``."""
        status, printed = run_compiler(command, self.seconds)
        if status is None:
            raise CompilerTimeout(command, str(source), self.seconds)
        if status != 0:
            raise CompileError(command, str(source), printed)


KERNELS_A_PROCESS = 10
"""Fewer distinct kernels than this don't pay for another compiler process."""


def idle_processes(kernels: int) -> int:
    """How many compiler processes to run at once for so many kernels, by the cores that are idle."""
    try:
        idle = len(os.sched_getaffinity(0)) - os.getloadavg()[0]
    except (AttributeError, OSError):  # not every system says
        return 1
    return max(1, min(round(idle), kernels // KERNELS_A_PROCESS))


def find_toolchain(options: CppOptions) -> Toolchain:
    """The compiler named by the options, the environment or the path; raises :class:`CompilerNotFound`."""
    named = (options.compiler or os.environ.get("CXX") or "").strip()
    candidates = [named] if named else ["g++", "clang++", "c++"]
    mute = []
    for candidate in candidates:
        words = _words(candidate)
        version = _version(words) if words else None
        if version is not None:
            flags = _flags(options, "clang" in version.lower())
            return Toolchain(words, version.splitlines()[0], flags, _seconds(options))
        if words:
            mute.append(shlex.join(words))
    raise CompilerNotFound(
        f"No C++ compiler was found (looked for {', '.join(candidates)}"
        + (f"; {', '.join(mute)} did not answer --version" if mute else "")
        + "): install g++ or clang++, or name one in the environment variable CXX."
    )


def _words(named: str) -> tuple[str, ...]:
    """The command that ``named`` says, its program with its path; empty where there is no such program.

    ``ccache g++`` and ``"/a folder/g++" -m64`` are several words, a path with blanks alone is one.
    """
    whole = shutil.which(named)
    if whole is not None:
        return (whole,)
    try:
        words = shlex.split(named)
    except ValueError:  # a quote that is not closed
        return ()
    program = shutil.which(words[0]) if words else None
    return () if program is None else (program, *words[1:])


def _seconds(options: CppOptions) -> float:
    """How long one run of the compiler may take; raises ValueError for a setting that is no number."""
    if options.compiler_seconds is not None:
        return options.compiler_seconds
    return float(os.environ.get("WEFT_COMPILER_SECONDS") or COMPILER_SECONDS)


@functools.cache
def _version(command: tuple[str, ...]) -> str | None:
    """What a compiler says of itself; None where it can't be run, fails or takes too long."""
    try:
        status, printed = run_compiler([*command, "--version"], VERSION_SECONDS)
    except OSError:
        return None
    return (printed.strip() or shlex.join(command)) if status == 0 else None


def _flags(options: CppOptions, clang: bool) -> tuple[str, ...]:
    machine = "-mcpu" if platform.machine() in ("aarch64", "arm64") else "-march"
    lanes = cpu_of(options).lanes
    flags = [*FLAGS, f"{machine}={options.architecture or 'native'}", f"-DWEFT_LANES={lanes}"]
    if lanes == 16 and platform.machine() in ("x86_64", "AMD64"):
        flags.append("-mprefer-vector-width=512")
    if platform.system() == "Darwin":
        flags.append("-Wl,-undefined,dynamic_lookup")
    else:
        flags.append("-nostdlib")
    if clang:
        flags.append("-Wno-everything")
    return tuple(flags)


# -- the compiler's process ----------------------------------------------------------------------------


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

"""Asks the compile server for kernels that are not in the cache."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO

from weft_loop_ir.disk_cache import collect, discard_entry, trusted_folder
from weft_loop_ir.process_lock import ProcessLock

from weft_codegen_triton.compilation.binary import CompileJob, KernelBinary
from weft_codegen_triton.compilation.cache import read_binary
from weft_codegen_triton.errors import CompileError, DeviceUnavailable

MAX_PROCESSES = 16
COMPILER_SECONDS = 900.0
"""How long the next of several kernels may take if ``WEFT_COMPILER_SECONDS`` says nothing else."""

STOPPING_SECONDS = 10.0
START = (
    "import sys, pathlib; from weft_codegen_triton.compilation.server import serve; "
    "serve(pathlib.Path(sys.argv[1]), int(sys.argv[2]))"
)


class CompileServer:
    """A process that compiles kernels into ``folder``, ``processes`` at once; it ends with this one."""

    def __init__(self, folder: Path, processes: int) -> None:
        self.folder = folder
        self._processes = processes
        self._lock = ProcessLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._received = b""  # of answers

    def start(self) -> None:
        """Start the process, which then imports Triton while this one goes on."""
        with self._lock:
            self._running()

    def _running(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is not None and self._owner != os.getpid():
            _let_go(process)
        if process is None or self._owner != os.getpid() or process.poll() is not None:
            environment = {**os.environ, "TRITON_CACHE_DIR": str(self.folder / "work")}
            environment.pop("TRITON_INTERPRET", None)
            environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
            trusted_folder(self.folder)
            collect(self.folder)
            process = subprocess.Popen(
                [sys.executable, "-c", START, str(self.folder), str(self._processes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # its children end with it
            )
            weakref.finalize(self, _stop, process, os.getpid())
            self._process, self._owner, self._received = process, os.getpid(), b""
        return process

    def compile(self, jobs: Iterable[CompileJob]) -> dict[str, KernelBinary]:
        """The binaries of ``jobs`` by key, from the cache where it has them.

        Raises :class:`CompileError` if Triton fails on one, after all have been tried.
        """
        wanted = {job.key(): job for job in jobs}
        found, errors = self._find(wanted)
        for key, error in errors.items():
            raise CompileError(f"Triton failed on {self.folder / f'{key}.py'}\n{error}")
        for key, job in wanted.items():
            if key not in found:
                raise CompileError(f"{job.name}: the compiled kernel is not in {self.folder}")
        return found

    def compile_each(self, jobs: Iterable[CompileJob]) -> dict[str, KernelBinary]:
        """The binaries by key of those of ``jobs`` that Triton does not fail on."""
        found, _ = self._find({job.key(): job for job in jobs})
        return found

    def compile_again(self, job: CompileJob) -> KernelBinary:
        """The binary of ``job``, compiled although the cache has one, which can't be loaded."""
        for suffix in ("json", "cubin"):
            discard_entry(self.folder, f"{job.key()}.{suffix}")
        return self.compile([job])[job.key()]

    def _find(
        self, jobs: Mapping[str, CompileJob]
    ) -> tuple[dict[str, KernelBinary], dict[str, str]]:
        """Binaries, compiled now if they are not in the cache, and what Triton says of those that fail."""
        cached = {key: read_binary(self.folder, key) for key in jobs}
        missing = {key: job for key, job in jobs.items() if cached[key] is None}
        errors = self._build(missing) if missing else {}
        cached.update((key, read_binary(self.folder, key)) for key in missing)
        return {key: binary for key, binary in cached.items() if binary is not None}, errors

    def _build(self, jobs: Mapping[str, CompileJob]) -> dict[str, str]:
        """Have ``jobs`` compiled; gives the errors by key."""
        with self._lock:
            process = self._running()
            assert process.stdin is not None and process.stdout is not None
            lines = [json.dumps(asdict(job)).encode() + b"\n" for job in jobs.values()]
            # a thread, for the server may be waiting until its answers are read
            sender = threading.Thread(target=_send, args=(process.stdin, lines), daemon=True)
            sender.start()
            errors = {}
            unanswered = set(jobs)
            while unanswered:  # answers to a call that was interrupted may come first
                line = self._next_answer(process)
                if not line:
                    raise CompileError("the compile server has ended; its stderr says why")
                answer = json.loads(line)
                key = str(answer["key"])
                if key in unanswered and answer["error"]:
                    errors[key] = str(answer["error"])
                unanswered.discard(key)
        return errors

    def _next_answer(self, process: subprocess.Popen[bytes]) -> bytes:
        """A line of the server's; empty where it has ended.

        Raises :class:`CompileError` where none comes in time: then the server is stopped.
        """
        assert process.stdout is not None
        seconds = float(os.environ.get("WEFT_COMPILER_SECONDS") or COMPILER_SECONDS)
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._received:
                if not selector.select(seconds):
                    _kill(process)
                    raise CompileError(
                        f"Triton did not compile a kernel in {seconds:g} seconds (WEFT_COMPILER_SECONDS)"
                    )
                part = os.read(process.stdout.fileno(), 1 << 16)
                if not part:
                    return b""
                self._received += part
        line, _, self._received = self._received.partition(b"\n")
        return line


def _let_go(process: subprocess.Popen[bytes]) -> None:
    """Not keep a parent's server from seeing its end; the file objects may be in use by threads of it."""
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None and not pipe.closed:
            os.dup2(nowhere, pipe.fileno(), inheritable=False)
    os.close(nowhere)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _send(stream: IO[bytes], lines: Iterable[bytes]) -> None:
    with contextlib.suppress(OSError):  # the server has ended: so does its output, which is noticed
        for line in lines:
            stream.write(line)
        stream.flush()


def _stop(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(STOPPING_SECONDS)
        except subprocess.TimeoutExpired:
            _kill(process)


@functools.cache
def compile_server(folder: Path, processes: int) -> CompileServer:
    """The server for ``folder``; ``processes`` 0 is one a processor, at most 16.

    Raises :class:`DeviceUnavailable` where Triton isn't installed.
    """
    require_triton()
    return CompileServer(folder, processes or min(MAX_PROCESSES, os.cpu_count() or 1))


def require_triton() -> None:
    """Raise :class:`DeviceUnavailable` where Triton isn't installed."""
    if not has_triton():
        raise DeviceUnavailable(
            "weft compiles for GPUs with Triton, which is not installed: "
            "pip install 'weft-codegen-triton[gpu]'"
        )


def has_triton() -> bool:
    """Whether Triton is installed; it is not imported."""
    return importlib.util.find_spec("triton") is not None

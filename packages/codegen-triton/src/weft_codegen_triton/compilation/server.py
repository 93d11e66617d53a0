"""The compile server: a warm process that forks a child for each kernel.

It imports Triton once, without torch, and stays single-threaded, so that forking is quick and safe.
A request is a line of JSON, a :class:`~weft_codegen_triton.compilation.binary.CompileJob`; an answer is a
line of JSON with the job's ``key`` and ``error``, which is null once the kernel is in the cache.
"""

from __future__ import annotations

import json
import os
import selectors
import sys
import traceback
from collections import deque
from pathlib import Path

from weft_codegen_triton.compilation.binary import CompileJob
from weft_codegen_triton.compilation.cache import write_binary


def serve(folder: Path, processes: int) -> None:
    """Answer requests on standard input until it closes, ``processes`` at once."""
    import weft_codegen_triton.runtime.device_functions  # noqa: F401 - the children need it too
    from weft_codegen_triton.compilation.build import prepare

    prepare()
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    waiting: deque[CompileJob] = deque()
    running: dict[int, tuple[int, str]] = {}  # the read end of a child's pipe: (child, key)
    rest = b""
    is_open = True
    while is_open or waiting or running:
        while waiting and len(running) < processes:
            job = waiting.popleft()
            child, pipe = _start(job, folder)
            running[pipe] = child, job.key()
            selector.register(pipe, selectors.EVENT_READ)
        for event, _ in selector.select():
            if event.fd == 0:
                received = os.read(0, 1 << 20)
                is_open = bool(received)
                *lines, rest = (rest + received).split(b"\n")
                waiting.extend(_job(line) for line in lines)
                if not is_open:
                    return
            else:
                selector.unregister(event.fd)
                _answer(event.fd, *running.pop(event.fd))


def _job(line: bytes) -> CompileJob:
    fields = json.loads(line)
    fields["aligned"] = tuple(fields["aligned"])
    return CompileJob(**fields)


def _start(job: CompileJob, folder: Path) -> tuple[int, int]:
    """Fork a child that compiles ``job``; gives its process and a pipe on which it reports an error."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child:
        os.close(write_end)
        return child, read_end
    os.dup2(2, 1)  # what the compiler prints is no answer
    error = _compile(job, folder)
    with os.fdopen(write_end, "w") as pipe:
        pipe.write(error)
    os._exit(0)


def _compile(job: CompileJob, folder: Path) -> str:
    from weft_codegen_triton.compilation.build import build

    try:
        write_binary(folder, job.key(), build(job, folder))
    except BaseException:  # whatever it is, the client raises it
        return traceback.format_exc()
    return ""


def _answer(pipe: int, child: int, key: str) -> None:
    with os.fdopen(pipe) as file:
        error = file.read()
    _, status = os.waitpid(child, 0)
    if status and not error:
        error = f"the compiler's process ended with status {status}"
    sys.stdout.write(json.dumps({"key": key, "error": error or None}) + "\n")
    sys.stdout.flush()

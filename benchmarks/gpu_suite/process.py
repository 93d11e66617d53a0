"""The process of one measurement of the suite."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.gpu_suite.results import Key, Result


class Measurement:
    """A process with caches of its own, on one of ``gpus`` GPUs and its share of the processors."""

    def __init__(self, key: Key, references: Path, gpu: int, gpus: int, dry: bool) -> None:
        self.key = key
        self._start = time.perf_counter()
        self._ready = False
        self._unfinished: float | None = None
        self._caches = tempfile.TemporaryDirectory()
        folder = self._caches.name
        environment = {
            **os.environ,
            **({} if dry else {"CUDA_VISIBLE_DEVICES": _visible(gpu)}),
            "WEFT_CACHE_DIR": f"{folder}/weft",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch",
            "TRITON_CACHE_DIR": f"{folder}/triton",
        }
        command = [sys.executable, "-m", "benchmarks.gpu_suite.measure", key.model, key.compiler]
        command += [str(key.task), str(references), *(["--dry"] if dry else [])]
        self._errors = Path(folder) / "errors"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                cwd=Path(__file__).parents[2],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # so that its compiling workers end with it
            )
        processors = sorted(os.sched_getaffinity(0))
        first, end = (len(processors) * i // gpus for i in (gpu, gpu + 1))
        if first < end:
            os.sched_setaffinity(self._process.pid, processors[first:end])

    def kill(self) -> None:
        """End it and the processes that it started."""
        if self._process.poll() is None:
            self._unfinished = time.perf_counter() - self._start
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def wait_until_ready(self, moment: float) -> None:
        """Wait until everything was built, compiled and run, or until this moment of ``perf_counter``."""
        assert self._process.stdout is not None
        with _Limit(self, moment):
            self._ready = any(line.strip() == "ready" for line in self._process.stdout)

    def result(self, moment: float) -> Result:
        """Let the process time itself, until ``moment`` at the latest, and end it.

        The key's fields with its figures, or ``unfinished``: the seconds after which it was ended, or its
        last words as ``failure``.
        """
        with _Limit(self, moment):
            output = self._process.communicate("go\n" if self._ready else None)[0]
        if self._process.returncode == 0 and output:
            found: Result = json.loads(output.splitlines()[-1])
        elif self._unfinished is not None:
            found = {"unfinished": round(self._unfinished)}
        else:
            found = {"failure": self._errors.read_text()[-600:]}
        self._caches.cleanup()
        return self.key.fields() | found


def _visible(gpu: int) -> str:
    """The name of the GPU of this number among those that this process sees."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    return str(gpu) if names is None else names.split(",")[gpu]


class _Limit:
    """Kills a measurement at a moment of ``perf_counter``, unless the block is left before."""

    def __init__(self, measurement: Measurement, moment: float) -> None:
        self._timer = threading.Timer(max(0.0, moment - time.perf_counter()), measurement.kill)

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

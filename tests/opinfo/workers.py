"""Processes that check one case at a time, so that a crash or an endless loop loses that case only."""

from __future__ import annotations

import json
import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from tests.opinfo.checking import Case, Outcome

ROOT = Path(__file__).parents[2]
START_SECONDS = 120.0
"""What importing torch and its database may take besides a case's own time."""


class Worker:
    """A process of ``python -m tests.opinfo.report``, or ``module``; a new one follows each that ended."""

    def __init__(self, arguments: list[str], module: str = "tests.opinfo.report") -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def ask(self, case: Case, seconds: float) -> Outcome:
        """The outcome of ``case``; an error where the process crashes or takes more than ``seconds``."""
        return Outcome(**self.answer(str(case), seconds))

    def answer(self, question: str, seconds: float) -> dict[str, Any]:
        """The JSON object that the process prints for a line; only "errors" where it does not in time."""
        extra = 0.0
        if self._process is None:
            self._start()
            extra = START_SECONDS
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        try:
            line = self._lines.get(timeout=seconds + extra)
        except queue.Empty:
            self._end()
            return {"errors": [f"no answer in {seconds:g} s"]}
        if line is None:
            code = self._process.wait()
            self._end()
            return {"errors": [f"the process ended with {code}"]}
        found: dict[str, Any] = json.loads(line)
        return found

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self._lines = queue.Queue()
        arguments = (self._process, self._lines)
        threading.Thread(target=_read, args=arguments, daemon=True).start()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def answer_all(
    questions: Iterable[str],
    worker: Callable[[], Worker],
    failure: Callable[[str, str], dict[str, Any]],
    file: TextIO,
    *,
    jobs: int,
    question_seconds: float,
    end: float = math.inf,
    observe: Callable[[dict[str, Any]], None] = lambda answer: None,
) -> list[dict[str, Any]]:
    """What ``jobs`` workers answer, also written to ``file``, a line of JSON each.

    ``failure`` makes the answer to a question of what went wrong with the process.  No question is asked
    after ``end``, a time of :func:`time.monotonic`.  ``observe`` is given each answer.
    """
    rest = iter(questions)
    answers: list[dict[str, Any]] = []

    def work(_: int) -> None:
        with worker() as process:
            for question in rest:
                if time.monotonic() > end:
                    return
                answer = process.answer(question, question_seconds)
                if "errors" in answer:
                    answer = failure(question, answer["errors"][0])
                observe(answer)
                answers.append(answer)
                file.write(json.dumps(answer) + "\n")
                file.flush()

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, range(jobs)))
    return answers


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    """Put the lines of JSON that the process prints, then None."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            lines.put(line)
    lines.put(None)

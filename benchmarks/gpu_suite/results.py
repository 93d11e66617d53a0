"""What the suite measures, and the file of results: a line of JSON for each measurement."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

COMPILERS = (
    *("eager", "torch.compile", "torch.compile:reduce-overhead", "torch.compile:max-autotune"),
    *("weft", "weft:max-autotune"),
)
"""Each may be left out; what follows the colon is the mode."""

Result = dict[str, Any]
"""A measurement's fields, and its figures, or its ``failure``, or ``unfinished``: the seconds it had."""


@dataclass(frozen=True)
class Task:
    """Inference in a dtype, or a step of training under autocast to it."""

    what: str
    dtype: str

    @classmethod
    def parse(cls, text: str) -> Task:
        """From ``infer:DTYPE`` or ``train:DTYPE``; ValueError for anything else."""
        what, _, dtype = text.partition(":")
        if what not in ("infer", "train") or not isinstance(getattr(torch, dtype, 0), torch.dtype):
            raise ValueError(f"{text!r} is no task: infer:float16, train:bfloat16, ...")
        return cls(what, dtype)

    def __str__(self) -> str:
        return f"{self.what}:{self.dtype}"


@dataclass(frozen=True)
class Key:
    """One measurement: a process of its own, a cell of a table."""

    model: str
    compiler: str
    task: Task

    def fields(self) -> Result:
        return {
            "model": self.model,
            "compiler": self.compiler,
            "what": self.task.what,
            "dtype": self.task.dtype,
        }


Results = dict[Key, Result]


def read_results(paths: Iterable[Path]) -> Results:
    """The last result of each measurement in the files; those that aren't there are taken for empty."""
    found: Results = {}
    for path in paths:
        for line in path.read_text().splitlines() if path.exists() else ():
            result: Result = json.loads(line)
            task = Task(result["what"], result["dtype"])
            found[Key(result["model"], result["compiler"], task)] = result
    return found


def is_done(result: Result | None, seconds: float) -> bool:
    """Whether there is nothing to gain from measuring again with at most ``seconds`` to get ready."""
    if result is None:
        return False
    return "ms" in result or result.get("unfinished", 0.0) >= seconds

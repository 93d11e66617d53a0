"""Errors of the whole operator database beside eager's: ``python -m tests.opinfo.error_report --help``.

Prints what differs, by operator, and counts.  Exits with 1 if anything does.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import weft
from torch.utils._pytree import tree_leaves, tree_map

from tests.opinfo.checking import (
    UNDEFINED,
    Case,
    Outcome,
    compare,
    copy_of,
    operator_names,
)
from tests.opinfo.perturbed import Attempt, changed_samples, listed_errors
from tests.opinfo.sweeps import command

IN_PLACE = ".in place"
DTYPES = (torch.float32, torch.int64)
UNSAFE = frozenset({"linalg.eigvals", "lu_unpack"})
"""Operators whose own kernels end the process for a changed sample, without a compiler."""


def error_cases() -> Iterator[Case]:
    """Every operator, and its form in place, in the first of :data:`DTYPES` that it takes."""
    for name, op in operator_names().items():
        supported = op.supported_dtypes("cpu")
        dtype = next((dtype for dtype in DTYPES if dtype in supported), None)
        if dtype is None or op.name in UNDEFINED | UNSAFE:
            continue
        for dynamic in (False, True):
            yield Case(name, dtype, dynamic)
            if op.inplace_variant is not None:
                yield Case(name + IN_PLACE, dtype, dynamic)


def call(function: Callable[..., Any], value: Any, args: Any, kwargs: Any) -> Any:
    """What is compiled."""
    return function(value, *args, **kwargs)


def check_errors(case: Case, samples: int, every: int = 1) -> Outcome:
    """Compare every ``every``\\ th call that eager refuses, of listed errors and ``samples`` samples changed.

    One of each message of eager's, numbers apart.
    """
    name = case.name.removesuffix(IN_PLACE)
    op = operator_names()[name]
    function = op.op if name == case.name else op.inplace_variant
    attempts = _attempts(op, case.dtype, samples)
    return check_attempts(function, attempts, case.dynamic, every)


def check_attempts(
    function: Callable[..., Any], attempts: Iterable[Attempt], dynamic: bool, every: int = 1
) -> Outcome:
    """Compare every ``every``\\ th call of ``function`` that eager refuses, one of each message."""
    torch.manual_seed(0)
    outcome = Outcome()
    met: set[str] = set()
    for attempt in attempts:
        expected = _outcome_of(call, function, attempt)
        if expected.error is None:
            continue
        kind = re.sub(r"-?\d+(\.\d+)?", "N", f"{expected.error}")
        if kind in met:
            continue
        met.add(kind)
        if len(met) % every:
            continue
        weft.reset()
        compiled = weft.compile(call, dynamic=dynamic, options={"strict": False})
        found = _outcome_of(compiled, function, attempt)
        outcome.samples += 1
        difference = found.difference(expected)
        if difference:
            outcome.wrong.append(f"{attempt.change}: {difference}"[:600])
    return outcome


def _attempts(op: Any, dtype: torch.dtype, samples: int) -> Iterator[Attempt]:
    yield from listed_errors(op)
    yield from changed_samples(op, dtype, samples)


class _Run:
    """What a call has given or raised, and its tensor arguments afterwards."""

    def __init__(self, error: tuple[str, str] | None, result: Any, arguments: Any) -> None:
        self.error = error
        self.result = result
        self.arguments = arguments

    def difference(self, expected: _Run) -> str:
        """How it differs from eager's error; empty if it does not."""
        if self.error is None:
            return f"gives {str(self.result)[:100]!r} where {expected.error} is raised"
        if self.error != expected.error:
            return f"raises {self.error} where {expected.error} is raised"
        changed = compare(self.arguments, expected.arguments)
        return f"after {self.error} an argument differs: {changed}" if changed else ""


def _outcome_of(function: Callable[..., Any], operator: Any, attempt: Attempt) -> _Run:
    value, args, kwargs = tree_map(copy_of, attempt.arguments)
    torch.manual_seed(0)
    error, result = None, None
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = function(operator, value, args, kwargs)
        except Exception as raised:
            error = (type(raised).__name__, str(raised))
    tensors = [
        _whole_storage(leaf)
        for leaf in tree_leaves((value, args, kwargs))
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided
    ]
    return _Run(error, result, tensors)


def _whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    """All elements of the tensor's storage: a call may write to none that are not its own."""
    if tensor.device.type != "cpu" or tensor.is_conj() or tensor.is_neg():
        return tensor
    whole = torch.empty(0, dtype=tensor.dtype)
    return whole.set_(tensor.untyped_storage())


if __name__ == "__main__":
    command(error_cases, check_errors, "tests.opinfo.error_report")

"""One entry of torch's operator database with symbolic sizes and numbers, strictly, beside eager.

Every sample is called through one compiled function, so that sizes, numbers and flags of the samples before
it have become symbols, and samples of different kinds each through a function of its own.  Operators that
write to their argument and gradients are checked where the database has them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from unittest import mock

import torch
import weft
import weft_aot_autograd
import weft_bytecode_capture
import weft_functionalize
import weft_loop_ir
from torch.utils._pytree import tree_flatten
from weft.contexts import compiled_anew

from tests.opinfo import checking, gradients
from tests.opinfo.checking import UNDEFINED, Case, Outcome, note_reports, operator_names

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128, torch.int64, torch.bool)
GRADIENTS = (torch.float32, torch.float64, torch.complex128)
KINDS = 6
"""How many kinds of samples (dtypes, ranks, flags) are compiled anew."""

_REFUSALS = (
    weft_bytecode_capture.Unsupported,
    weft_functionalize.Unsupported,
    weft_aot_autograd.Unsupported,
    weft_loop_ir.Unsupported,
)


def dynamic_cases() -> Iterator[Case]:
    """Every operator with every dtype of :data:`DTYPES` that it supports."""
    for name, op in operator_names().items():
        supported = op.supported_dtypes("cpu")
        for dtype in DTYPES:
            if dtype in supported and op.name not in UNDEFINED:
                yield Case(name, dtype, dynamic=True)


@dataclass
class _Seen:
    """What stages said of graphs that were then captured again with numbers in place of symbols."""

    refusals: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def note(self, *_: object) -> None:
        error = sys.exception()
        text = f"{type(error).__name__}: {error}".split("\n")[0]
        is_fault = isinstance(error, weft.StageError) and not isinstance(error.__cause__, _REFUSALS)
        (self.faults if is_fault else self.refusals).append(text)  # fakes may reject symbols too


@contextmanager
def _watched() -> Iterator[_Seen]:
    """See what makes capture give up symbols: it is no error of the call."""
    seen = _Seen()
    with ExitStack() as stack:
        for request in (
            weft_bytecode_capture.SpecialiseSizes,
            weft_bytecode_capture.DropDataDependence,
        ):
            stack.enter_context(
                mock.patch.object(request, "__init__", lambda self, *a: seen.note(*a))
            )
        yield seen


@dataclass(frozen=True)
class _Way:
    """A way of calling an operator: what is compiled, what runs it, and how results are compared."""

    name: str
    op: Any
    function: Callable[..., Any]
    run: Callable[..., Any]
    differs: Callable[..., str]
    requires_grad: bool


def _call_and_written(op: Any, value: Any, args: Any, kwargs: Any) -> Any:
    """Results and what is then in the first argument."""
    return op(value, *args, **kwargs), value


def _call_on_copy(op: Any, value: Any, args: Any, kwargs: Any) -> Any:
    return op(value.clone(), *args, **kwargs)


class _Function:
    """What is called in place of an entry of the database."""

    def __init__(self, function: Any) -> None:
        self.op = function


def _plain_difference(result: Any, expected: Any, op: Any, arguments: Any) -> str:
    del op, arguments
    return checking.compare(result, expected)


def _ways(op: Any, dtype: torch.dtype) -> Iterator[_Way]:
    in_place = op.get_inplace()
    yield _Way("", op, checking.call, checking._run, _plain_difference, False)
    if in_place is not None:
        written = _Function(in_place)
        yield _Way("in place", written, _call_and_written, checking._run, _plain_difference, False)
    if op.supports_autograd and dtype in GRADIENTS and dtype in op.supported_backward_dtypes("cpu"):
        differs = gradients._difference
        yield _Way("gradients", op, checking.call, gradients.run, differs, True)
        if in_place is not None and op.supports_inplace_autograd:
            yield _Way("gradients in place", written, _call_on_copy, gradients.run, differs, True)


def check_dynamic(case: Case, limit: int) -> Outcome:
    """Compare up to ``limit`` samples of ``case`` with eager, in every way that the database has."""
    op = operator_names()[case.name]
    outcome = Outcome()
    for way in _ways(op, case.dtype):
        torch.manual_seed(0)
        samples = op.sample_inputs("cpu", case.dtype, requires_grad=way.requires_grad)
        one = _compiled(way.function)
        kinds: set[Any] = set()
        for number, sample in enumerate(islice(samples, limit)):
            arguments = (sample.input, sample.args, sample.kwargs)
            try:
                expected = way.run(way.function, way.op, arguments)
            except Exception:
                continue  # eager refuses the sample
            if expected is None:
                continue
            where = f"{way.name}, sample {number}" if way.name else f"sample {number}"
            _check(one, way, arguments, expected, f"{where} after others", outcome)
            kind = _kind(arguments)
            if number and kind not in kinds and len(kinds) < KINDS:
                alone = _compiled(way.function)
                _check(alone, way, arguments, expected, where, outcome)
            kinds.add(kind)
    return outcome


def _compiled(function: Callable[..., Any]) -> Any:
    with compiled_anew():
        options = {"strict": True, "verify": True, "recompile_limit": 1_000_000}
        return weft.compile(function, dynamic=True, options=options)


def _kind(arguments: Any) -> Any:
    """What samples of one kind have in common: all but sizes and numbers."""
    leaves, structure = tree_flatten(arguments)
    return str(structure), *map(_kind_of_leaf, leaves)


def _kind_of_leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        is_dense = leaf.layout == torch.strided and leaf.is_contiguous()
        return leaf.dtype, leaf.layout, leaf.dim(), is_dense
    if isinstance(leaf, int | float) and not isinstance(leaf, bool):
        return type(leaf)
    return str(leaf)


def _check(
    compiled: Any, way: _Way, arguments: Any, expected: Any, where: str, outcome: Outcome
) -> None:
    log = weft.CompileLog()
    with _watched() as seen:
        try:
            with weft.observe(log), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = way.run(compiled, way.op, arguments)
        except Exception as error:
            text = f"{where}: {type(error).__name__}: {error}"[:600]
            refused = isinstance(error, weft.StageError) and isinstance(error.__cause__, _REFUSALS)
            (outcome.refused if refused else outcome.errors).append(text)
            return
        finally:
            outcome.refused += [f"{where}: {text}"[:600] for text in seen.refusals]
            outcome.errors += [f"{where}: behind symbols: {text}"[:600] for text in seen.faults]
    note_reports(log, outcome)
    difference = way.differs(result, expected, way.op, arguments)
    if difference:
        outcome.wrong.append(f"{where}: {difference}"[:600])

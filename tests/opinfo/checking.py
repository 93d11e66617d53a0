"""One entry of torch's operator database, through ``weft.compile`` and beside eager."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import weft
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core
from torch.utils._pytree import tree_leaves, tree_map


def _plain_call(op: Any, *arguments: Any, **keywords: Any) -> Any:
    return op(*arguments, **keywords)


# The database wraps random operators in a context that saves the generator's state, which capture breaks on;
# here every run seeds by itself.
database.wrapper_set_seed = _plain_call
# They read the sources of the whole stack, at each operator's samples, to find the unittest test that asks.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16)
TOLERANCE = {
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1e-2},
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
}
UNDEFINED = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided".split()
)
"""Operators whose results hold whatever was in memory."""


@dataclass(frozen=True)
class Case:
    """An operator of the database with one dtype, and whether sizes are symbols."""

    name: str
    dtype: torch.dtype
    dynamic: bool

    def __str__(self) -> str:
        sizes = "dynamic" if self.dynamic else "static"
        return f"{self.name}-{str(self.dtype).removeprefix('torch.')}-{sizes}"


@dataclass
class Outcome:
    """What became of a case: ``wrong`` and ``errors`` say how its samples failed, empty if none did.

    ``refused`` says why a stage gave up a graph or its symbols, where the case asks for that.
    ``samples`` counts those compared.  ``kernels`` and ``externs`` count steps of the compiled graphs,
    ``eager`` holds why a graph ran eagerly, ``breaks`` why there was more than one graph, ``fallbacks``
    the operators that stayed calls of torch, with counts.
    """

    samples: int = 0
    kernels: int = 0
    externs: int = 0
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    eager: list[str] = field(default_factory=list)
    breaks: list[str] = field(default_factory=list)
    fallbacks: dict[str, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """``wrong``, ``error``, ``refused``, ``no sample``; else ``compiled``, ``in parts`` or ``eager``."""
        if self.wrong:
            return "wrong"
        if self.errors:
            return "error"
        if self.refused:
            return "refused"
        if not self.samples:
            return "no sample"
        if self.kernels + self.externs == 0:
            return "eager" if self.eager or self.breaks else "compiled"
        return "in parts" if self.eager or self.breaks else "compiled"


def operator_names() -> dict[str, Any]:
    """The database by name and variant."""
    return {
        f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op
        for op in database.op_db
    }


def all_cases() -> Iterator[Case]:
    """Every operator with every dtype that it supports, static sizes before dynamic ones."""
    for name, op in operator_names().items():
        supported = op.supported_dtypes("cpu")
        for dtype, dynamic in itertools.product(DTYPES, (False, True)):
            if dtype in supported and op.name not in UNDEFINED:
                yield Case(name, dtype, dynamic)


def call(op: Any, value: Any, args: Any, kwargs: Any) -> Any:
    """What is compiled."""
    return op(value, *args, **kwargs)


def check(case: Case, limit: int, skip: int = 0) -> Outcome:
    """Compare ``limit`` samples of ``case`` with eager, after the first ``skip``."""
    op = operator_names()[case.name]
    torch.manual_seed(0)
    outcome = Outcome()
    samples = op.sample_inputs("cpu", case.dtype, requires_grad=False)
    for number, sample in enumerate(itertools.islice(samples, skip, skip + limit)):
        arguments = (sample.input, sample.args, sample.kwargs)
        try:
            expected = _run(call, op, arguments)
        except Exception:
            continue  # eager refuses the sample
        _check_sample(case, op, arguments, expected, number + skip, outcome)
    return outcome


def _check_sample(
    case: Case, op: Any, arguments: Any, expected: Any, number: int, outcome: Outcome
) -> None:
    log = weft.CompileLog()
    compiled = weft.compile(call, dynamic=case.dynamic, options={"strict": False, "verify": True})
    try:
        with weft.observe(log), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = _run(compiled, op, arguments)
    except Exception as error:
        outcome.errors.append(f"sample {number}: {type(error).__name__}: {error}"[:600])
        return
    note_reports(log, outcome)
    difference = compare(result, expected)
    if (
        difference
        and case.dtype == torch.bfloat16
        and _as_accurate(result, expected, op, arguments)
    ):
        return
    if difference:
        outcome.wrong.append(f"sample {number}: {difference}"[:600])


def note_reports(log: weft.CompileLog, outcome: Outcome) -> None:
    """Count what was compiled for one more sample."""
    outcome.samples += 1
    for report in log.graphs:
        outcome.kernels += report.kernel_count
        outcome.externs += report.extern_count
        for operator, count in report.fallbacks.items():
            outcome.fallbacks[operator] = outcome.fallbacks.get(operator, 0) + count
        if report.eager_reason is not None:
            outcome.eager.append(report.eager_reason[:300])
    outcome.breaks += [str(graph_break)[:300] for graph_break in log.graph_breaks]


def _as_accurate(result: Any, expected: Any, op: Any, arguments: Any) -> bool:
    """Whether results that differ in rounding are as near to the float64 ones as eager's are."""
    exact = tree_map(
        lambda a: a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a,
        arguments,
    )
    try:
        reference = _run(call, op, exact)
    except Exception:
        return False
    for mine, plain, best in zip(*map(tree_leaves, (result, expected, reference)), strict=True):
        if (mine.shape, mine.dtype) != (plain.shape, plain.dtype) or not same_strides(mine, plain):
            return False
        if not torch.equal(mine.isfinite(), plain.isfinite()):
            return False
        finite = plain.isfinite() & best.isfinite()
        error = (mine.double() - best)[finite].abs().max()
        if error > 1.5 * (plain.double() - best)[finite].abs().max():
            return False
    return True


def _run(function: Any, op: Any, arguments: Any) -> Any:
    value, args, kwargs = tree_map(copy_of, arguments)
    torch.manual_seed(0)
    with torch.no_grad():
        return function(op.op, value, args, kwargs)


def copy_of(leaf: Any) -> Any:
    """A tensor of its own memory with the same strides, so that neither run sees the other's writes.

    Other values as they are.
    """
    return _copy(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    if not _has_memory(tensor) or tensor.is_conj() or tensor.is_neg():
        return tensor.clone()
    memory = tensor.untyped_storage().clone()
    place = tensor.storage_offset(), tensor.shape, tensor.stride()
    return torch.empty(0, dtype=tensor.dtype).set_(memory, *place)


def _has_memory(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.device.type != "meta"


def compare(result: Any, expected: Any) -> str:
    """How ``result`` differs from eager's: in structure, shape, dtype, strides or values; else empty."""
    found, wanted = tree_leaves(result), tree_leaves(expected)
    if len(found) != len(wanted) or type(result) is not type(expected):
        return (
            f"{type(result)} of {len(found)} where {type(expected)} of {len(wanted)} was expected"
        )
    for value, reference in zip(found, wanted, strict=True):
        if not isinstance(reference, torch.Tensor):
            if value != reference and value == value:
                return f"{value!r} where {reference!r} was expected"
            continue
        if value.layout != torch.strided:
            value, reference = value.to_dense(), reference.to_dense()
        if value.shape != reference.shape or value.dtype != reference.dtype:
            return f"{value.dtype} {value.shape} where {reference.dtype} {reference.shape} was expected"
        if not same_strides(value, reference):
            return f"strides {value.stride()} where {reference.stride()} was expected"
        if reference.device.type == "meta":
            continue
        try:
            torch.testing.assert_close(
                value, reference, equal_nan=True, **TOLERANCE.get(reference.dtype, {})
            )
        except AssertionError as error:
            return " ".join(str(error).split())
    return ""


def same_strides(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether strides agree in the dims of more than one element."""
    pairs = zip(left.shape, left.stride(), right.stride(), strict=True)
    return left.numel() < 2 or all(n == 1 or a == b for n, a, b in pairs)

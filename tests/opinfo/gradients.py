"""Gradients of one entry of torch's operator database, through ``weft.compile`` and beside eager."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import torch
import weft
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from tests.opinfo.checking import Case, Outcome, all_cases, call, note_reports, operator_names

DTYPES = (torch.float32, torch.float64)
# Beyond this the gradients have to be as near to the float64 ones as eager's are, twice over.
TOLERANCE: dict[torch.dtype, dict[str, float]] = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}}


def gradient_cases() -> Iterator[Case]:
    """Every operator with gradients, in float32 and float64, with static sizes."""
    operators = operator_names()
    for case in all_cases():
        op = operators[case.name]
        if case.dynamic or case.dtype not in DTYPES or not op.supports_autograd:
            continue
        if case.dtype in op.supported_backward_dtypes("cpu"):
            yield case


def check_gradients(case: Case, limit: int) -> Outcome:
    """Compare results and gradients of ``limit`` samples of ``case`` with eager."""
    op = operator_names()[case.name]
    torch.manual_seed(0)
    outcome = Outcome()
    samples = op.sample_inputs("cpu", case.dtype, requires_grad=True)
    for number, sample in enumerate(islice(samples, limit)):
        arguments = (sample.input, sample.args, sample.kwargs)
        try:
            expected = run(call, op, arguments)
        except Exception:
            continue  # eager refuses the sample
        if expected is not None:
            _check_sample(op, arguments, expected, number, outcome)
    return outcome


def _check_sample(op: Any, arguments: Any, expected: Any, number: int, outcome: Outcome) -> None:
    log = weft.CompileLog()
    compiled = weft.compile(call, options={"strict": False, "verify": True})
    try:
        with weft.observe(log), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = run(compiled, op, arguments)
    except Exception as error:
        outcome.errors.append(f"sample {number}: {type(error).__name__}: {error}"[:600])
        return
    note_reports(log, outcome)
    difference = _difference(result, expected, op, arguments)
    if difference:
        outcome.wrong.append(f"sample {number}: {difference}"[:600])


def run(function: Any, op: Any, arguments: Any) -> tuple[list[Any], list[Any]] | None:
    """Results, and gradients of the inputs for random tangents; None where no result has a gradient."""
    value, args, kwargs = tree_map(_own, arguments)
    torch.manual_seed(0)
    results = tree_leaves(function(op.op, value, args, kwargs))
    differentiated = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
    wanted = [t for t in tree_leaves((value, args, kwargs)) if _has_gradient(t)]
    if not differentiated or not wanted:
        return None
    torch.manual_seed(1)
    tangents = [torch.randn_like(r) for r in differentiated]
    gradients = torch.autograd.grad(differentiated, wanted, tangents, allow_unused=True)
    return results, list(gradients)


def _has_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _own(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)


def _difference(result: Any, expected: Any, op: Any, arguments: Any) -> str:
    """How results or gradients differ from eager's; empty if they don't, but for rounding."""
    for found, wanted in zip(chain(*result), chain(*expected), strict=True):
        if not isinstance(wanted, Tensor):
            # Eager gives no gradient where it is known to be zero.
            if isinstance(found, Tensor) and found.any():
                return f"{found} where {wanted!r} was expected"
            continue
        if not isinstance(found, Tensor):
            if wanted.any():
                return f"{found!r} where {wanted} was expected"
            continue
        if found.requires_grad != wanted.requires_grad:
            return f"requires_grad is {found.requires_grad}"
        try:
            tolerance = TOLERANCE.get(wanted.dtype, {})
            torch.testing.assert_close(found.detach(), wanted.detach(), equal_nan=True, **tolerance)
        except AssertionError as error:
            if not _as_accurate(result, expected, op, arguments):
                return " ".join(str(error).split())
    return ""


def _as_accurate(result: Any, expected: Any, op: Any, arguments: Any) -> bool:
    """Whether what differs is as near to the float64 values as eager's is, twice over."""
    exact = tree_map(_double, arguments)
    try:
        reference = run(call, op, exact)
    except Exception:
        return False
    if reference is None:
        return False
    for mine, plain, best in zip(*(chain(*r) for r in (result, expected, reference)), strict=True):
        if not all(isinstance(value, Tensor) for value in (mine, plain, best)):
            continue
        if (mine.shape, mine.dtype) != (plain.shape, plain.dtype):
            return False
        finite = plain.isfinite() & best.isfinite()
        if not torch.equal(mine.isfinite(), plain.isfinite()):
            return False
        errors = [
            ((value - best)[finite]).abs().amax() if finite.any() else 0.0
            for value in (mine, plain)
        ]
        if errors[0] > 2 * errors[1] + 1e-12:
            return False
    return True


def _double(leaf: Any) -> Any:
    if isinstance(leaf, Tensor) and leaf.is_floating_point():
        return leaf.detach().double().requires_grad_(leaf.requires_grad)
    return leaf

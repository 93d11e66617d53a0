"""``torch.cond``, ``while_loop``, ``associative_scan``: their functions are evaluated as regions."""

from __future__ import annotations

from typing import Any

import torch
from weft_guards import Source

from ...._torch import associative_scan, pytree, while_loop
from ....unsupported import Unsupported
from ...polyfills import torch_functions as polyfills
from ...protocol import Evaluator
from ...regions.operators import call_branch, call_loop, call_scan
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_object
from ...variables.constant import ConstantVariable
from ..functions.identified_functions import IdentifiedFunctionVariable
from ..functions.python_functions import KnownFunctionVariable
from ..table import model
from .tensor import TensorVariable


@model(torch.cond)
def _cond(
    evaluator: Evaluator,
    pred: Variable,
    true_fn: Variable,
    false_fn: Variable,
    operands: Variable | None = None,
) -> Variable:
    given = [] if operands is None else operands.iterate(evaluator)
    if isinstance(pred, TensorVariable):
        return call_branch(evaluator.frame, pred, (true_fn, false_fn), given)
    return (true_fn if pred.truth(evaluator) else false_fn).call(evaluator, given, {})


@model(while_loop)
def _while_loop(
    evaluator: Evaluator, cond_fn: Variable, body_fn: Variable, carried_inputs: Variable
) -> Variable:
    carried = carried_inputs.iterate(evaluator)
    return call_loop(evaluator.frame, cond_fn, body_fn, carried)


# ``associative_scan``: its function becomes the region of torch's operator.


UNUSUAL = "associative_scan with unusual arguments"


@model(associative_scan)
def _associative_scan(
    evaluator: Evaluator,
    combine_fn: Variable,
    xs: Variable,
    dim: Variable,
    reverse: Variable | None = None,
    combine_mode: Variable | None = None,
) -> Variable:
    """By its polyfill; what eager refuses is left to it."""
    dimension = _constant(dim, int)
    backwards = False if reverse is None else _constant(reverse, bool)
    mode = "pointwise" if combine_mode is None else _constant(combine_mode, str)
    leaves = evaluator.wrap_known(pytree.tree_leaves).call(evaluator, [xs], {}).iterate(evaluator)
    _check(leaves, dimension, mode)
    polyfill = evaluator.wrap_known(polyfills.associative_scan)
    settings = map(ConstantVariable, (dimension % _fake(leaves[0]).dim(), backwards))
    return polyfill.call(evaluator, [combine_fn, xs, *settings], {})


class ScanRowsVariable(IdentifiedFunctionVariable):
    """``scan_rows`` of the polyfill: the operator of the graph, or row by row where none is kept."""

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        combine, rows = arguments
        if not evaluator.state.options.keep_control_flow:
            assert self.source is not None  # it is reached through the program's globals
            written_out = KnownFunctionVariable(self.value, self.source)
            return written_out.call(evaluator, arguments, keywords)
        tensors = [row for row in rows.iterate(evaluator) if isinstance(row, TensorVariable)]
        return call_scan(evaluator.frame, combine, tensors)


def _constant(variable: Variable, kind: type) -> Any:
    value = variable.as_constant() if variable.is_constant() else None
    if type(value) is not kind:
        raise Unsupported(UNUSUAL, repr(variable))
    return value


def _fake(leaf: Variable) -> torch.Tensor:
    if type(leaf) is not TensorVariable or leaf.fake.layout != torch.strided:
        raise Unsupported(UNUSUAL, repr(leaf))
    fake: torch.Tensor = leaf.fake
    return fake


def _check(leaves: list[Variable], dim: int, mode: str) -> None:
    """Refuse what eager refuses, and leaves of several sizes, which combine as they broadcast."""
    fakes = [_fake(leaf) for leaf in leaves]
    if not fakes or mode not in ("pointwise", "generic"):
        raise Unsupported(UNUSUAL, f"{len(fakes)} tensors, combine_mode {mode!r}")
    first = fakes[0]
    if not -first.dim() <= dim < first.dim():
        raise Unsupported(UNUSUAL, f"dimension {dim} of {first.dim()}")
    if any(fake.shape != first.shape or fake.device != first.device for fake in fakes):
        raise Unsupported(UNUSUAL, "tensors of several sizes or devices")
    if any(type(extent) is int and extent == 0 for extent in first.shape):
        raise Unsupported(UNUSUAL, "nothing to scan")
    if mode == "pointwise" and first.device.type not in ("cuda", "xpu"):
        raise Unsupported(UNUSUAL, "combine_mode 'pointwise' on this device")


@register_object(polyfills.scan_rows)
def _wrap_scan_rows(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    return ScanRowsVariable(value, source)

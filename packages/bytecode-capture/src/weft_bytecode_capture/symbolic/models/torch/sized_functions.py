"""Functions whose C++ takes sizes as plain integers: by their polyfills, where a size varies.

Called as they are they fix it, and each size is compiled for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ...._torch import pad_sequence
from ...._torch.symbols import unbacked_symbols
from ...polyfills import sized_functions as polyfills
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ..containers.sequences import ListVariable, TupleVariable
from ..numbers.symbolic_number import SymbolicNumberVariable
from ..table import Parameters, models
from .tensor import TensorVariable

_POLYFILLS: dict[Any, Any] = {
    F.max_pool1d: polyfills.max_pool1d,
    torch.max_pool1d: polyfills.max_pool1d,
    F.avg_pool1d: polyfills.avg_pool1d,
    F.avg_pool2d: polyfills.avg_pool2d,
    F.one_hot: polyfills.one_hot,
    torch.linspace: polyfills.linspace,
    pad_sequence: polyfills.pad_sequence,
    torch.take_along_dim: polyfills.take_along_dim,
    torch.Tensor.take_along_dim: polyfills.take_along_dim,
}


@models(*_POLYFILLS)
def _by_polyfill(
    function: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    polyfill: Any = None
    given = list(_operands(evaluator, (*arguments, *keywords.values())))
    if not _is_seen(evaluator, given):
        if function is F.one_hot and not _has_count(*arguments, **keywords):
            polyfill = polyfills.one_hot_of_all
        elif function is pad_sequence and _is_of_data(given):
            polyfill = polyfills.pad_sequence_of_data
        elif _varies(given):
            polyfill = _POLYFILLS[function]
    if polyfill is not None and Parameters.of(polyfill, False).take(len(arguments), keywords):
        result = evaluator.wrap_known(polyfill).call(evaluator, list(arguments), keywords)
        if not result.is_none():
            return result
    called = torch.take_along_dim if function is torch.Tensor.take_along_dim else function
    return evaluator.graph.call_function(evaluator, called, arguments, keywords)


def _operands(evaluator: Evaluator, given: Iterable[Variable]) -> Iterator[Variable]:
    """What is given, lists and tuples by their elements."""
    for argument in given:
        if isinstance(argument, ListVariable | TupleVariable):
            yield from argument.iterate(evaluator)
        else:
            yield argument


def _is_seen(evaluator: Evaluator, given: Sequence[Variable]) -> bool:
    """Whether a mode, a level or the class of an operand sees the call."""
    if evaluator.state.overrides.modes or evaluator.graph.transforms.active:
        return True
    return any(isinstance(a, TensorVariable) and type(a) is not TensorVariable for a in given)


def _varies(given: Sequence[Variable]) -> bool:
    """Whether a size of an operand, or one that is given, varies."""
    shapes = (a.fake.shape for a in given if isinstance(a, TensorVariable))
    return any(isinstance(a, SymbolicNumberVariable) for a in given) or any(
        isinstance(size, torch.SymInt) for shape in shapes for size in shape
    )


def _is_of_data(given: Sequence[Variable]) -> bool:
    """Whether only data says what a size of an operand is."""
    shapes = (a.fake.shape for a in given if isinstance(a, TensorVariable))
    return any(unbacked_symbols(size) for shape in shapes for size in shape)


def _has_count(
    tensor: Variable | None = None, num_classes: Variable | None = None, **_: Variable
) -> bool:
    """Whether ``one_hot`` is told how many classes there are."""
    if isinstance(num_classes, ConstantVariable):
        return bool(num_classes.value != -1)
    return num_classes is not None

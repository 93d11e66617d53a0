"""Python's functions of numbers that were drawn on entry of the frame: called there, right after the draws.

``int(width * math.sqrt(1 - lam))`` of a drawn ``lam`` is one more number that the graph takes.  Where it
raises, the graph finds out, and the frame runs as it was written, with the same draws.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from weft_guards import ItemSource

from ....sources import ComputedSource, DrawnSource
from ....unsupported import Unsupported
from ...graph.data_dependence import can_read, read_number, require_compared
from ...graph.tensors_met import mark_number
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ..containers.sequences import SequenceVariable
from ..numbers.called_numbers import call_of_numbers
from ..numbers.data_numbers import depends_on_data
from ..numbers.representations import number_operand
from ..numbers.symbolic_float import current_number
from ..numbers.symbolic_number import SymbolicNumberVariable
from ..torch.calls_on_entry import computed_from, function_of, only_computes
from ..torch.tensor import TensorVariable

_POSITION = "drawn"
_SEQUENCES = (list, tuple, torch.Size)
_MAX_INTEGER = 2**62


def drawn_tensor(
    evaluator: Evaluator,
    source: DrawnSource,
    made: torch.Tensor,
    shape: Sequence[Any] | None = None,
) -> TensorVariable:
    """The tensor that the frame has drawn last, as the graph takes it; ``made`` is an example.

    ``shape``: with sizes that vary.
    """
    graph, position = evaluator.graph, len(source.draws) - 1
    with graph.fake_mode, torch.inference_mode(False), graph.shapes.rules():
        fake = torch.empty(made.shape if shape is None else shape, dtype=made.dtype, device="cpu")
    place = ItemSource(source, position)
    node = graph.add_placeholder(place, fake)
    node.meta[_POSITION] = source, position
    return TensorVariable(node, fake, None)  # to the program it is new


def drawn_value(evaluator: Evaluator, source: DrawnSource, made: torch.Tensor) -> TensorVariable:
    """The number, or array, of Python's that the frame has drawn last."""
    tensor = drawn_tensor(evaluator, source, made)
    mark_number(tensor.node)
    return tensor


def drawn_argument(
    evaluator: Evaluator, argument: Variable, source: DrawnSource, what: str, *, varies: bool
) -> Callable[[Sequence[torch.Tensor]], Any]:
    """What gives an argument, of the tensors drawn before.

    It is a constant, a number of the call, one computed of those drawn before, or a list or tuple of these.
    ``varies``: any number of the call will do, since what is called with it raises for none that the guards
    let through.

    :raises Unsupported: it is none of them.
    """
    if isinstance(argument, SequenceVariable) and argument.python_type() in _SEQUENCES:
        kind = argument.python_type()
        items = argument.items(evaluator)
        parts = [drawn_argument(evaluator, item, source, what, varies=varies) for item in items]
        return lambda drawn: kind(part(drawn) for part in parts)
    is_of_call = isinstance(argument, SymbolicNumberVariable) and not depends_on_data(argument)
    if varies and is_of_call:
        call = call_of_numbers(evaluator, operator.pos, [argument])
        if call is not None:
            number = current_number(argument)
            place = source.draws.take(number, ComputedSource(call, call.sources))
            return lambda drawn: drawn[place].item()
    if not depends_on_data(argument):
        try:
            constant = argument.snapshot()
        except Unsupported as error:
            raise Unsupported("call with values that are not constant", what) from error
        return lambda drawn: constant
    node = number_operand(argument)
    nodes = computed_from(node)
    places = [
        given.meta.get(_POSITION) for given in nodes if given.op in ("placeholder", "get_attr")
    ]
    computes = all(n.op in ("placeholder", "get_attr") or only_computes(n) for n in nodes)
    if not computes or any(place is None or place[0] is not source for place in places):
        raise Unsupported("call with values that are not constant", f"{what} of {argument!r}")
    function = function_of(nodes, node)
    positions = [place[1] for place in places if place is not None]
    return lambda drawn: function(*(drawn[position] for position in positions))


def with_drawn_arguments(
    function: Callable[..., Any],
    arguments: Sequence[Callable[[Sequence[torch.Tensor]], Any]],
    keywords: Mapping[str, Callable[[Sequence[torch.Tensor]], Any]],
) -> Callable[[Any, Sequence[torch.Tensor]], Any]:
    """``function`` of a generator and of what :func:`drawn_argument` gave, as a frame's draws call it."""

    def call(generator: Any, before: Sequence[torch.Tensor]) -> Any:
        values = (argument(before) for argument in arguments)
        named = {name: argument(before) for name, argument in keywords.items()}
        return function(generator, *values, **named)

    return call


def called_on_entry(
    evaluator: Evaluator, function: Callable[..., Any], arguments: Sequence[Variable]
) -> Variable | None:
    """The number that ``function``, which has no effect, gives of drawn numbers and constants.

    None where it is given others, or gives no number now.
    """
    source, graph = evaluator.state.drawn, evaluator.graph
    if source is None or graph.is_in_region or graph.transforms.active:
        return None
    if not any(map(depends_on_data, arguments)):
        return None
    what = getattr(function, "__name__", repr(function))
    try:
        given = [drawn_argument(evaluator, a, source, what, varies=True) for a in arguments]
    except Unsupported:
        return None
    call = _Call(function, given)
    now = call.result(source.draws.examples)
    if type(now) not in (int, float):
        return None
    kind = type(now)
    fine = drawn_value(evaluator, source, source.draws.compute(lambda d: int(call.gives(kind, d))))
    if not can_read(evaluator, fine):
        return None
    require_compared(graph, operator.eq, read_number(evaluator, fine), ConstantVariable(1))
    made = source.draws.compute(lambda d: call.result(d) if call.gives(kind, d) else kind())
    return read_number(evaluator, drawn_value(evaluator, source, made))


@dataclass(frozen=True)
class _Call:
    """A function of numbers that were drawn, and what gives its arguments."""

    function: Callable[..., Any]
    arguments: Sequence[Callable[[Sequence[torch.Tensor]], Any]]

    def result(self, drawn: Sequence[torch.Tensor]) -> Any:
        """None where it raises, or gives an integer of more than 64 bits."""
        try:
            found = self.function(*(argument(drawn) for argument in self.arguments))
        except (ArithmeticError, TypeError, ValueError):
            return None
        return None if type(found) is int and abs(found) > _MAX_INTEGER else found

    def gives(self, kind: type, drawn: Sequence[torch.Tensor]) -> bool:
        return type(self.result(drawn)) is kind

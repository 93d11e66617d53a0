"""Draws from generators of ``random`` that were there before the frame: made on entry, used by the graph.

A number is read from a tensor that the graph takes, so that what depends on it is data: a branch on it is a
region, a size that it gives is a symbol.  Draws whose arguments depend on data, and those in regions, break.
"""

from __future__ import annotations

import operator
import random
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from weft_guards import ConstantSource, TypeIs

from .... import _frame_hook
from ...._torch import OpOverload
from ....drawn_numbers import Draws, GeneratorKind
from ....frame.emitter import Emitter
from ....sources import DrawnSource
from ....unsupported import Unsupported
from ...captured_exception import CapturedException
from ...graph.data_dependence import can_read, read_list, read_number, require_compared
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import ConstantVariable
from ..containers.sequences import ListVariable
from ..functions.python_functions import KnownFunctionVariable
from ..numbers.data_numbers import Range, depends_on_data
from ..table import model, models
from ..torch.numbers_in_lists import within
from ..torch.tensor import TensorVariable
from .drawn_functions import drawn_argument, drawn_value, with_drawn_arguments
from .random_generators import GENERATOR

_KIND = "call of a builtin function"

PYTHON = GeneratorKind(
    lambda generator: random.Random(),
    random.Random.getstate,
    random.Random.setstate,
)


def draw(
    evaluator: Evaluator,
    generator: Variable,
    kind: GeneratorKind,
    what: str,
    call: Callable[..., Any],
    arguments: Arguments,
    keywords: Keywords,
    *,
    varies: bool = False,
) -> TensorVariable:
    """The tensor of what ``call(generator, *arguments, **keywords)`` draws on entry of the frame.

    Arguments are constants, and numbers that the graph computes of what was drawn before; ``varies``: and any
    numbers of the call that the guards let through.
    """
    if generator.source is None:
        raise Unsupported(_KIND, what)
    source = source_of_draws(evaluator, what)
    given = [drawn_argument(evaluator, a, source, what, varies=varies) for a in arguments]
    named = {
        name: drawn_argument(evaluator, argument, source, what, varies=False)
        for name, argument in keywords.items()
    }
    drawn = with_drawn_arguments(call, given, named)
    value: Any = getattr(generator, "value", None)
    try:
        made = evaluator.pure(source.draws.add, value, generator.source, kind, drawn)
    except CapturedException as error:
        if issubclass(error.exception.python_type(), (TypeError, OverflowError)):
            raise Unsupported(_KIND, what) from error
        raise
    return drawn_value(evaluator, source, made)


def _may_draw(node: torch.fx.Node) -> bool:
    """Whether a node runs code of the program, which may draw before what is drawn on entry."""
    if isinstance(node.target, OpOverload):
        return node.target.namespace not in ("aten", "prims")
    is_function = isinstance(node.target, types.FunctionType)
    return is_function and str(node.target.__module__).partition(".")[0] != "torch"


def source_of_draws(evaluator: Evaluator, what: str) -> DrawnSource:
    """Where all that the frame draws is found.

    :raises Unsupported: nothing can be drawn on entry.
    """
    state, graph = evaluator.state, evaluator.graph
    if graph.is_in_region or graph.transforms.active:
        raise Unsupported("effect inside a region", what)
    if any(map(_may_draw, graph.outermost.nodes)):
        raise Unsupported(_KIND, what)
    if state.drawn is None:
        draws = Draws()
        source = state.drawn = DrawnSource(draws, _frame_hook.disabled(draws.draw))
        assert state.root is not None
        state.first_draw = state.root.index, Unsupported(_KIND, what)

        def emit(emitter: Emitter) -> None:
            emitter.load_source(source)  # drawn whether or not anything uses it
            emitter.pop()

        evaluator.side_effects.record(emit)
    return state.drawn


def drawn_number(evaluator: Evaluator, tensor: TensorVariable, bounds: Range | None) -> Variable:
    """The number in a tensor that was drawn, which lies within ``bounds``."""
    if not can_read(evaluator, tensor):
        raise Unsupported("number that depends on data", repr(tensor))
    number = read_number(evaluator, tensor)
    return number if bounds is None else within(evaluator, number, bounds)


def _is_from_outside(evaluator: Evaluator, generator: Variable) -> bool:
    value = getattr(generator, "value", None)
    if type(value) is not random.Random or generator.source is None:
        return False
    evaluator.guard(generator.source, TypeIs(random.Random))
    return True


def known_bounds(
    bounds: Callable[..., Range | None], arguments: Arguments, keywords: Keywords
) -> Range | None:
    """``bounds`` of the arguments, if they are constants."""
    if keywords or any(map(depends_on_data, arguments)):
        return None
    return bounds(*(argument.snapshot() for argument in arguments))


def are_ordered(evaluator: Evaluator, limits: Arguments, *, below: bool) -> bool:
    """Whether integers of the call are limits between which one can be drawn, which is guarded."""
    if len(limits) not in (1, 2) or not all(map(_is_integer, limits)):
        return False
    first, last = (ConstantVariable(0), *limits)[-2:]
    return evaluator.binary_operation("lt" if below else "le", first, last).truth(evaluator)


def within_limits(
    evaluator: Evaluator, number: Variable, limits: Arguments, *, below: bool
) -> Variable:
    """An integer drawn from zero, or a first limit, to the last, or ``below`` it."""
    first, last = (ConstantVariable(0), *limits)[-2:]
    for compare, limit in ((operator.ge, first), (operator.lt if below else operator.le, last)):
        require_compared(evaluator.graph, compare, number, limit)
    return number


def _is_integer(limit: Variable) -> bool:
    return limit.python_type() is int and not depends_on_data(limit)


# Numbers.


def _unit(*arguments: Any) -> Range:
    return Range(0, 1, below=True)


def between(low: Any, high: Any) -> Range:
    """Where ``low + (high - low) * random()`` lies."""
    return Range(min(low, high), max(low, high), below=(low, high) == (0, 1))


def _bits(count: int) -> Range:
    return Range(0, 2**count - 1)


def _below(*arguments: Any) -> Range | None:
    chosen = range(*arguments)
    return Range(min(chosen), max(chosen)) if chosen else None


_NUMBERS: dict[Any, Callable[..., Range | None]] = {
    random.Random.uniform: between,
    random.Random.triangular: lambda *arguments: None,
    random.Random.randint: Range,
    random.Random.randrange: _below,
    vars(random.Random)["_randbelow_with_getrandbits"]: lambda count: Range(0, count - 1),
    random.Random.betavariate: lambda alpha, beta: Range(0, 1),
    **dict.fromkeys(
        (
            random.Random.expovariate,
            random.Random.gammavariate,
            random.Random.gauss,
            random.Random.lognormvariate,
            random.Random.normalvariate,
            random.Random.paretovariate,
            random.Random.vonmisesvariate,
            random.Random.weibullvariate,
        ),
        lambda *arguments: None,
    ),
}


_BETWEEN = {
    random.Random.randint: False,
    random.Random.randrange: True,
    vars(random.Random)["_randbelow_with_getrandbits"]: True,
}
"""What draws integers between limits, and whether the last is left out."""


@models(*_NUMBERS)
def _number(
    function: Any, evaluator: Evaluator, generator: Variable, /, *args: Variable, **kwargs: Variable
) -> Variable:
    if not _is_from_outside(evaluator, generator):
        return _as_written(evaluator, function, [generator, *args], kwargs)
    what = f"random.{function.__name__}"
    given, below = list(args), _BETWEEN.get(function)
    if below is not None and not kwargs and are_ordered(evaluator, given, below=below):
        tensor = draw(evaluator, generator, PYTHON, what, function, given, kwargs, varies=True)
        number = drawn_number(evaluator, tensor, None)
        return within_limits(evaluator, number, given, below=below)
    tensor = draw(evaluator, generator, PYTHON, what, function, given, kwargs)
    return drawn_number(evaluator, tensor, known_bounds(_NUMBERS[function], given, kwargs))


def _as_written(
    evaluator: Evaluator, function: Any, arguments: Arguments, keywords: Keywords
) -> Variable:
    source = ConstantSource(f"Random.{function.__name__}", function)
    return evaluator.inline_call(KnownFunctionVariable(function, source), arguments, keywords)


def draw_by_c(
    evaluator: Evaluator, generator: Variable, name: str, arguments: Arguments
) -> Variable | None:
    """``random()`` and ``getrandbits(k)`` of a generator from outside; None for other calls."""
    if name not in ("random", "getrandbits") or not _is_from_outside(evaluator, generator):
        return None
    call = getattr(GENERATOR, name)
    tensor = draw(evaluator, generator, PYTHON, f"random.{name}", call, arguments, {})
    bounds = known_bounds(_unit if name == "random" else _bits, arguments, {})
    return drawn_number(evaluator, tensor, bounds)


@model(random.Random.seed)
def _seed(
    evaluator: Evaluator, generator: Variable, /, *args: Variable, **kwargs: Variable
) -> Variable:
    """Seeds are set on entry, in the order of the draws."""
    function = random.Random.seed
    if not _is_from_outside(evaluator, generator):
        return _as_written(evaluator, function, [generator, *args], kwargs)

    def set_seed(given: random.Random, *positional: Any, **named: Any) -> int:
        given.seed(*positional, **named)
        return 0

    draw(evaluator, generator, PYTHON, "random.seed", set_seed, list(args), kwargs, varies=True)
    return ConstantVariable(None)


# Lists: where each element is taken from is drawn.


@models(random.Random.shuffle, random.Random.sample, random.Random.choices)
def _selected(
    function: Any, evaluator: Evaluator, generator: Variable, /, *args: Variable, **kwargs: Variable
) -> Variable | None:
    if not args or not _is_from_outside(evaluator, generator):
        return _as_written(evaluator, function, [generator, *args], kwargs)
    what = f"random.{function.__name__}"
    elements = args[0].iterate(evaluator)
    if not all(item.is_constant() and type(item.as_constant()) is int for item in elements):
        raise Unsupported(_KIND, f"{what} of other things than integers")
    known = [item.as_constant() for item in elements]

    def chosen(given: Any, *positional: Any, **named: Any) -> Any:
        values = list(known)
        result = function(given, values, *positional, **named)
        return torch.tensor(values if result is None else result, dtype=torch.int64)

    tensor = draw(evaluator, generator, PYTHON, what, chosen, list(args[1:]), kwargs)
    drawn = read_list(evaluator, tensor)
    if not isinstance(drawn, ListVariable):
        raise Unsupported(_KIND, f"{what} of more elements than a graph reads")
    if function is not random.Random.shuffle:
        return drawn
    if not isinstance(args[0], ListVariable):
        raise Unsupported(_KIND, f"{what} of {args[0]!r}")
    everything = evaluator.wrap_result(slice(None))
    args[0].call_method(evaluator, "__setitem__", [everything, drawn], {})
    return None

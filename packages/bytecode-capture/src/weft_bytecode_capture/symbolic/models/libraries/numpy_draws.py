"""Draws from NumPy's generators that were there before the frame: ``numpy.random.rand()``."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import numpy
from weft_guards import Source, TypeIs

from ....drawn_numbers import GeneratorKind
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.builder import register_wrapper
from ..functions.bound_methods import BoundMethodVariable
from ..numbers.data_numbers import Range
from ..objects.opaque import OpaqueVariable
from ..table import models
from .numpy_values import ArrayVariable
from .random_draws import are_ordered, between, draw, drawn_number, known_bounds, within_limits

_LEGACY = GeneratorKind(
    lambda generator: numpy.random.RandomState(0),
    lambda generator: pickle.dumps(generator.get_state()),
    lambda generator, state: generator.set_state(pickle.loads(state)),
)


def _write(generator: numpy.random.Generator, state: bytes) -> None:
    generator.bit_generator.state = pickle.loads(state)


_NEW = GeneratorKind(
    lambda generator: numpy.random.Generator(type(generator.bit_generator)(0)),
    lambda generator: pickle.dumps(generator.bit_generator.state),
    _write,
)

_KINDS: dict[type, GeneratorKind] = {
    numpy.random.RandomState: _LEGACY,
    numpy.random.Generator: _NEW,
}
_NAMES = (
    "rand randn random random_sample uniform normal standard_normal randint integers beta binomial chisquare "
    "dirichlet exponential f gamma geometric gumbel hypergeometric laplace logistic lognormal logseries "
    "multinomial multivariate_normal negative_binomial noncentral_chisquare noncentral_f pareto permutation "
    "poisson power random_integers rayleigh standard_cauchy standard_exponential standard_gamma standard_t "
    "triangular vonmises wald weibull zipf choice"
).split()
_METHODS = {getattr(kind, name): name for kind in _KINDS for name in _NAMES if hasattr(kind, name)}


class _GeneratorVariable(OpaqueVariable):
    """A generator from outside: what draws from it is known, anything else is not."""

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        function = getattr(type(self.value), name, None) if name in _NAMES else None
        if function is None:
            return super().get_attribute(evaluator, name)
        assert self.source is not None
        evaluator.guard(self.source, TypeIs(type(self.value)))
        return BoundMethodVariable(evaluator.wrap_known(function), self)


@register_wrapper(*_KINDS)
def _wrap(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    return _GeneratorVariable(value, source)


@models(*_METHODS)
def _draw(
    function: Any, evaluator: Evaluator, generator: Variable, /, *args: Variable, **kwargs: Variable
) -> Variable:
    name = _METHODS[function]
    what = f"numpy.random.{name}"
    of = type(getattr(generator, "value", None))
    kind = _KINDS.get(of)
    if kind is None or generator.source is None:
        raise Unsupported("call of a builtin function", f"{what} of {generator!r}")
    evaluator.guard(generator.source, TypeIs(of))
    given = list(args)
    if name in ("randint", "integers") and not kwargs and are_ordered(evaluator, given, below=True):
        tensor = draw(evaluator, generator, kind, what, function, given, kwargs, varies=True)
        return within_limits(evaluator, drawn_number(evaluator, tensor, None), given, below=True)
    tensor = draw(evaluator, generator, kind, what, function, given, kwargs)
    if tensor.fake.dim():
        return ArrayVariable(tensor, None)
    bounds = known_bounds(functools.partial(_bounds, name), list(args), kwargs)
    return drawn_number(evaluator, tensor, bounds)


def _bounds(name: str, *positional: Any) -> Range | None:
    """Where a number lies for sure."""
    if name in ("rand", "random", "random_sample"):
        return Range(0, 1, below=True)
    if len(positional) > 2:
        return None
    if name == "uniform":
        return between(*positional, *(0, 1)[len(positional) :])
    if name == "randint" and positional:
        low, high = positional if len(positional) == 2 else (0, positional[0])
        return Range(low, high - 1)
    return Range(0, 1) if name == "beta" else None

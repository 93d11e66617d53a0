"""``torch.randn(shape, generator=generator)``: drawn on entry of the frame, by the generator itself.

A graph draws from torch's own generators.  What another one on the CPU draws, code draws before the graph, in
the program's order, and the graph takes the tensors.  Seeds are set in that order too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from weft_guards import AttributeSource, EqualsConstant, Source, TypeIs

from ...._torch.symbols import is_known_contiguous
from ....drawn_numbers import GeneratorKind
from ....sources import ComputedSource
from ....unsupported import Unsupported
from ...captured_exception import CapturedException
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import held_by_identity, register_object, register_wrapper
from ...variables.constant import ConstantVariable
from ...variables.graph_arguments import graph_argument
from ..builtins.methods import BuiltinMethodVariable
from ..libraries.drawn_functions import drawn_argument, drawn_tensor, with_drawn_arguments
from ..libraries.random_draws import source_of_draws
from ..objects.opaque import OpaqueVariable
from ..table import model
from .own_generators import OwnGenerator
from .tensor import TensorVariable
from .torch_function import TorchFunctionVariable

_KIND = "state of a random number generator"
_CPU = torch.device("cpu")


def _read(generator: torch.Generator) -> bytes:
    return generator.get_state().numpy().tobytes()


def _write(generator: torch.Generator, state: bytes) -> None:
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


_GENERATORS = GeneratorKind(lambda generator: torch.Generator(), _read, _write)


class GeneratorVariable(OwnGenerator):
    """A generator of torch's on the CPU, from outside or made on entry of the frame."""

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name == "device":
            return ConstantVariable(_CPU)
        if name == "manual_seed":
            return BuiltinMethodVariable(self, name)
        raise Unsupported(_KIND, f"{self!r}.{name}")

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name != "manual_seed" or len(arguments) != 1 or keywords:
            raise Unsupported(_KIND, f"{self!r}.{name}()")
        draw_on_entry(evaluator, self, torch.Generator.manual_seed, arguments, {})
        return self

    def fill(
        self,
        evaluator: Evaluator,
        tensor: Variable,
        name: str,
        arguments: Arguments,
        keywords: Keywords,
    ) -> Variable:
        assert isinstance(tensor, TensorVariable)
        fake = tensor.fake
        laid_out = fake.device == _CPU and is_known_contiguous(fake)
        if name not in _FILLING or not laid_out or not fake.dim():
            raise Unsupported(_KIND, f"{tensor!r}.{name}(generator=...)")
        positional, named = evaluator.snapshots(
            arguments, keywords, name
        )  # of which it may refuse some
        dtype = fake.dtype

        def draw(own: torch.Generator, size: Any) -> Any:
            made = torch.empty(tuple(size), dtype=dtype, device=_CPU)
            return getattr(made, name)(*positional, **named, generator=own)

        sizes = [tensor.get_attribute(evaluator, "shape")]
        taken = _taken(evaluator, self, draw, sizes, {}, fake.shape)
        return evaluator.graph.call_method(evaluator, "copy_", tensor, [taken], {})


@register_wrapper(torch.Generator)
def _wrap(evaluator: Evaluator, value: torch.Generator, source: Source) -> Variable:
    if value.device != _CPU or value is torch.default_generator:
        return OpaqueVariable(value, source)
    evaluator.guard(source, TypeIs(torch.Generator))
    evaluator.guard(AttributeSource(source, "device"), EqualsConstant(_CPU))
    return GeneratorVariable(value, source)


@model(torch.Generator)
def _new(evaluator: Evaluator, device: Variable | None = None) -> Variable:
    """A generator that is there for the draws of one call alone: nothing else can see it."""
    wanted = _CPU if device is None or device.is_none() else torch.device(device.as_constant())
    if wanted != _CPU:
        raise Unsupported(_KIND, f"torch.Generator({wanted})")
    return MadeGeneratorVariable(torch.Generator(), _made_at_each_call())


def _made_at_each_call() -> Source:
    return ComputedSource(functools.partial(torch.Generator), ())


class MadeGeneratorVariable(GeneratorVariable):
    """One that the frame makes: its code has it on entry, in the state after all draws."""

    def reconstruct(self, emitter: Any) -> None:
        raise Unsupported("value cannot be rebuilt after a graph", repr(self))


def draw_on_entry(
    evaluator: Evaluator,
    generator: GeneratorVariable,
    function: Callable[..., Any],
    arguments: Sequence[Variable],
    keywords: Keywords,
) -> torch.Tensor:
    """Have ``function(generator, ...)`` called on entry, and give what it draws for the capture."""
    what = getattr(function, "__name__", "draw")
    source = source_of_draws(evaluator, what)
    given = [drawn_argument(evaluator, a, source, what, varies=True) for a in arguments]
    named = {
        name: drawn_argument(evaluator, value, source, what, varies=True)
        for name, value in keywords.items()
    }
    call = with_drawn_arguments(function, given, named)

    def draw(own: Any, before: Sequence[torch.Tensor]) -> torch.Tensor:
        return _with_elements(call(own, before))

    assert generator.source is not None
    try:
        made: torch.Tensor = evaluator.pure(
            source.draws.add, generator.value, generator.source, _GENERATORS, draw
        )
    except CapturedException as error:
        raise Unsupported(_KIND, what, "eager raises its own error") from error
    return made


def _with_elements(drawn: Any) -> torch.Tensor:
    """What was drawn, with a dimension; something where that is no tensor."""
    if not isinstance(drawn, torch.Tensor):
        return torch.zeros(1)
    return drawn if drawn.dim() else drawn.reshape(1)


_DRAWING = (torch.rand, torch.randn, torch.randint, torch.randperm)
_NAMES = frozenset(("size", "low", "high", "n", "dtype", "device", "generator"))


@held_by_identity(register_object(*_DRAWING))
class DrawingFunctionVariable(TorchFunctionVariable):
    """``torch.randn`` and its like, which may be given a generator."""

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        generator = keywords.get("generator")
        if not isinstance(generator, GeneratorVariable):
            return super().call(evaluator, arguments, keywords)
        if not keywords.keys() <= _NAMES or evaluator.state.overrides.modes:
            raise Unsupported(_KIND, f"{self!r} with {sorted(keywords)}")
        named = {name: value for name, value in keywords.items() if name != "generator"}
        fake = self._fake(evaluator, arguments, named)
        if fake.device != _CPU:
            raise Unsupported(_KIND, f"{self!r} on {fake.device}")
        function, dtype = self.value, fake.dtype

        def draw(own: torch.Generator, *positional: Any, **given: Any) -> Any:
            return function(*positional, **{**given, "dtype": dtype, "device": _CPU}, generator=own)

        return _taken(evaluator, generator, draw, arguments, named, fake.shape)

    def _fake(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Any:
        """A tensor without data, of the sizes that vary."""
        graph = evaluator.graph
        given = [graph_argument(evaluator, argument)[1] for argument in arguments]
        named = {name: graph_argument(evaluator, value)[1] for name, value in keywords.items()}
        try:
            with graph.fake_mode, graph.shapes.rules():
                return self.value(*given, **named)
        except (RuntimeError, TypeError, ValueError) as error:
            raise Unsupported(_KIND, repr(self), "eager raises its own error") from error


def _taken(
    evaluator: Evaluator,
    generator: GeneratorVariable,
    draw: Callable[..., Any],
    arguments: Sequence[Variable],
    keywords: Keywords,
    shape: Sequence[Any],
) -> TensorVariable:
    """What is drawn, as the graph has it."""
    made = draw_on_entry(evaluator, generator, draw, arguments, keywords)
    source = evaluator.state.drawn
    assert source is not None
    if not shape:
        one = drawn_tensor(evaluator, source, made)
        taken = evaluator.graph.call_method(evaluator, "reshape", one, [ConstantVariable(())], {})
    else:
        taken = drawn_tensor(evaluator, source, made, shape)
        if torch.is_inference_mode_enabled():
            taken = evaluator.graph.call_method(evaluator, "clone", taken, [], {})
    assert isinstance(taken, TensorVariable)
    return taken


_FILLING = frozenset(
    ("normal_", "uniform_", "random_", "exponential_", "bernoulli_", "log_normal_")
)

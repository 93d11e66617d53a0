"""Instances of tensor classes that implement operators in ``__torch_dispatch__``: metadata, and attributes.

Such a tensor has no data of its own; what it holds are plain tensors in attributes.  Operators on one are
evaluated by its class's code (:mod:`...dispatch`), which computes with those.
"""

from __future__ import annotations

from typing import Any

import torch
from weft_guards import Source, TensorMatches, TensorMetadata

from ...._torch import is_dispatching_class
from ...._torch.wrappers import make_wrapper, metadata_of_wrapper, wrapper_like
from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_predicate
from ...variables.constant import OPERATORS, ConstantVariable
from ...variables.graph_arguments import graph_argument
from ..objects.classes import ClassVariable
from ..objects.opaque import RefusedVariable
from ..table import model
from .subclass_tensors import SubclassTensorVariable
from .tensor import REFUSED_METHODS, TensorVariable

UNUSUAL = "tensor of unusual kind"
_METADATA = frozenset(
    "shape dtype device layout ndim itemsize nbytes T mT H mH real imag is_cuda is_cpu is_meta "
    "is_sparse is_quantized is_nested".split()
)


class PlainMetadata(TensorVariable):
    """What is known of a wrapper without its class: a fake tensor that no node of the graph computes."""

    def __init__(self, kind: type, fake: torch.Tensor) -> None:
        self._kind = kind
        self.fake = fake
        self.source = None
        self.attributes = {}

    @property
    def node(self) -> torch.fx.Node:
        raise Unsupported(UNUSUAL, f"the data of {self._kind.__qualname__}")

    @node.setter
    def node(self, node: torch.fx.Node) -> None:
        raise Unsupported(UNUSUAL, f"a change of {self._kind.__qualname__}")

    def __repr__(self) -> str:
        return f"metadata of {self._kind.__qualname__}"


class WrapperTensorVariable(SubclassTensorVariable):
    """A wrapper; of one that captured code has made, ``made`` has the arguments that made it."""

    def __init__(
        self,
        kind: type,
        fake: torch.Tensor,
        source: Source | None,
        made: tuple[Arguments, Keywords] = ([], {}),
    ) -> None:
        super().__init__(kind, PlainMetadata(kind, fake), source)
        self.fake = fake
        self._made = made

    def truth(self, evaluator: Evaluator) -> bool:
        raise Unsupported(UNUSUAL, f"truth of {self.kind.__qualname__}")

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        held = self._held(evaluator, name)
        if held is not None:
            return held
        descriptor = getattr(torch.Tensor, name, None)
        is_own = self._own(evaluator, name) is not None
        if descriptor is None or callable(descriptor) or name == "__class__" or is_own:
            return super().get_attribute(evaluator, name)
        if name == "requires_grad":
            return ConstantVariable(self.fake.requires_grad)
        if name not in _METADATA:
            raise Unsupported("attribute of a tensor", f"{self!r}.{name}")
        return self._operation(evaluator, getattr, [self, ConstantVariable(name)], {})

    def _held(self, evaluator: Evaluator, name: str) -> Variable | None:
        """What the instance has of a name that classes have too, unless as a property."""
        is_property = hasattr(type(getattr(torch.Tensor, name, None)), "__set__")
        if is_property or not hasattr(torch.Tensor, name):
            return None
        if self.source is None:
            return self.attributes.get(name)
        if name in evaluator.builder.value_of(self).__dict__:
            return self.own_attribute(evaluator, name)
        return None

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        if self.source is not None or evaluator.state.find_in_type(self.kind, name) is not None:
            raise Unsupported("attribute write", f"{self!r}.{name}")
        self.attributes[name] = value

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        held = self._held(evaluator, name)
        if held is not None:
            return held.call(evaluator, arguments, keywords)
        if name in REFUSED_METHODS:
            raise Unsupported(REFUSED_METHODS[name], f"{self!r}.{name}()")
        method = getattr(torch.Tensor, name, None)
        if method is None or self._own(evaluator, name) is not None:
            return super().call_method(evaluator, name, arguments, keywords)
        return self._operation(evaluator, method, [self, *arguments], keywords)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        function = OPERATORS.get(operator)
        if function is None or self._own(evaluator, f"__{'r' * reflected}{operator}__") is not None:
            return super().binary_operation(evaluator, operator, other, reflected)
        pair = [other, self] if reflected else [self, other]
        return self._operation(evaluator, function, pair, {})

    def _operation(
        self, evaluator: Evaluator, operation: Any, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        overrides = evaluator.state.overrides
        found = overrides.overridden(evaluator, operation, arguments, keywords)
        if found is None:
            found = overrides.dispatched(evaluator, operation, arguments, keywords)
        assert found is not None
        return found

    def needs_gradient(self, evaluator: Evaluator) -> bool:
        """Whether it, or a tensor that it holds, requires a gradient."""
        held: list[Any] = [getattr(part, "fake", None) for part in self.attributes.values()]
        if self.source is not None:
            held += vars(evaluator.builder.value_of(self)).values()
        return any(isinstance(x, torch.Tensor) and x.requires_grad for x in (self.fake, *held))

    def reconstruct(self, emitter: Emitter) -> None:
        arguments, keywords = self._made
        emitter.load_callable(_rebuilt)
        emitter.load_constant(len(arguments))
        emitter.load_constant(tuple(keywords))
        emitter.load_constant(tuple(self.attributes))
        parts = [*arguments, *keywords.values(), *self.attributes.values()]
        for part in parts:
            emitter.load_variable(part)
        emitter.call(3 + len(parts), ())

    def __repr__(self) -> str:
        return str(self.kind.__qualname__)


def _rebuilt(
    positional: int, named: tuple[str, ...], attributes: tuple[str, ...], *parts: Any
) -> torch.Tensor:
    """A wrapper made by the arguments that made it in the program, with its attributes."""
    behind = positional + len(named)
    keywords = dict(zip(named, parts[positional:behind], strict=True))
    wrapper: torch.Tensor = make_wrapper(*parts[:positional], **keywords)
    for name, value in zip(attributes, parts[behind:], strict=True):
        object.__setattr__(wrapper, name, value)
    return wrapper


@register_predicate(
    lambda value: issubclass(type(value), torch.Tensor) and is_dispatching_class(type(value)), 41
)
def _wrap_wrapper(evaluator: Evaluator, value: torch.Tensor, source: Source) -> Variable:
    kind = type(value)
    metadata = metadata_of_wrapper(value)
    if metadata is None:
        return RefusedVariable(value, source, UNUSUAL, kind.__qualname__)
    try:
        evaluator.guard(source, TensorMatches(TensorMetadata.of(value)))
    except TypeError as error:
        raise Unsupported(UNUSUAL, source.name(), str(error)) from error
    fake = wrapper_like(metadata[0], **metadata[1])
    assert fake is not None
    return WrapperTensorVariable(kind, fake, source)


@model(make_wrapper)
def _make(
    evaluator: Evaluator, kind: Variable, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    """``torch.Tensor._make_wrapper_subclass``."""
    if not isinstance(kind, ClassVariable) or not is_dispatching_class(kind.value):
        raise Unsupported(UNUSUAL, f"wrapper of {kind!r}")
    values = [graph_argument(evaluator, argument)[1] for argument in arguments]
    named = {name: graph_argument(evaluator, value)[1] for name, value in keywords.items()}
    fake = evaluator.pure(wrapper_like, *values, **named)
    if fake is None:
        raise Unsupported(UNUSUAL, f"{kind.value.__qualname__} with {', '.join(named)}")
    return WrapperTensorVariable(kind.value, fake, None, ([kind, *arguments], keywords))

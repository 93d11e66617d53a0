"""``torch.autograd.Function`` and ``torch.utils.checkpoint``: captured where no gradient is at stake."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint
from weft_guards import IsObject, Source

from ..._torch import APPLY_TAKES_KEYWORDS, set_grad_enabled
from ...unsupported import Unsupported
from ..builder import register_object
from .base import Variable
from .classes import ClassVariable
from .constant import ConstantVariable
from .identified_functions import IdentifiedFunctionVariable
from .sequences import TupleVariable
from .tensor import TensorVariable

if TYPE_CHECKING:
    from ..evaluator import Evaluator

_NOTES = (
    "save_for_backward", "save_for_forward", "mark_dirty", "mark_non_differentiable",
    "set_materialize_grads",
)  # fmt: skip


class AutogradContextVariable(Variable):
    """The ``ctx`` of a forward that nothing is differentiated through: attributes, and notes for nobody."""

    def __init__(self, kind: type, inputs: list[Variable]) -> None:
        self._kind = kind
        self._inputs = inputs
        self._attributes: dict[str, Variable] = {}
        self.dirty: list[Variable] = []

    def python_type(self) -> type:
        return self._kind

    def truth(self, evaluator: Evaluator) -> bool:
        return True

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in self._attributes:
            return self._attributes[name]
        if name == "needs_input_grad":
            return TupleVariable([ConstantVariable(_needs_gradient(v)) for v in self._inputs])
        if name in _NOTES:
            return _NoteVariable(self, name)
        if not hasattr(self._kind, name):
            evaluator.raise_error(
                AttributeError,
                f"{self._kind.__name__!r} object has no attribute {name!r}",
                name=name,
            )
        return super().get_attribute(evaluator, name)

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        if hasattr(self._kind, name):
            super().set_attribute(evaluator, name, value)
        self._attributes[name] = value


class _NoteVariable(Variable):
    """A method of the context by which a forward tells autograd something."""

    def __init__(self, context: AutogradContextVariable, name: str) -> None:
        self._context = context
        self._name = name

    def call(
        self, evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
    ) -> Variable:
        if self._name == "mark_dirty":
            self._context.dirty.extend(arguments)
        return ConstantVariable(None)


class ApplyVariable(IdentifiedFunctionVariable):
    """``Function.apply``: the forward, evaluated with its caller while no gradient is wanted."""

    def call(
        self, evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
    ) -> Variable:
        owner, *inputs = arguments
        if not isinstance(owner, ClassVariable):
            raise Unsupported("call", f"{self!r} of {owner!r}")
        kind: Any = owner.value
        if torch.is_grad_enabled() and any(map(_needs_gradient, inputs)):
            raise Unsupported("autograd function that needs gradients", kind.__qualname__)
        separate = kind.setup_context is not torch.autograd.Function.setup_context
        if keywords and not (separate and APPLY_TAKES_KEYWORDS):
            raise Unsupported("call", f"{kind.__qualname__}.apply with keywords")
        if separate:
            inputs = _with_defaults(evaluator, kind, inputs, keywords)
        context = AutogradContextVariable(kind._backward_cls, inputs)
        forward = owner.get_attribute(evaluator, "forward")
        with _WithoutGradients(evaluator):
            if separate:
                result = forward.call(evaluator, inputs, {})
                setup = owner.get_attribute(evaluator, "setup_context")
                setup.call(evaluator, [context, TupleVariable(inputs), result], {})
            else:
                result = forward.call(evaluator, [context, *inputs], {})
            return _outputs(evaluator, context, inputs, result)


def _outputs(
    evaluator: Evaluator,
    context: AutogradContextVariable,
    inputs: list[Variable],
    result: Variable,
) -> Variable:
    """What apply makes of the forward's result: an input that comes back unchanged becomes a view."""

    def output(value: Variable) -> Variable:
        if not isinstance(value, TensorVariable):
            return value
        if any(value is v for v in inputs) and not any(value is v for v in context.dirty):
            return evaluator.graph.call_method(evaluator, "view_as", value, [value], {})
        return value

    if result.python_type() is tuple:
        return TupleVariable([output(value) for value in result.iterate(evaluator)])
    return output(result)


def _with_defaults(
    evaluator: Evaluator, kind: Any, inputs: list[Variable], keywords: dict[str, Variable]
) -> list[Variable]:
    """The arguments of the forward with its defaults filled in, as its separate context setup sees them."""
    try:
        bound = inspect.signature(kind.forward).bind(*inputs, **keywords)
    except TypeError as error:
        evaluator.raise_python_error(error)
    given = set(bound.arguments)
    bound.apply_defaults()
    if bound.kwargs:
        raise Unsupported("call", f"{kind.__qualname__}.apply with keywords")
    for name, value in bound.arguments.items():
        if name not in given and not isinstance(value, tuple):
            bound.arguments[name] = evaluator.wrap_result(value)
    return list(bound.args)


class _WithoutGradients:
    """Evaluates a block in no_grad mode, and the graph likewise."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._modes = evaluator.graph.modes
        self._before = torch.is_grad_enabled()

    def __enter__(self) -> None:
        self._modes.switch(set_grad_enabled, (), False)

    def __exit__(self, *exception: object) -> None:
        self._modes.switch(set_grad_enabled, (), self._before)


def _needs_gradient(variable: Variable) -> bool:
    return isinstance(variable, TensorVariable) and variable.fake.requires_grad


class CheckpointVariable(IdentifiedFunctionVariable):
    """``torch.utils.checkpoint.checkpoint``: a call of the function.

    What is kept for the backward pass is for the compiler to decide.
    """

    def call(
        self, evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
    ) -> Variable:
        function, *inputs = arguments
        rest = dict(keywords)
        reentrant = rest.pop("use_reentrant", ConstantVariable(None))
        for name in ("preserve_rng_state", "determinism_check", "debug", "early_stop"):
            rest.pop(name, None)
        if "context_fn" in rest or not reentrant.is_constant() or reentrant.as_constant() is None:
            raise Unsupported("call", f"{self!r} with context_fn or without use_reentrant")
        if reentrant.as_constant():
            if rest:
                raise Unsupported("call", f"{self!r} with keywords and use_reentrant=True")
            if not any(map(_needs_gradient, inputs)):
                raise Unsupported("checkpoint without gradients", repr(function))
        return function.call(evaluator, inputs, rest)


@register_object(vars(torch.autograd.Function)["apply"].__func__)
def _wrap_apply(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, IsObject(value))
    return ApplyVariable(value, source)


@register_object(torch.utils.checkpoint.checkpoint)
def _wrap_checkpoint(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, IsObject(value))
    return CheckpointVariable(value, source)

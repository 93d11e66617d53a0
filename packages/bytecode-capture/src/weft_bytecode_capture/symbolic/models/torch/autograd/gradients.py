"""The gradient that a ``torch.autograd.Function`` defines, as an operator of the graph.

The forward is inlined, without gradients.  The backward is evaluated right behind it,
into a graph of its own, with parameters for the gradients of the results; a node then gives the results this
graph as their history (:class:`~weft_bytecode_capture.gradient_rule.GradientRule`).
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.fx
from torch.autograd.function import once_differentiable

from ....._torch import HigherOrderOperator
from .....gradient_rule import GradientRule
from .....unsupported import Unsupported
from ....captured_exception import CapturedException
from ....graph.modes import MODE_CALLS
from ....graph.purity import draws, is_effectful
from ....protocol import Evaluator
from ....regions.state.python_state import ObjectStates
from ....regions.subgraph import Subgraph, fresh_like, parameter
from ....variables.base import Arguments, Keywords, Variable
from ....variables.constant import ConstantVariable
from ....variables.python_protocols import no_attribute
from ...containers.sequences import TupleVariable
from ...objects.classes import ClassVariable
from ..tensor import TensorVariable

_KIND = "autograd function that needs gradients"
_ONCE = once_differentiable(lambda ctx: None).__code__


class _BackwardGraph(Subgraph):
    """The graph of a backward: takes any value, as no stage runs it as a region."""

    def _check(self, value: object) -> None: ...


class GradientCapture:
    """One call of ``apply`` whose results have gradients; its parts are called in their order."""

    def __init__(
        self,
        evaluator: Evaluator,
        owner: ClassVariable,
        context: AutogradContextVariable,
        inputs: list[Variable],
    ) -> None:
        self._evaluator = evaluator
        self._owner = owner
        self._kind: Any = owner.value
        self._context = context
        self._inputs = inputs
        self._wanted = [v for v in inputs if isinstance(v, TensorVariable) and needs_gradient(v)]
        self._seen = evaluator.graph.rules.storages_so_far()
        self._is_once = _is_once_differentiable(owner.value)
        if not has_backward(owner.value):
            raise self._refusal("no backward of its own")
        if any(type(variable) is not TensorVariable for variable in self._wanted):
            raise self._refusal("inputs of a class of tensors")
        gradients = evaluator.graph.optional_gradients
        if any(gradients.may_lack(variable.fake) for variable in self._wanted):
            raise self._refusal("whether inputs have gradients may depend on data")

    def _refusal(self, why: str) -> Unsupported:
        return Unsupported(_KIND, f"{self._kind.__qualname__}: {why}")

    def differentiate(self, result: Variable) -> None:
        """Evaluate the backward of the forward's result; gradients are disabled meanwhile."""
        outputs = result.iterate(self._evaluator) if _is_tuple(result) else [result]
        tensors = (v for v in outputs if isinstance(v, TensorVariable))
        self._results = [v for v in tensors if self._is_differentiable(v)]
        self._check_results(outputs)
        if not self._results:
            return
        region = _BackwardGraph(self._evaluator.frame)
        states = ObjectStates(self._evaluator.frame)
        switches = self._switches()
        with region.active(may_add_outside=True):
            parameters = [
                parameter(region.graph, f"gradient_{i}", fresh_like(self._evaluator.frame, v.fake))
                for i, v in enumerate(self._results)
            ]
            gradients = self._gradients(self._call_backward(outputs, parameters))
        if self._switches() != switches:
            raise self._refusal("the backward switches a mode")
        if states.effects() or states.changed():
            raise self._refusal("the backward changes Python objects")
        self._close(region, parameters, gradients)

    def _is_differentiable(self, variable: TensorVariable) -> bool:
        dtype = variable.fake.dtype
        marked = any(variable is constant for constant in self._context.constant)
        return not marked and (dtype.is_floating_point or dtype.is_complex)

    def _check_results(self, outputs: list[Variable]) -> None:
        if self._context.dirty:
            raise self._refusal("mark_dirty")
        if not self._context.materializes and len(self._results) > 1:
            raise self._refusal("gradients of several results that may be None")
        for variable in outputs:
            tensor = variable.python_type() is not type(None) and hasattr(variable, "fake")
            if tensor and type(variable) is not TensorVariable:
                raise self._refusal("results of a class of tensors")
        if len({id(variable) for variable in self._results}) != len(self._results):
            raise self._refusal("the same result twice")
        for variable in self._results:
            # A view that is made without gradients says that it needs some, but has no history.
            if variable.source is not None or variable.fake.grad_fn is not None:
                raise self._refusal("a result that was there before, or has gradients already")

    def _call_backward(
        self, outputs: list[Variable], parameters: list[torch.fx.Node]
    ) -> list[Variable]:
        """What ``backward`` gives for each input."""
        evaluator = self._evaluator
        given = iter(parameters)
        gradients = [
            _parameter_variable(next(given))
            if any(variable is result for result in self._results)
            else self._zeros(variable)
            for variable in outputs
        ]
        self._context.in_backward = True
        evaluator.graph.rules.in_backward = not self._is_once
        try:
            backward = self._owner.get_attribute(evaluator, "backward")
            result = backward.call(evaluator, [self._context, *gradients], {})
        except CapturedException as error:
            raise self._refusal(f"the backward raises {error.exception!r}") from error
        except Unsupported as error:
            raise self._refusal(f"in the backward: {error.kind}: {error.context}") from error
        finally:
            evaluator.graph.rules.in_backward = False
        return result.iterate(evaluator) if _is_tuple(result) else [result]

    def _zeros(self, output: Variable) -> Variable:
        """The gradient of a result that has none."""
        if not isinstance(output, TensorVariable) or not self._context.materializes:
            return ConstantVariable(None)
        return self._evaluator.graph.call_function(self._evaluator, torch.zeros_like, [output], {})

    def _gradients(self, results: list[Variable]) -> list[torch.fx.Node | None]:
        """The nodes of the gradients of those inputs that need any."""
        if len(results) < len(self._inputs) or any(
            not extra.is_none() for extra in results[len(self._inputs) :]
        ):
            raise self._refusal(f"the backward gives {len(results)} gradients")
        nodes: list[torch.fx.Node | None] = []
        for variable, gradient in zip(self._inputs, results, strict=False):
            if not gradient.is_none() and type(gradient) is not TensorVariable:
                raise self._refusal(f"the backward gives {gradient!r}")
            if any(variable is wanted for wanted in self._wanted):
                nodes.append(gradient.node)
        return nodes

    def _switches(self) -> int:
        return sum(node.target in MODE_CALLS for node in self._evaluator.graph.outermost.nodes)

    def _close(
        self,
        region: Subgraph,
        parameters: list[torch.fx.Node],
        gradients: list[torch.fx.Node | None],
    ) -> None:
        graph = region.graph
        kept = {node for node in (*parameters, *gradients) if node is not None}
        for node in reversed(graph.nodes):
            if not node.users and node not in kept and not is_effectful(node):
                graph.erase_node(node)
        for node in graph.nodes:
            if draws(node) or isinstance(node.target, HigherOrderOperator):
                raise self._refusal(f"the backward calls {node.target}")
        outside = [node for node in gradients if node is not None and node.graph is not graph]
        taken = list(dict.fromkeys((*region.taken(), *outside)))
        noted = {id(variable.node) for variable in self._context.saved}
        self._saved = [node for node in taken if id(node) in noted]
        self._kept = [node for node in taken if id(node) not in noted]
        module = region.close(parameters, (*self._saved, *self._kept), tuple(gradients))
        self._rule = GradientRule(self._kind.__name__, module, once=self._is_once)

    def attach(self) -> None:
        """Give the results their history; their variables stand for the same tensors as before."""
        if not self._results:
            return
        graph = self._evaluator.graph
        rows = (
            [variable.node for variable in self._results],
            [variable.node for variable in self._wanted],
            self._saved,
            self._kept,
        )
        arguments = tuple(tuple(row) for row in rows)
        node = graph.add_call(self._evaluator, self._rule, arguments)
        for variable, item in zip(self._results, graph.items(node), strict=True):
            variable.node = item
        graph.rules.note(self._evaluator, self._results, self._seen)


def has_backward(kind: Any) -> bool:
    """Whether an autograd function has a backward of its own."""
    base: Any = torch.autograd.Function
    return kind.backward is not base.backward


def _is_once_differentiable(kind: Any) -> bool:
    raw = inspect.getattr_static(kind, "backward")
    code = getattr(getattr(raw, "__func__", raw), "__code__", None)
    return code is _ONCE


def _is_tuple(variable: Variable) -> bool:
    return variable.python_type() is tuple


def _parameter_variable(node: torch.fx.Node) -> TensorVariable:
    return TensorVariable(node, node.meta["example_value"], None)


# The ``ctx`` of a ``torch.autograd.Function`` that is inlined.


_NOTES = (
    "save_for_backward", "save_for_forward", "mark_dirty", "mark_non_differentiable",
    "set_materialize_grads",
)  # fmt: skip


class AutogradContextVariable(Variable):
    """Attributes, and what a forward notes for its backward.

    ``in_backward``: the backward is being evaluated, which may read what the forward left, and no more.
    """

    def __init__(self, kind: type, inputs: list[Variable]) -> None:
        self.kind = kind
        self._inputs = inputs
        self._attributes: dict[str, Variable] = {}
        self.saved: list[Variable] = []
        self.dirty: list[Variable] = []
        self.constant: list[Variable] = []  # results without a gradient
        self.materializes = True
        self.in_backward = False

    def truth(self, evaluator: Evaluator) -> bool:
        return True

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in self._attributes:
            return self._attributes[name]
        if name == "needs_input_grad":
            return TupleVariable([ConstantVariable(needs_gradient(v)) for v in self._inputs])
        if name == "saved_tensors" and self.in_backward:
            return TupleVariable(self.saved)
        if name in _NOTES and not self.in_backward:
            return _NoteVariable(self, name)
        if not hasattr(self.kind, name):
            no_attribute(evaluator, self.kind.__name__, name)
        return super().get_attribute(evaluator, name)

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        if hasattr(self.kind, name) or self.in_backward:
            super().set_attribute(evaluator, name, value)
        self._attributes[name] = value

    def note(self, evaluator: Evaluator, name: str, arguments: Arguments) -> None:
        """What one of the context's methods keeps; each call of it replaces the one before."""
        if name == "save_for_backward":
            self.saved = arguments
        elif name == "mark_dirty":
            self.dirty = arguments
        elif name == "mark_non_differentiable":
            self.constant = arguments
        elif name == "set_materialize_grads":
            (wanted,) = arguments
            self.materializes = wanted.truth(evaluator)


class _NoteVariable(Variable):
    """A method of the context by which a forward tells autograd something."""

    def __init__(self, context: AutogradContextVariable, name: str) -> None:
        self._context = context
        self._name = name

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        if self._name == "set_materialize_grads" and list(keywords) == ["value"]:
            arguments, keywords = list(keywords.values()), {}
        if keywords or (self._name == "set_materialize_grads" and len(arguments) != 1):
            raise Unsupported("call", f"{self._name} with keywords or without a value")
        self._context.note(evaluator, self._name, arguments)
        return ConstantVariable(None)


def needs_gradient(variable: Variable) -> bool:
    """Whether an argument is a tensor that gradients are wanted of."""
    return isinstance(variable, TensorVariable) and variable.fake.requires_grad

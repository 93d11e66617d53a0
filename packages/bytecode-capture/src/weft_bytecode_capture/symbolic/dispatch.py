"""The ``__torch_dispatch__`` protocol: code of a class that computes operators on its instances.

Which operators of ATen an operation is made of is torch's own knowledge: it runs on stand-ins, and each
operator that arrives is evaluated at once, by the class's code or, of plain tensors, as a node of the graph.
Autograd is above: an operator on an instance is dispatched here only where nothing needs a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from .._torch.wrappers import StandInTensor, stand_in_like
from ..unsupported import Unsupported
from .models.containers.mappings import new_keyword_dict
from .models.containers.sequences import ListVariable, TupleVariable
from .models.torch.tensor import TensorVariable, wrap_graph_result
from .models.torch.wrapper_tensors import UNUSUAL, WrapperTensorVariable
from .protocol import Evaluator
from .variables.base import Keywords, Variable
from .variables.constant import ConstantVariable
from .variables.graph_arguments import graph_argument

NAME = "__torch_dispatch__"


def wrappers_in(evaluator: Evaluator, variables: Iterable[Variable]) -> list[WrapperTensorVariable]:
    """The wrappers among arguments, and in their lists and tuples."""
    flat = _flat(evaluator, variables)
    return [variable for variable in flat if isinstance(variable, WrapperTensorVariable)]


def dispatch(
    evaluator: Evaluator,
    operation: Callable[..., Any] | str,
    arguments: Sequence[Variable],
    keywords: Keywords,
) -> Variable:
    """``operation(*arguments, **keywords)``, or a tensor's method, with wrappers among the arguments."""
    function = getattr(torch.Tensor, operation) if isinstance(operation, str) else operation
    call = _Call(evaluator)
    positional = [call.value(variable) for variable in arguments]
    named = {name: call.value(variable) for name, variable in keywords.items()}
    try:
        result = function(*positional, **named)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        if call.raised is not None:
            raise call.raised from None
        raise Unsupported(UNUSUAL, f"{operation}: {error}") from error
    return call.variable(result)


def _needs_gradient(evaluator: Evaluator, variables: Iterable[Variable]) -> bool:
    return any(_requires_grad(evaluator, variable) for variable in _flat(evaluator, variables))


def _refuse_gradients(evaluator: Evaluator, variables: Iterable[Variable]) -> None:
    for variable in _flat(evaluator, variables):
        if _requires_grad(evaluator, variable):
            raise Unsupported(UNUSUAL, f"gradient of {variable!r}")


def _requires_grad(evaluator: Evaluator, variable: Variable) -> bool:
    if isinstance(variable, WrapperTensorVariable):
        return variable.needs_gradient(evaluator)
    return isinstance(variable, TensorVariable) and variable.fake.requires_grad


def _flat(evaluator: Evaluator, variables: Iterable[Variable]) -> Iterator[Variable]:
    for variable in variables:
        if isinstance(variable, (ListVariable, TupleVariable)):
            yield from _flat(evaluator, variable.iterate(evaluator))
        else:
            yield variable


class _Call:
    """Stand-ins for the tensors of one operation, and what its operators give."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.raised: BaseException | None = None
        self._evaluator = evaluator
        self._stand_ins: dict[int, StandInTensor] = {}
        self._variables: dict[int, Variable] = {}

    def value(self, variable: Variable) -> Any:
        """What an operator takes for a variable."""
        if isinstance(variable, (ListVariable, TupleVariable)):
            items = [self.value(item) for item in variable.iterate(self._evaluator)]
            return items if isinstance(variable, ListVariable) else tuple(items)
        if not isinstance(variable, (WrapperTensorVariable, TensorVariable)):
            return graph_argument(self._evaluator, variable)[1]
        stand_in = self._stand_ins.get(id(variable))
        if stand_in is None:
            stand_in = stand_in_like(variable.fake, self._operator)
            self._stand_ins[id(variable)] = stand_in
            self._variables[id(stand_in)] = variable
        return stand_in

    def variable(self, value: Any) -> Variable:
        """The variable of what an operator takes or gives."""
        if isinstance(value, StandInTensor):
            return self._variables[id(value)]
        if type(value) is tuple:
            return TupleVariable([self.variable(item) for item in value])
        if type(value) is list:
            return ListVariable([self.variable(item) for item in value])
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._evaluator.graph.number(value, lambda graph: None, None)
        if isinstance(value, torch.Size):
            return wrap_graph_result(self._evaluator, None, value)
        if isinstance(value, torch.Tensor):
            raise Unsupported(UNUSUAL, "a tensor that an operation makes beside its class")
        return ConstantVariable(value)

    def _operator(self, func: Any, arguments: Any, keywords: Any) -> Any:
        """Evaluate one operator of ATen."""
        try:
            return self.value(self._evaluated(func, arguments, keywords))
        except BaseException as error:
            self.raised = error  # kept as it is: C++ gives some exceptions another class
            raise

    def _evaluated(self, func: Any, arguments: Any, keywords: Any) -> Variable:
        evaluator = self._evaluator
        positional = [self.variable(argument) for argument in arguments]
        named = {name: self.variable(value) for name, value in keywords.items()}
        wrappers = wrappers_in(evaluator, [*positional, *named.values()])
        if not wrappers:
            return evaluator.graph.call_function(evaluator, func, positional, named)
        formula = _FORMULAS.get(func)
        if torch.is_grad_enabled():
            _refuse_gradients(evaluator, wrappers)
            if formula is not None and not named and _needs_gradient(evaluator, positional[:-1]):
                _refuse_gradients(evaluator, positional[-1:])
                apply = evaluator.wrap_known(formula).get_attribute(evaluator, "apply")
                return apply.call(evaluator, positional, {})
            _refuse_gradients(evaluator, [*positional, *named.values()])
        kinds = list(dict.fromkeys(wrapper.kind for wrapper in wrappers))
        types = TupleVariable([evaluator.wrap_known(kind) for kind in kinds])
        function = evaluator.wrap_known(func)
        packed = [function, types, TupleVariable(positional), new_keyword_dict(named)]
        for kind in sorted(kinds, key=lambda kind: -sum(issubclass(kind, k) for k in kinds)):
            result = evaluator.wrap_known(kind).get_attribute(evaluator, NAME)
            found = result.call(evaluator, packed, {})
            if not found.is_not_implemented():
                return found
        raise Unsupported(UNUSUAL, f"no class implements {func}")


# Derivatives of operators on plain tensors and a weight of such a class, which the class's code computes.


class _Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: torch.Tensor, right: torch.Tensor) -> Any:
        ctx.right = right
        return torch.ops.aten.mm.default(left, right)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return torch.ops.aten.mm.default(gradient, torch.ops.aten.t.default(ctx.right)), None


class _MatmulAndBias(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bias: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> Any:
        ctx.right, ctx.size = right, bias.shape
        return torch.ops.aten.addmm.default(bias, left, right)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        left = torch.ops.aten.mm.default(gradient, torch.ops.aten.t.default(ctx.right))
        return gradient.sum_to_size(ctx.size), left, None


_FORMULAS = {torch.ops.aten.mm.default: _Matmul, torch.ops.aten.addmm.default: _MatmulAndBias}

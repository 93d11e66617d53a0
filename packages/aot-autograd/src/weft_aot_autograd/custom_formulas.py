"""Custom operators whose derivative data decides: an operator of its own runs the formula as it is written.

``torch.library.register_autograd`` takes any Python, as a loop over ``offsets.tolist()`` that skips empty
groups.  No graph can hold that, so backward calls ``weft_gradient::library__name``, which is given what the
operator was given, what it gave, and the gradients of that.  It is registered when it is first asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ._torch import CustomFormula, OpOverload, custom_formula, schema_arguments, tree_leaves
from .differentiable_forms import call_differentiably
from .unsupported import Unsupported

if TYPE_CHECKING:
    from .joint_recorder import JointRecorder

_NAMESPACE = "weft_gradient"

# By name: an operator lives as long as its definition.
_DEFINITIONS: dict[str, Any] = {}


def has_custom_formulas(module: torch.fx.GraphModule) -> bool:
    """Whether a graph, or a region of it, calls a custom operator with a derivative in Python."""
    return any(
        isinstance(node.target, OpOverload) and custom_formula(node.target) is not None
        for graph_module in module.modules()
        if isinstance(graph_module, torch.fx.GraphModule)
        for node in graph_module.graph.nodes
    )


def call_with_gradient_operator(
    recorder: JointRecorder, target: OpOverload, args: Any, kwargs: Any
) -> Any:
    """What ``target`` gives; gradients of a custom operator are what the operator of its formula gives."""
    formula = custom_formula(target)
    given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    is_recorded = torch.is_grad_enabled() and any(t.requires_grad for t in given)
    if formula is None or not is_recorded:
        return call_differentiably(target, args, kwargs)
    returns = [str(result.type) for result in target._schema.returns]
    if any(kind != "Tensor" for kind in returns):
        raise Unsupported("gradient of a custom operator that gives a list", str(target))
    results: tuple[Any, ...] = _GradientByOperator.apply(recorder, target, (args, kwargs), *given)  # type: ignore[no-untyped-call]
    return results if len(returns) > 1 else results[0]


class _GradientByOperator(torch.autograd.Function):
    """A call of a custom operator: ``given`` are all tensors among its arguments, in order."""

    @staticmethod
    def forward(
        ctx: Any,
        recorder: JointRecorder,
        target: OpOverload,
        arguments: tuple[Any, Any],
        *given: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        args, kwargs = arguments
        made = target(*args, **kwargs)
        results = made if isinstance(made, tuple) else (made,)
        ctx.mark_non_differentiable(*(r for r in results if not _may_require_grad(r)))
        ctx.call = target, args, kwargs
        ctx.results = [recorder.alias_of(r) for r in results]
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        target, args, kwargs = ctx.call
        wanted = list(ctx.needs_input_grad[3:])
        run = gradient_operator(target)
        found = iter(run(ctx.results, list(gradients), wanted, *args, **kwargs))
        return None, None, None, *(next(found) if is_wanted else None for is_wanted in wanted)


def _may_require_grad(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


# --- the operator -----------------------------------------------------------------------------


@functools.cache
def gradient_operator(operator: OpOverload) -> OpOverload:
    """The operator ``(results, gradients, wanted, *arguments) -> gradients of the wanted tensors``.

    ``wanted`` says it of each tensor among the arguments of ``operator``, in order; each gradient is laid
    out densely as its tensor is, and of zeros where the formula gives None.
    """
    formula = custom_formula(operator)
    assert formula is not None
    name = f"{operator.namespace}__{operator._opname}__{operator._overloadname}"
    signature = str(operator._schema).partition("(")[2].rpartition(") -> ")[0]
    schema = f"(Tensor[] results, Tensor[] gradients, bool[] wanted, {signature}) -> Tensor[]"
    made = torch.library.custom_op(
        f"{_NAMESPACE}::{name}",
        functools.partial(_run_formula, operator, formula),
        mutates_args=(),
        schema=schema,
    )
    made.register_fake(functools.partial(_empty_gradients, operator))
    _DEFINITIONS[name] = made
    found: OpOverload = getattr(getattr(torch.ops, _NAMESPACE), name).default
    return found


def _run_formula(
    operator: OpOverload,
    formula: CustomFormula,
    results: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    wanted: Sequence[bool],
    *args: Any,
    **kwargs: Any,
) -> list[torch.Tensor]:
    positional, keywords = _arguments(operator, args, kwargs)
    pending = iter(wanted)
    needs = tuple(_needs_gradient(value, pending) for value in positional)
    context = _FormulaContext(needs)
    formula.set_up(context, positional, keywords, tuple(results))
    found = formula.backward(context, *gradients)
    every = found if isinstance(found, tuple) else (found,)
    chosen = zip(_tensors_of(positional), _by_tensor(positional, every), wanted, strict=False)
    return [_laid_out(tensor, gradient) for tensor, gradient, is_wanted in chosen if is_wanted]


def _empty_gradients(
    operator: OpOverload,
    results: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    wanted: Sequence[bool],
    *args: Any,
    **kwargs: Any,
) -> list[torch.Tensor]:
    positional, _ = _arguments(operator, args, kwargs)
    chosen = zip(_tensors_of(positional), wanted, strict=False)
    return [torch.empty_like(tensor) for tensor, is_wanted in chosen if is_wanted]


class _FormulaContext(SimpleNamespace):
    """What a formula may ask of the context that ``setup_context`` and ``backward`` are given."""

    def __init__(self, needs_input_grad: tuple[Any, ...]) -> None:
        super().__init__()
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors, or None, for ``saved_tensors``."""
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        """Gradients of integers are zeros here, as they are where this was said."""

    def set_materialize_grads(self, value: bool) -> None:
        """All gradients are tensors here: a None would be zeros."""


def _arguments(operator: OpOverload, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], Any]:
    """All arguments in their order, then those that only a keyword gives; defaults filled in."""
    arguments = schema_arguments(operator)
    given = {a.name: value for a, value in zip(arguments, args, strict=False)} | kwargs
    given = {a.name: given.get(a.name, a.default_value) for a in arguments}
    positional = tuple(given[a.name] for a in arguments if not a.kwarg_only)
    return positional, {a.name: given[a.name] for a in arguments if a.kwarg_only}


def _needs_gradient(value: Any, wanted: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_needs_gradient(item, wanted) for item in value]
    return isinstance(value, torch.Tensor) and next(wanted)


def _tensors_of(arguments: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(arguments) if isinstance(t, torch.Tensor)]


def _by_tensor(arguments: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
    """For each tensor among ``arguments`` the gradient that a formula gives in its place."""
    found: list[Any] = []
    for value, gradient in zip(arguments, gradients, strict=True):
        if isinstance(value, (list, tuple)):
            found += _by_tensor(value, [None] * len(value) if gradient is None else gradient)
        elif isinstance(value, torch.Tensor):
            found.append(gradient)
    return found


def _laid_out(tensor: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
    """A gradient in memory of its own, laid out as the fake one is; of zeros where there is none."""
    if gradient is None:
        return torch.zeros_like(tensor)
    return torch.empty_like(tensor).copy_(gradient)

"""Operators that autograd has no derivative of: eager raises when backward gets there, and so do we.

``x // 2`` of a float that requires gradients is fine, ``(x // 2).sum().backward()`` is an error.
Autograd's formulas run when the graph is made: the error would come then, whether anyone wants this gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from ._torch import OpOverload, inplace_variant, tree_leaves, tree_map
from .differentiable_forms import call_differentiably
from .formula_errors import lacks_derivative
from .joint_graph import MissingDerivative
from .joint_recorder import JointRecorder
from .region_gradients.undefined_gradients import GradientPaths
from .separate_edges import leads_to_any
from .unsupported import Unsupported


class DerivativeProbe:
    """Runs operators so that no gradient passes where autograd has no derivative, and notes where that is.

    ``has_writes``: the program writes to tensors.  An operator may then stand for one that writes, whose
    derivative or error is another: ``bernoulli_`` has a derivative, ``bernoulli`` has none.
    """

    def __init__(self, has_writes: bool) -> None:
        self._has_writes = has_writes

    def call(self, recorder: JointRecorder, target: OpOverload, args: Any, kwargs: Any) -> Any:
        """What ``target`` gives; the results lead to the arguments with a derivative as they do in eager."""
        given = [t for t in tree_leaves((args, kwargs)) if _requires_grad(t)]
        errors: dict[int, RuntimeError] = {}
        if given and torch.is_grad_enabled():
            with recorder.paused():
                marks, errors = _errors_by_argument(target, args, kwargs, given)
        if not errors:
            return call_differentiably(target, args, kwargs)
        if self._has_writes and inplace_variant(target) is not None:
            raise Unsupported("operator without a derivative", str(target))
        apart = {id(t): recorder.alias_of(t) for t in given if id(t) in errors}
        args, kwargs = tree_map(lambda value: apart.get(id(value), value), (args, kwargs))
        result = call_differentiably(target, args, kwargs)
        barred = {id(t): t for t in given if id(t) in errors}
        found = [errors[key] for key in barred]
        pending = iter(marks)

        def bar(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or not next(pending):
                return value
            node = recorder.node_of(value)
            ended: torch.Tensor = _NoDerivative.apply(recorder, found, value, *barred.values())  # type: ignore[no-untyped-call]
            recorder.know(ended, node)
            return ended

        return tree_map(bar, result)


def _errors_by_argument(
    target: OpOverload, args: Any, kwargs: Any, given: Sequence[torch.Tensor]
) -> tuple[list[bool], dict[int, RuntimeError]]:
    """Which of the results require gradients; by ``id`` of an argument the error of its formula."""
    leaves = {id(t): t.detach().requires_grad_() for t in given}
    args, kwargs = tree_map(lambda value: leaves.get(id(value), value), (args, kwargs))
    results = [t for t in tree_leaves(call_differentiably(target, args, kwargs)) if _is_tensor(t)]
    differentiated = [t for t in results if t.requires_grad]
    errors: dict[int, RuntimeError] = {}
    for key, leaf in leaves.items() if differentiated else ():
        try:
            torch.autograd.grad(
                differentiated,
                [leaf],
                [torch.ones_like(t) for t in differentiated],
                allow_unused=True,
                retain_graph=True,
            )
        except RuntimeError as error:
            if not lacks_derivative(error):
                raise
            errors[key] = error
    return [t.requires_grad for t in results], errors


class _NoDerivative(torch.autograd.Function):
    """A result as it is, whose gradient leads to ``value`` but not on to ``barred``, whose formulas fail."""

    @staticmethod
    def forward(
        ctx: Any,
        recorder: JointRecorder,
        errors: Sequence[RuntimeError],
        value: torch.Tensor,
        *barred: torch.Tensor,
    ) -> torch.Tensor:
        ctx.barred = list(zip(barred, errors, strict=True))
        return recorder.alias_of(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return None, None, gradient, *[None] * len(ctx.barred)


def find_missing_derivatives(
    outputs: Sequence[Any], differentiated: Sequence[int], inputs: Sequence[Any]
) -> tuple[MissingDerivative, ...]:
    """Which outputs lead through an operator without a derivative, and to which inputs."""
    if not _barred([outputs[output] for output in differentiated])[0]:  # as mostly, in one walk
        return ()
    missing = []
    paths = GradientPaths(inputs)
    for output in differentiated:
        barred_here, crosses_region = _barred([outputs[output]])
        if barred_here and crosses_region:
            raise Unsupported("operator without a derivative", str(barred_here[0][1]))
        for barred, error in barred_here:
            found = paths.from_result(barred)
            if any(defined is not True for defined in found.values()):
                raise Unsupported("operator without a derivative", str(error))
            if found:
                missing.append(MissingDerivative(output, frozenset(found), type(error), str(error)))
    return tuple(missing)


def _barred(
    results: Sequence[torch.Tensor],
) -> tuple[list[tuple[torch.Tensor, RuntimeError]], bool]:
    """The arguments without a derivative that ``results`` lead to, with their formulas' errors.

    And whether they lead through a region.
    """
    found: list[tuple[torch.Tensor, RuntimeError]] = []
    pending: list[Any] = [get_gradient_edge(result).node for result in results]
    seen = set(pending)
    crosses_region = False
    while pending:
        function = pending.pop()
        found += getattr(function, "barred", ())
        crosses_region = crosses_region or getattr(function, "reach", None) is not None
        following = {f for f, _ in function.next_functions if f is not None} - seen
        seen |= following
        pending += following
    return found, crosses_region


class MissingDerivatives:
    """What backward raises in the place of gradients that do not exist.

    ``arguments``: for each that the function has, the index of the graph's input that it is.
    """

    def __init__(self, missing: Sequence[MissingDerivative], arguments: Sequence[int]) -> None:
        self._missing = [
            (m, [k for k, index in enumerate(arguments) if index in m.input_indices])
            for m in missing
        ]

    @property
    def arguments(self) -> frozenset[int]:
        """Those that a missing derivative stands before."""
        return frozenset(k for _, arguments in self._missing for k in arguments)

    def check(self, ctx: Any, gradients: Sequence[Any]) -> None:
        """Raise eager's error if the engine is on its way to an input by way of a missing derivative.

        ``ctx`` is the function's node in autograd's graph.
        """
        for missing, arguments in self._missing:
            if gradients[missing.output_index] is None:
                continue
            if leads_to_any(ctx, arguments):
                raise missing.error(missing.message)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad

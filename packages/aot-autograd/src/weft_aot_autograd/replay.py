"""Runs functional graphs operator by operator, as eager would: for gradients of gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx

from ._torch import HigherOrderOperator, OpOverload
from .differentiable_forms import call_differentiably

# Key of a node's metadata: True where the program ran it with gradients disabled.
GRADIENTS_DISABLED = "gradients_disabled"

# Present where an operator's gradient is torch's formula, though elsewhere it may stand for a write.
OWN_FORMULA = "own_formula"


class GradientModeInterpreter(torch.fx.Interpreter):
    """An interpreter that runs each node in the gradient mode in which the program ran it."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.extra_traceback = False  # errors say what eager's say

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(target, OpOverload):
            return call_differentiably(target, args, kwargs)
        if isinstance(target, HigherOrderOperator):
            return _REGIONS[target.name()](*args)
        return super().call_function(target, args, kwargs)

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.meta.get(GRADIENTS_DISABLED):
            with torch.no_grad():
                return super().run_node(n)
        if OWN_FORMULA in n.meta:
            assert isinstance(n.target, OpOverload)
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            return n.target(*args, **kwargs)
        if n.target is _ATTENTION and all(user.args[1] == 0 for user in n.users):
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            return _attention_of_matmuls(*args, **kwargs)
        return super().run_node(n)


def run_operators(graph_module: torch.fx.GraphModule) -> Callable[..., Sequence[Any]]:
    """What runs a graph by its operators; torch's own regions take no floats."""
    modules = (m for m in graph_module.modules() if isinstance(m, torch.fx.GraphModule))
    targets = (node.target for module in modules for node in module.graph.nodes)
    if any(isinstance(target, HigherOrderOperator) for target in targets):
        run: Callable[..., Sequence[Any]] = GradientModeInterpreter(graph_module).run
        return run
    return graph_module.forward


_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def _attention_of_matmuls(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor]:
    """The result of attention in a form with gradients of gradients, which the kernel's own lacks.

    Eager computes attention in three dims so, for which the graph has the kernel.
    """
    result: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math.default(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale
    )[0]
    return (result,)


def _run_branch(
    predicate: torch.Tensor,
    true_graph: torch.fx.GraphModule,
    false_graph: torch.fx.GraphModule,
    operands: Sequence[Any],
) -> Any:
    return GradientModeInterpreter(true_graph if predicate else false_graph).run(*operands)


def _run_loop(
    condition: torch.fx.GraphModule,
    body: torch.fx.GraphModule,
    carried: Sequence[Any],
    additional: Sequence[Any],
) -> Any:
    state = tuple(carried)
    while GradientModeInterpreter(condition).run(*state, *additional):
        state = GradientModeInterpreter(body).run(*state, *additional)
    return state


def _run_scan(
    combine: torch.fx.GraphModule, rows: Sequence[torch.Tensor], additional: Sequence[Any]
) -> Any:
    results = [tuple(row[0] for row in rows)]
    for position in range(1, rows[0].shape[0]):
        given = (*results[-1], *(row[position] for row in rows), *additional)
        results.append(GradientModeInterpreter(combine).run(*given))
    return tuple(torch.stack(column) for column in zip(*results, strict=True))


# By name of a control-flow operator: what Python does in its place, iteration by iteration.
_REGIONS: dict[str, Callable[..., Any]] = {
    "cond": _run_branch,
    "while_loop": _run_loop,
    "associative_scan": _run_scan,
}


@contextlib.contextmanager
def without_autocast(device_types: Sequence[str]) -> Iterator[None]:
    """Run as written: a functional graph holds the casts that autocast made."""
    with contextlib.ExitStack() as stack:
        for device_type in device_types:
            has_autocast = torch.amp.is_autocast_available(device_type)
            if has_autocast and torch.is_autocast_enabled(device_type):
                stack.enter_context(torch.autocast(device_type, enabled=False))
        yield

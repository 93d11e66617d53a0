"""Random numbers drawn inside of kernels, as functions of a seed and of an element's place.

A graph draws as many seeds as it has random operators, from the device's generator, in one launch: so
``torch.manual_seed`` decides what follows, and a replayed CUDA graph gets new ones.  What backward needs of a
mask it computes again.  The numbers have the same distributions as eager's, but are not the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from weft_loop_ir import device_of_loops
from weft_loop_ir.rewriting.fakes import call_before, insert_call, replace

aten, weft = torch.ops.aten, torch.ops.weft

DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24}
"""Bits of a uniform number that each dtype holds exactly; other dtypes' numbers are torch's own."""

BY_SIZE = (aten.rand.default, aten.randn.default)
"""Operators whose first argument is the result's size; others take a tensor that is like the result."""


@dataclass(frozen=True)
class Drawing:
    """Inserts nodes before ``node``, a random operator whose numbers have the seed ``which`` of ``seeds``."""

    node: torch.fx.Node
    seeds: torch.fx.Node
    which: int

    def call(self, target: Callable[..., Any], *arguments: Any, **keywords: Any) -> torch.fx.Node:
        """A new node, with the fake value that ``target`` gives."""
        return call_before(self.node, target, *arguments, **keywords)

    def numbers(self, operator: Callable[..., Any]) -> torch.fx.Node:
        """A float32 tensor of numbers, as many as the random operator gives."""
        return self.call(operator, self.seeds, self.which, self._size())

    def _size(self) -> list[Any]:
        if self.node.target in BY_SIZE:
            return list(self.node.args[0])  # type: ignore[arg-type]
        like = _like(self.node)
        return [
            n if isinstance(n, int) else self.call(aten.sym_size.int, like, dimension)
            for dimension, n in enumerate(like.meta["val"].shape)
        ]

    def convert(self, value: torch.fx.Node, dtype: torch.dtype) -> torch.fx.Node:
        """``value`` in ``dtype``."""
        if value.meta["val"].dtype is dtype:
            return value
        return self.call(aten._to_copy.default, value, dtype=dtype)


def _uniform(drawing: Drawing, value: torch.Tensor) -> torch.fx.Node:
    """Numbers from 0 to below 1 in the dtype of ``value``."""
    drawn = drawing.numbers(weft.uniform_at.default)
    digits = DIGITS[value.dtype]
    if digits < DIGITS[torch.float32]:  # rounding could give 1
        drawn = drawing.call(aten.mul.Tensor, drawn, 2.0**digits)
        drawn = drawing.call(aten.floor.default, drawn)
        drawn = drawing.call(aten.mul.Tensor, drawn, 2.0**-digits)
    return drawing.convert(drawn, value.dtype)


def _normal(drawing: Drawing, value: torch.Tensor) -> torch.fx.Node:
    drawn = drawing.numbers(weft.normal_at.default)
    return drawing.convert(drawn, value.dtype)


def _uniform_between(
    drawing: Drawing, value: torch.Tensor, tensor: Any, low: float = 0.0, high: float = 1.0
) -> torch.fx.Node:
    drawn = drawing.numbers(weft.uniform_at.default)
    drawn = drawing.call(aten.mul.Tensor, drawn, high - low)
    drawn = drawing.convert(drawing.call(aten.add.Tensor, drawn, low), value.dtype)
    beyond = drawing.call(aten.ge.Scalar, drawn, high)  # rounded up
    edge = drawing.call(aten.full_like.default, drawn, low)
    return drawing.call(aten.where.self, beyond, edge, drawn)


def _normal_around(
    drawing: Drawing, value: torch.Tensor, tensor: Any, mean: float = 0.0, deviation: float = 1.0
) -> torch.fx.Node:
    drawn = drawing.numbers(weft.normal_at.default)
    drawn = drawing.call(aten.mul.Tensor, drawn, deviation)
    return drawing.convert(drawing.call(aten.add.Tensor, drawn, mean), value.dtype)


def _normal_of(drawing: Drawing, value: torch.Tensor, mean: Any, deviation: Any) -> torch.fx.Node:
    drawn = drawing.convert(drawing.numbers(weft.normal_at.default), value.dtype)
    return drawing.call(aten.add.Tensor, drawing.call(aten.mul.Tensor, drawn, deviation), mean)


def _exponential(
    drawing: Drawing, value: torch.Tensor, tensor: Any, rate: float = 1.0
) -> torch.fx.Node:
    """Never 0, as in eager: the logarithm of 1 counts as half the distance to the number below 1."""
    drawn = drawing.numbers(weft.uniform_at.default)
    least = torch.finfo(torch.float32).eps / 2
    small = drawing.call(aten.lt.Scalar, drawn, least)
    logarithm = drawing.call(aten.log1p.default, drawing.call(aten.neg.default, drawn))
    edge = drawing.call(aten.full_like.default, logarithm, -least)
    logarithm = drawing.call(aten.where.self, small, edge, logarithm)
    return drawing.convert(drawing.call(aten.mul.Tensor, logarithm, -1.0 / rate), value.dtype)


def _bernoulli(
    drawing: Drawing, value: torch.Tensor, tensor: Any, probability: float
) -> torch.fx.Node:
    drawn = drawing.numbers(weft.uniform_at.default)
    chosen = drawing.call(aten.lt.Scalar, drawn, probability)
    return drawing.convert(chosen, value.dtype)


def _bernoulli_of(
    drawing: Drawing, value: torch.Tensor, probabilities: torch.fx.Node
) -> torch.fx.Node:
    drawn = drawing.numbers(weft.uniform_at.default)
    wide = drawing.convert(probabilities, torch.float32)
    return drawing.convert(drawing.call(aten.lt.Tensor, drawn, wide), value.dtype)


def _without_arguments(
    rule: Callable[[Drawing, torch.Tensor], torch.fx.Node],
) -> Callable[..., torch.fx.Node]:
    """The rule of an operator whose arguments say only what its fake value says."""

    def drawn(drawing: Drawing, value: torch.Tensor, *arguments: Any, **_: Any) -> torch.fx.Node:
        return rule(drawing, value)

    return drawn


RULES: dict[Any, Callable[..., torch.fx.Node]] = {
    aten.rand.default: _without_arguments(_uniform),
    aten.rand_like.default: _without_arguments(_uniform),
    aten.randn.default: _without_arguments(_normal),
    aten.randn_like.default: _without_arguments(_normal),
    aten.uniform.default: _uniform_between,
    aten.normal_functional.default: _normal_around,
    aten.normal.float_Tensor: _normal_of,
    aten.normal.Tensor_float: _normal_of,
    aten.normal.Tensor_Tensor: _normal_of,
    aten.exponential.default: _exponential,
    aten.bernoulli.default: _bernoulli_of,
    aten.bernoulli.p: _bernoulli,
}
"""What stands for each random operator: ``rule(drawing, fake value, *arguments)`` gives the last new node."""


def _dropout(drawing: Drawing, x: torch.fx.Node, probability: float) -> tuple[torch.fx.Node, ...]:
    """``native_dropout`` in training: its result, rounded once as on GPUs, and the mask of what is kept."""
    drawn = drawing.numbers(weft.uniform_at.default)
    kept = drawing.call(aten.ge.Scalar, drawn, probability)
    factor = drawing.convert(kept, torch.float32)
    result = drawing.call(aten.mul.Tensor, drawing.convert(x, torch.float32), factor)
    result = drawing.call(aten.mul.Tensor, result, 1.0 / (1.0 - probability))
    return drawing.convert(result, x.meta["val"].dtype), kept


def draw_in_kernels(graph: torch.fx.Graph) -> None:
    """Replace the random operators of ``graph`` that have a rule, and whose results kernels compute.

    Beside a GPU the CPU draws what eager draws there.
    """
    device = device_of_loops(graph)
    nodes = [
        node
        for node in graph.nodes
        if node.op == "call_function" and _is_drawn(node) and _first_result(node).device == device
    ]
    if not nodes:
        return
    seeds = _draw_seeds(nodes)
    for which, node in enumerate(nodes):
        drawing = Drawing(node, seeds, which)
        if node.target is not aten.native_dropout.default:
            keywords = {k: v for k, v in node.kwargs.items() if k != "generator"}
            _replace(node, RULES[node.target](drawing, node.meta["val"], *node.args, **keywords))
            continue
        results = _dropout(drawing, *node.args[:2])
        for user in list(node.users):
            _replace(user, results[user.args[1]])
        graph.erase_node(node)


def _is_drawn(node: torch.fx.Node) -> bool:
    """Whether a rule is for the operator and its arguments."""
    if node.target is aten.native_dropout.default:
        probability, is_training = node.args[1:3]
        if is_training is False or not isinstance(probability, float) or not 0 < probability < 1:
            return False
    elif node.target not in RULES or node.kwargs.get("generator") is not None:
        return False
    elif node.target in BY_SIZE:
        return node.meta["val"].dtype in DIGITS
    like = _like(node)
    numbers = [a for a in node.args if not isinstance(a, torch.fx.Node)]
    return (
        like is not None
        and like.meta["val"].dtype in DIGITS
        and all(isinstance(n, int | float) or n is None for n in numbers)
        and all(isinstance(n.meta["val"], torch.Tensor) for n in node.all_input_nodes)
    )


def _like(node: torch.fx.Node) -> Any:
    """The tensor among the arguments that is like the result; None if there is none."""
    value = _first_result(node)
    for argument in node.all_input_nodes:
        other = argument.meta["val"]
        if isinstance(other, torch.Tensor) and other.shape == value.shape:
            return argument if other.dtype is value.dtype else None
    return None


def _first_result(node: torch.fx.Node) -> Any:
    value = node.meta["val"]
    return value[0] if isinstance(value, tuple | list) else value


def _draw_seeds(nodes: list[torch.fx.Node]) -> torch.fx.Node:
    """A node before all of ``nodes`` that draws a seed for each."""
    value = _first_result(nodes[0])
    limits = torch.iinfo(torch.int64)
    arguments = (limits.min, limits.max, [len(nodes)])
    keywords = {"dtype": torch.int64, "device": value.device}
    with value.fake_mode:
        drawn = aten.randint.low(*arguments, **keywords)
    return insert_call(nodes[0], drawn, aten.randint.low, *arguments, **keywords)


def _replace(node: torch.fx.Node, new: torch.fx.Node) -> None:
    """Let ``new`` stand for ``node``, and lie as it does."""
    new.meta["val"] = node.meta["val"]
    replace(node, new)

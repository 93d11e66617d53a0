"""Programs after what people have reported of compilers for PyTorch: numbers, memory, state and Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Compile = Callable[[Any], Any]


def gradients(function: Any, *inputs: Tensor) -> list[Any]:
    """The results, and the gradients of a weighted sum of them."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    results = function(*leaves)
    total = sum((r * torch.linspace(0.5, 1.5, r.numel()).view_as(r)).sum() for r in results)
    return [r.detach() for r in results] + list(torch.autograd.grad(total, leaves))


def optimizer_with_a_number_of_steps(compile: Compile) -> Any:
    """Moments that are updated in place, by numbers that a tensor's ``item()`` gives in each turn."""

    def train(p: Tensor, gradient: Tensor) -> Tensor:
        first, second, steps = torch.zeros_like(p), torch.zeros_like(p), torch.zeros(())
        for _ in range(4):
            steps.add_(1)
            first.mul_(0.9).add_(gradient, alpha=0.1)
            second.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
            t = steps.item()
            spread = (second.sqrt() / (1 - 0.99**t) ** 0.5).add_(1e-8)
            p.addcdiv_(first, spread, value=-0.1 / (1 - 0.9**t))
        return p

    return compile(train)(torch.ones(3, 4), torch.linspace(-1, 1, 12).view(3, 4))


def statistics_of_segments(compile: Compile) -> Any:
    """Means, variances and a softmax by segment, of scatters and reads at the same positions."""

    def segments(x: Tensor, where: Tensor) -> tuple[Tensor, ...]:
        places = where[:, None].expand_as(x)
        counts = torch.zeros(3).index_add(0, where, torch.ones(len(where))).clamp(1)[:, None]
        mean = torch.zeros(3, 4).index_add(0, where, x) / counts
        variance = torch.zeros(3, 4).index_add(0, where, (x - mean[where]) ** 2) / counts
        greatest = torch.full((3, 4), -torch.inf).scatter_reduce(0, places, x.detach(), "amax")
        weights = (x - greatest[where]).exp()
        return variance, weights / torch.zeros(3, 4).scatter_add(0, places, weights)[where]

    compiled = compile(segments)
    return [
        gradients(lambda x, where=where: compiled(x, where), torch.randn(len(where), 4))
        for where in (torch.tensor([0, 2, 2, 0, 1]), torch.tensor([1, 1]))
    ]


def writes_through_windows(compile: Compile) -> Any:
    """Windows with gaps between them, every other column, a diagonal: the rest stays as it was."""

    def update(x: Tensor) -> Tensor:
        x.unfold(1, 1, 5).mul_(2)
        x[:, ::2] += x[:, :1].clone()
        x.diagonal().sub_(1)
        x.copy_(x.flip(1))
        return x + x.t()[:, :1]

    results = []
    for rows in (6, 7):
        x = torch.arange(float(rows * rows)).view(rows, rows)
        results += [compile(update)(x), x]
    return results


def scattered_parts_with_gradients(compile: Compile) -> Any:
    def scattered(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        part = torch.slice_scatter(x, y, 1, 0, 2)
        return (
            part.sum(1),
            torch.diagonal_scatter(x, y[:, 0]).sum(0),
            x.select_scatter(y[0, 0] * x[0], 0, -1),
        )

    return gradients(compile(scattered), torch.randn(4, 4), torch.randn(4, 2))


def windows_that_stick_out(compile: Compile) -> Any:
    """Pools whose last window lies partly outside, and sizes that a scale leaves as they are."""

    def pooled(x: Tensor) -> tuple[Tensor, ...]:
        return (
            F.avg_pool2d(x, 3, 2, ceil_mode=True),
            F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
            F.interpolate(x, scale_factor=(1.3, 1.5), mode="nearest"),
            F.pad(x, (-1, 2, 2, 0), mode="reflect"),
        )

    return gradients(compile(pooled), torch.randn(1, 2, 3, 6)), gradients(
        compile(pooled), torch.randn(1, 1, 3, 8)
    )


def integers_at_their_ends(compile: Compile) -> Any:
    def arithmetic(x: Tensor, y: Tensor, small: Tensor) -> list[Tensor]:
        sums = [
            x // y,
            x % y,
            x >> 31,
            x << 31,
            (small + small).to(torch.int16),
            -small,
            small * small,
        ]
        return [*sums, torch.arange(5) * torch.tensor([10**9]), small.sum(), (small - 200).float()]

    x = torch.tensor([-(2**31), 7, -7, 2**31 - 1], dtype=torch.int32)
    y = torch.tensor([-1, -2, 2, 3], dtype=torch.int32)
    return compile(arithmetic)(x, y, torch.tensor([128, 3, 255], dtype=torch.uint8))


def boundaries_of_sequences(compile: Compile) -> Any:
    """Running sums behind a zero, and what is made of them: the zero is no element of the sums."""

    def boundaries(lengths: Tensor) -> list[Tensor]:
        ends = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        padded = F.pad(lengths.float(), (2, 3), value=99.0)
        return [ends, ends.max(), (ends[1:] - ends[:-1]).max(), padded.max(), padded.argmax()]

    compiled = compile(boundaries)
    return [compiled(torch.arange(1, n)) for n in (5, 700)]


@torch.library.custom_op("weft_reported::reverse_into", mutates_args=("target",))
def reverse_into(source: Tensor, target: Tensor) -> None:
    for k in range(len(source)):
        target[len(source) - 1 - k] = source[k]


def copies_that_an_operator_reads_as_it_writes(compile: Compile) -> Any:
    def reversed_twice(x: Tensor) -> Tensor:
        reverse_into(x.clone(), x)
        y = x * 1
        reverse_into(y.clone(), y)
        return x * 2 + y

    x = torch.arange(8.0)
    return compile(reversed_twice)(x), x


class Node:
    def __init__(self, value: float) -> None:
        self.value, self.seen = value, ["made"]


def objects_that_are_one_or_two(compile: Compile) -> Any:
    def step(x: Tensor, a: Node, b: Node) -> Tensor:
        if a is b:
            a.value += 1
            a.seen.append("both")
            return x * a.value
        a.value += 10
        b.seen.append("second")
        return x - b.value

    compiled, a, b = compile(step), Node(1.0), Node(2.0)
    x = torch.ones(2)
    results = [compiled(x, *pair) for pair in ((a, a), (a, b), (b, b), (b, a), (a, a))]
    return results, a.value, b.value, a.seen, b.seen


def code_and_functions_that_are_exchanged(compile: Compile) -> Any:
    class Model:
        def method(self, x: Tensor) -> Tensor:
            return x * 2

    def other(self: Any, x: Tensor) -> Tensor:
        return x * 9

    def applied(operator: Any) -> Any:
        def apply(x: Tensor, y: Tensor) -> Tensor:
            return operator(x, y)

        return compile(apply)(torch.tensor(6.0), torch.tensor(3.0))

    model = Model()
    called = compile(lambda x: model.method(x))
    before = called(torch.ones(2))
    Model.method.__code__ = other.__code__
    operators = (torch.Tensor.__add__, torch.Tensor.__mul__, torch.Tensor.sub, torch.mul)
    return before, called(torch.ones(2)), [applied(operator) for operator in operators]


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    program.__name__: program
    for program in (
        *(optimizer_with_a_number_of_steps, statistics_of_segments, writes_through_windows),
        *(scattered_parts_with_gradients, windows_that_stick_out, integers_at_their_ends),
        *(boundaries_of_sequences, copies_that_an_operator_reads_as_it_writes),
        *(objects_that_are_one_or_two, code_and_functions_that_are_exchanged),
    )
}

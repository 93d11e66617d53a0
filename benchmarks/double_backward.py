"""Gradients of gradients beside eager, on the CPU: ``python -m benchmarks.double_backward [--rounds N]``.

Each program is a training step whose loss has gradients of a compiled network in it: a gradient penalty, a
network that is trained on a differential equation (PINN), two inner steps of MAML.  The steps of eager and
weft take turns in one process, and the fastest of each counts: what is told is their ratio.  torch.compile
is not among the peers: it refuses to differentiate twice.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import weft
from torch import Tensor, nn

Step = Callable[[Callable[..., Tensor]], Any]


def layers(count: int, width: int, activation: type[nn.Module], given: int) -> nn.Sequential:
    """``count`` linear layers with activations in between, from ``given`` features to one."""
    sizes = [given, *[width] * (count - 1), 1]
    modules: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        modules += [nn.Linear(before, after), activation()]
    return nn.Sequential(*modules[:-1])


def penalty(network: nn.Module, rows: int) -> Step:
    """The distance from 1 of the norm of the gradient, as of a critic of a WGAN."""
    x = torch.randn(rows, 16, requires_grad=True)

    def step(run: Callable[..., Tensor]) -> None:
        (gradient,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        loss = ((gradient.norm(2, dim=1) - 1) ** 2).mean()
        torch.autograd.grad(loss, list(network.parameters()), allow_unused=True)

    return step


def equation(network: nn.Module, rows: int) -> Step:
    """Burgers' equation, which has a second derivative."""
    t, x = (torch.rand(rows, 1, requires_grad=True) for _ in range(2))

    def step(run: Callable[..., Tensor]) -> None:
        u = run(torch.cat((t, x), 1))
        ones = torch.ones_like(u)
        u_t, u_x = torch.autograd.grad(u, [t, x], ones, create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x, x, ones, create_graph=True)
        loss = (u_t + u * u_x - 0.01 * u_xx).square().mean()
        torch.autograd.grad(loss, list(network.parameters()), allow_unused=True)

    return step


def inner_steps(network: nn.Module, rows: int) -> Step:
    """Two steps along the gradients of all parameters, and the gradients of the loss behind them."""
    x, y = torch.randn(rows, 16), torch.randn(rows, 1)
    parameters = dict(network.named_parameters())

    def step(run: Callable[..., Tensor]) -> None:
        current = parameters
        for _ in range(2):
            loss = (run(current, x) - y).square().mean()
            gradients = torch.autograd.grad(loss, list(current.values()), create_graph=True)
            current = {
                name: value - 0.01 * gradient
                for (name, value), gradient in zip(current.items(), gradients, strict=True)
            }
        loss = (run(current, x) - y).square().mean()
        torch.autograd.grad(loss, list(parameters.values()))

    return step


def programs() -> Iterator[tuple[str, Step, Callable[..., Tensor]]]:
    """Each with a name, and what of it is compiled."""
    for count, width, activation, rows in (
        (4, 64, nn.Tanh, 256),
        (4, 256, nn.SiLU, 1024),
        (5, 128, nn.SiLU, 1024),
        (6, 64, nn.Tanh, 4096),
        (6, 64, nn.SiLU, 4096),
    ):
        network = layers(count, width, activation, 16)
        name = f"penalty, {count} x {width} {activation.__name__}, {rows} rows"
        yield name, penalty(network, rows), network
    for count, width, rows in ((4, 32, 1024), (5, 50, 4096)):
        network = layers(count, width, nn.Tanh, 2)
        yield f"PINN, {count} x {width} Tanh, {rows} rows", equation(network, rows), network
    network = layers(4, 64, nn.Tanh, 16)

    def called(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(network, parameters, (x,))

    yield "MAML, 4 x 64 Tanh, 1024 rows", inner_steps(network, 1024), called


def measure(step: Step, run: Callable[..., Tensor], rounds: int) -> list[float]:
    """Milliseconds of the fastest step, of eager and of weft."""
    torch.manual_seed(0)
    compiled: Any = weft.compile(run)
    best = [float("inf")] * 2
    for number in range(rounds + 2):
        for k, called in enumerate((run, compiled)):
            start = time.perf_counter()
            step(called)
            if number > 1:  # the first compile
                best[k] = min(best[k], time.perf_counter() - start)
    return [1000 * seconds for seconds in best]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("| step | eager ms | weft ms | over eager |")
    print("|---|---|---|---|")
    for name, step, run in programs():
        eager, compiled = measure(step, run, options.rounds)
        print(f"| {name} | {eager:.2f} | {compiled:.2f} | {eager / compiled:.2f}x |", flush=True)


if __name__ == "__main__":
    main()

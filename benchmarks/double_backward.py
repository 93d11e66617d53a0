"""Gradients of gradients beside eager, on the CPU: ``python -m benchmarks.double_backward [--rounds N]``.

Each program is a training step whose loss has gradients of a network in it: a gradient penalty, a network
that is trained on a differential equation (PINN), two inner steps of MAML.  Compiled is the network alone,
whose gradients are taken outside, or the whole loss, with ``torch.autograd.grad`` inside.  The steps of eager
and weft take turns in one process, and the fastest of each counts: what is told is their ratio.
torch.compile is not among the peers: it refuses to differentiate twice.
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

Run = Callable[..., Tensor]
Loss = Callable[[Run], Tensor]
"""The loss of a step, by the network as it is called."""


def layers(count: int, width: int, activation: type[nn.Module], given: int) -> nn.Sequential:
    """``count`` linear layers with activations in between, from ``given`` features to one."""
    sizes = [given, *[width] * (count - 1), 1]
    modules: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        modules += [nn.Linear(before, after), activation()]
    return nn.Sequential(*modules[:-1])


def penalty(network: nn.Module, rows: int) -> Loss:
    """The distance from 1 of the norm of the gradient, as of a critic of a WGAN."""
    x = torch.randn(rows, 16, requires_grad=True)

    def loss(run: Run) -> Tensor:
        (gradient,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        return ((gradient.norm(2, dim=1) - 1) ** 2).mean()

    return loss


def equation(network: nn.Module, rows: int) -> Loss:
    """Burgers' equation, which has a second derivative."""
    t, x = (torch.rand(rows, 1, requires_grad=True) for _ in range(2))

    def loss(run: Run) -> Tensor:
        u = run(torch.cat((t, x), 1))
        ones = torch.ones_like(u)
        u_t, u_x = torch.autograd.grad(u, [t, x], ones, create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x, x, ones, create_graph=True)
        return (u_t + u * u_x - 0.01 * u_xx).square().mean()

    return loss


def inner_steps(network: nn.Module, rows: int) -> Loss:
    """Two steps along the gradients of all parameters, and the loss behind them."""
    x, y = torch.randn(rows, 16), torch.randn(rows, 1)
    parameters = dict(network.named_parameters())

    def loss(run: Run) -> Tensor:
        current = parameters
        for _ in range(2):
            loss = (run(current, x) - y).square().mean()
            gradients = torch.autograd.grad(loss, list(current.values()), create_graph=True)
            current = {
                name: value - 0.01 * gradient
                for (name, value), gradient in zip(current.items(), gradients, strict=True)
            }
        return (run(current, x) - y).square().mean()

    return loss


def programs() -> Iterator[tuple[str, nn.Module, Loss, Run]]:
    """Each with a name, its network, its loss, and how that calls the network."""
    for count, width, activation, rows in (
        (4, 64, nn.Tanh, 256),
        (4, 256, nn.SiLU, 1024),
        (5, 128, nn.SiLU, 1024),
        (6, 64, nn.Tanh, 4096),
        (6, 64, nn.SiLU, 4096),
    ):
        network = layers(count, width, activation, 16)
        name = f"penalty, {count} x {width} {activation.__name__}, {rows} rows"
        yield name, network, penalty(network, rows), network
    for count, width, rows in ((4, 32, 1024), (5, 50, 4096)):
        network = layers(count, width, nn.Tanh, 2)
        name = f"PINN, {count} x {width} Tanh, {rows} rows"
        yield name, network, equation(network, rows), network
    network = layers(4, 64, nn.Tanh, 16)

    def called(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(network, parameters, (x,))

    yield "MAML, 4 x 64 Tanh, 1024 rows", network, inner_steps(network, 1024), called


def measure(network: nn.Module, loss: Loss, run: Run, rounds: int) -> list[float]:
    """Milliseconds of the fastest step: of eager, of the compiled network and of the compiled loss."""
    torch.manual_seed(0)
    parameters = list(network.parameters())
    compiled: Any = weft.compile(run)
    steps: list[Callable[[], Tensor]] = [
        lambda: loss(run),
        lambda: loss(compiled),
        weft.compile(lambda: loss(run), fullgraph=True),
    ]
    best = [float("inf")] * len(steps)
    for number in range(rounds + 2):
        for k, step in enumerate(steps):
            start = time.perf_counter()
            torch.autograd.grad(step(), parameters, allow_unused=True)
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
    print("| step | eager ms | network ms | loss ms | network, over eager | loss, over eager |")
    print("|---|---|---|---|---|---|")
    for name, network, loss, run in programs():
        eager, inside, whole = measure(network, loss, run, options.rounds)
        times = f"{eager:.2f} | {inside:.2f} | {whole:.2f}"
        print(f"| {name} | {times} | {eager / inside:.2f}x | {eager / whole:.2f}x |", flush=True)


if __name__ == "__main__":
    main()

"""What a compiled call costs before its graph runs: ``python -m benchmarks.guards [--rounds N]``.

Eager, weft and torch.compile in one process, in turn within each round; the figures are medians over the
rounds, of the thread's processor time.  Both compilers get the same backends: one that returns the graph's
own ``forward`` (the trivial function), and one whose program does nothing but give the outputs of its first
run (the transformer), so that guards and the way to the program are what is left.
"""

from __future__ import annotations

import argparse
import builtins
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import weft
from weft_bytecode_capture import CaptureReport, compile_frames
from weft_guards import GuardSet

LAYERS = 24


def trivial(x: torch.Tensor) -> torch.Tensor:
    """One addition."""
    return x + 1


class Block(torch.nn.Module):
    """A transformer's layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm = torch.nn.LayerNorm(width)
        self.second_norm = torch.nn.LayerNorm(width)
        self.queries = torch.nn.Linear(width, 3 * width)
        self.output = torch.nn.Linear(width, width)
        self.widen = torch.nn.Linear(width, 4 * width)
        self.narrow = torch.nn.Linear(4 * width, width)
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        mixed = self.queries(self.first_norm(x))
        parts = mixed.view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = torch.nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = x + self.dropout(self.output(attended.transpose(1, 2).reshape(batch, length, width)))
        hidden = torch.nn.functional.gelu(self.widen(self.second_norm(x)))
        return x + self.dropout(self.narrow(hidden))


def transformer() -> torch.nn.Module:
    """Layers one after the other, 290 parameters."""
    blocks = [Block(16, 2) for _ in range(LAYERS)]
    return torch.nn.Sequential(*blocks, torch.nn.LayerNorm(16)).eval()


def own_forward(graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """A backend: the graph as it is."""
    return graph_module.forward


def first_outputs(graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """A backend whose program runs once and then does nothing."""
    outputs: list[Any] = []

    def run(*arguments: Any) -> Any:
        if not outputs:
            outputs.append(graph_module.forward(*arguments))
        return outputs[0]

    return run


def microseconds(function: Callable[[], Any], calls: int) -> float:
    """Mean microseconds of this thread's processor time for a call, over ``calls`` of them."""
    start = time.thread_time()
    for _ in range(calls):
        function()
    return (time.thread_time() - start) / calls * 1e6


def medians(functions: dict[str, Callable[[], Any]], rounds: int, calls: int) -> dict[str, float]:
    """By name, the median of the rounds' means, the functions taken in turn."""
    for function in functions.values():
        function()
        function()
    found: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            found[name].append(microseconds(function, calls))
    return {name: statistics.median(values) for name, values in found.items()}


def measure_trivial(rounds: int) -> list[str]:
    """The table of the trivial function."""
    x = torch.randn(8)
    ours = weft.compile(trivial, backend=own_forward)
    peer = torch.compile(trivial, backend=own_forward)
    figures = medians(
        {"eager": lambda: trivial(x), "weft": lambda: ours(x), "torch.compile": lambda: peer(x)},
        rounds,
        5000,
    )
    lines = [
        "| x + 1 on 8 numbers, the graph's own forward | a call, µs | over eager, µs |",
        "|---|---|---|",
    ]
    base = figures["eager"]
    lines += [f"| {name} | {value:.2f} | {value - base:+.2f} |" for name, value in figures.items()]
    return lines


def measure_transformer(rounds: int) -> list[str]:
    """The table of the transformer's guards."""
    model, x = transformer(), torch.randn(2, 5, 16)
    reports: list[CaptureReport] = []
    captured = compile_frames(model.forward, first_outputs, observer=reports.append)
    ours = weft.compile(model, backend=first_outputs)
    peer = torch.compile(model, backend=first_outputs)
    captured(x)
    (report,) = (r for r in reports if r.graph is not None)
    guards = GuardSet(report.guards)
    # The frame is that of Sequential.forward(self, input).
    check = guards.compile(report.code.co_varnames[: report.code.co_argcount], ())
    scope = (model, x), vars(torch.nn.modules.container), vars(builtins), None
    assert check.check(*scope)
    figures = medians(
        {
            "weft, guards alone": lambda: check.check(*scope),
            "weft": lambda: ours(x),
            "torch.compile": lambda: peer(x),
        },
        rounds,
        1000,
    )
    return [
        f"| {LAYERS}-layer transformer, {len(guards)} guards, a program that does nothing | a call, µs |",
        "|---|---|",
        *(f"| {name} | {value:.1f} |" for name, value in figures.items()),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with torch.no_grad():
        print("\n".join(measure_trivial(options.rounds)) + "\n")
        print("\n".join(measure_transformer(options.rounds)))


if __name__ == "__main__":
    main()

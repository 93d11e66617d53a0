"""What a compiled call costs before its graph runs: ``python -m benchmarks.guards [--rounds N]``.

Eager, weft and torch.compile in one process, in turn within each round; the figures are medians over the
rounds, of the thread's processor time.  Both compilers get the same backends: one that returns the graph's
own ``forward`` (the trivial function), and one whose program does nothing but give the outputs of its first
run (the transformer), so that guards and the way to the program are what is left.
"""

from __future__ import annotations

import argparse
import builtins
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import weft
from weft_bytecode_capture import CaptureReport, compile_frames
from weft_guards import (
    ArgumentSource,
    EqualsConstant,
    Guard,
    GuardSet,
    InstanceDictSource,
    ItemSource,
    Reason,
    Source,
    select,
)

LAYERS = 24
ENTRIES = 8
ARGUMENTS = ("self", "input")


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


def transformer() -> torch.nn.Sequential:
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


Scope = tuple[tuple[Any, ...], dict[str, Any], dict[str, Any], None]


def captured_guards(model: torch.nn.Module, x: torch.Tensor) -> tuple[Guard, ...]:
    """The guards of the model's frame, which is that of Sequential.forward(self, input)."""
    reports: list[CaptureReport] = []
    compile_frames(model.forward, first_outputs, observer=reports.append)(x)
    (report,) = (r for r in reports if r.graph is not None)
    return report.guards


def scope_of(model: torch.nn.Module, x: torch.Tensor) -> Scope:
    """What that frame sees on entry."""
    return (model, x), vars(torch.nn.modules.container), vars(builtins), None


def measure_transformer(rounds: int) -> list[str]:
    """The table of the transformer's guards."""
    model, x = transformer(), torch.randn(2, 5, 16)
    ours = weft.compile(model, backend=first_outputs)
    peer = torch.compile(model, backend=first_outputs)
    guards = GuardSet(captured_guards(model, x))
    check = guards.compile(ARGUMENTS, ())
    scope = scope_of(model, x)
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


def entries_by_length(model: torch.nn.Sequential) -> tuple[list[GuardSet], Callable[[int], Scope]]:
    """A guard set for each of several sequence lengths, and calls that each hold for one of them."""
    inputs = [torch.randn(2, 5 + n, 16) for n in range(ENTRIES)]
    scopes = [scope_of(model, x) for x in inputs]
    return [GuardSet(captured_guards(model, x)) for x in inputs], scopes.__getitem__


def entries_by_flag(model: torch.nn.Sequential) -> tuple[list[GuardSet], Callable[[int], Scope]]:
    """Guard sets that differ in an attribute of the last layer only, which is read after the others."""
    x, reason = torch.randn(2, 5, 16), Reason(__file__, 1, "flag")
    place: Source = ArgumentSource("self")
    for name in (str(LAYERS - 1), "narrow"):
        place = ItemSource(InstanceDictSource(place, "_modules"), name)
    flag, layer = InstanceDictSource(place, "flag"), model[LAYERS - 1].narrow
    layer.flag = 0
    guards, scope = captured_guards(model, x), scope_of(model, x)

    def call(number: int) -> Scope:
        layer.flag = number
        return scope

    sets = [GuardSet([*guards, Guard(flag, EqualsConstant(n), reason)]) for n in range(ENTRIES)]
    return sets, call


def measure_entries(rounds: int) -> list[str]:
    """The table of lookups that all entries but the one tried last refuse: calls go round."""
    lines = [
        f"| {ENTRIES} entries of the transformer, {ENTRIES - 1} refuse | one by one, µs | merged, µs |",
        "|---|---|---|",
    ]
    for name, make in (
        ("by sequence length", entries_by_length),
        ("by a late flag", entries_by_flag),
    ):
        sets, call = make(transformer())
        checks = [guards.compile(ARGUMENTS, ()) for guards in sets]
        selection, order = select(checks), list(checks)
        turn = itertools.cycle(range(ENTRIES))

        def one_by_one(call: Any = call, order: Any = order, turn: Any = turn) -> None:
            scope = call(next(turn))
            for position, check in enumerate(order):
                if check.check(*scope):
                    order.insert(0, order.pop(position))
                    break

        def merged(call: Any = call, selection: Any = selection, turn: Any = turn) -> None:
            selection.find(*call(next(turn)))

        figures = medians({"one by one": one_by_one, "merged": merged}, rounds, 50 * ENTRIES)
        lines.append(f"| {name} | {figures['one by one']:.1f} | {figures['merged']:.1f} |")
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with torch.no_grad():
        print("\n".join(measure_trivial(options.rounds)) + "\n")
        print("\n".join(measure_transformer(options.rounds)) + "\n")
        print("\n".join(measure_entries(options.rounds)))


if __name__ == "__main__":
    main()

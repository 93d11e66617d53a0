"""How lowering and scheduling grow with the graph: ``python -m benchmarks.scheduler [SIZE ...]``.

Graphs of random pointwise operators, reductions and views, a fifth of whose values have several users: no
structure that helps.  Prints seconds of both steps, and microseconds a node, over the number of nodes.
"""

from __future__ import annotations

import argparse
import random
import time

import torch
import weft_loop_ir
from torch.fx import Graph, GraphModule
from torch.utils._pytree import tree_map

aten = torch.ops.aten
ROWS, COLUMNS = 32, 48


def random_graph(size: int, seed: int = 0) -> GraphModule:
    """A graph of ``size`` calls on matrices and their rows' sums; every value reaches the result."""
    draw = random.Random(seed)
    graph = Graph()
    mode = torch._subclasses.FakeTensorMode()
    with mode:
        example = torch.empty(ROWS, COLUMNS)

    def call(target: object, *arguments: object) -> torch.fx.Node:
        node = graph.call_function(target, arguments)
        fakes = tree_map(lambda a: a.meta["val"] if isinstance(a, torch.fx.Node) else a, arguments)
        with mode:
            node.meta["val"] = target(*fakes)
        return node

    values = [graph.placeholder(f"x{k}") for k in range(4)]
    for value in values:
        value.meta["val"] = example
    unused = list(values)
    while len(graph.nodes) < size:
        left = unused.pop(draw.randrange(len(unused))) if len(unused) > 3 else draw.choice(values)
        right = draw.choice(values[-8:])
        kind = draw.random()
        if kind < 0.45:
            result = call(
                draw.choice([aten.add.Tensor, aten.mul.Tensor, aten.maximum.default]), left, right
            )
        elif kind < 0.8:
            result = call(
                draw.choice(
                    [aten.tanh.default, aten.neg.default, aten.exp.default, aten.relu.default]
                ),
                left,
            )
        elif kind < 0.9:
            result = call(aten.sub.Tensor, left, call(aten.sum.dim_IntList, right, [1], True))
        else:
            result = call(
                aten.mm.default, left, call(aten.mm.default, call(aten.t.default, right), left)
            )
        values.append(result)
        unused.append(result)
    graph.output(tuple(unused))
    return GraphModule(torch.nn.Module(), graph)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", nargs="*", type=int, default=[100, 300, 1000, 3000, 10000])
    print("| nodes | lower s | schedule s | a node, µs | loop nests | kernels |")
    print("|---|---|---|---|---|---|")
    for size in parser.parse_args().sizes:
        graph = random_graph(size)
        start = time.process_time()
        loop_graph = weft_loop_ir.lower(graph)
        middle = time.process_time()
        schedule = weft_loop_ir.schedule(loop_graph)
        end = time.process_time()
        nests = sum(isinstance(node, weft_loop_ir.LoopNode) for node in loop_graph.nodes)
        kernels = sum(isinstance(step, weft_loop_ir.Kernel) for step in schedule.steps)
        print(
            f"| {size} | {middle - start:.2f} | {end - middle:.2f} "
            f"| {(end - start) / size * 1e6:.0f} | {nests} | {kernels} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""How cutting a joint graph grows with it: ``python -m benchmarks.partition [SIZE ...]``.

Each program is one chain of pointwise operators and matrix products, so that nearly every value may be kept
for backward or computed again.  Prints the nodes of its joint graph, and the processor's seconds for the cut.
"""

from __future__ import annotations

import argparse
import time

import torch
import weft_aot_autograd
import weft_functionalize
from torch.fx import Graph, GraphModule

ROWS, COLUMNS = 16, 16
POINTWISE = (torch.tanh, torch.sin, torch.exp, torch.sigmoid)
FOR_EACH_PRODUCT = 5
"""Calls of the chain for each matrix product among them."""
NODES_OF_A_CALL = 3.6


def chain(calls: int) -> GraphModule:
    """A function of a matrix and a weight that is applied again and again."""
    graph = Graph()
    value, weight = (graph.placeholder(name) for name in ("x", "weight"))
    for number in range(calls):
        if number % FOR_EACH_PRODUCT == 0:
            value = graph.call_function(torch.mm, (value, weight))
        else:
            value = graph.call_function(POINTWISE[number % len(POINTWISE)], (value,))
    graph.output((value,))
    return GraphModule(torch.nn.Module(), graph)


def joint_graph(calls: int) -> weft_aot_autograd.JointGraph:
    """Forward and backward of the chain."""
    inputs = [torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS, COLUMNS)]
    inputs = [t.requires_grad_() for t in inputs]
    joint = weft_aot_autograd.trace_joint(weft_functionalize.functionalize(chain(calls), inputs))
    assert joint is not None  # both inputs require gradients
    return joint


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", nargs="*", type=int, default=[1000, 5000, 20000])
    print("| nodes | partition s | a node, µs |")
    print("|---|---|---|")
    weft_aot_autograd.partition(
        joint_graph(10)
    )  # what is imported for the first cut is not its cost
    for size in parser.parse_args().sizes:
        joint = joint_graph(round(size / NODES_OF_A_CALL))
        nodes = len(joint.graph_module.graph.nodes)
        start = time.process_time()
        weft_aot_autograd.partition(joint)
        seconds = time.process_time() - start
        print(f"| {nodes} | {seconds:.2f} | {seconds / nodes * 1e6:.0f} |", flush=True)


if __name__ == "__main__":
    main()

"""A whole compiler in one file: the stages of weft, each as small as it can be and still be that stage.

``python docs/mini_weft.py`` compiles a program that writes to its input, with gradients, and prints what each
stage gave.  Read from top to bottom: data flows once, in the order of the sections.

    capture -> functionalize -> differentiate -> partition -> lower and fuse -> plan memory -> print C -> run

What is left out: capture here runs the function on stand-ins for its tensors (weft reads bytecode, so that
Python around them is captured too, and a graph may end where something can't be); tensors are float32, rows
of memory without gaps, on the CPU; a size is a constant (weft makes it a symbol once it has changed).
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx
import torch

Shape = tuple[int, ...]

# --- the graph ---
#
# A list of nodes in an order in which they can be computed.  An argument is the number of an earlier node, or
# a constant.  All stages up to lowering take such graphs and give such graphs.


@dataclass(frozen=True)
class Node:
    """``name(*arguments)``, a tensor of ``shape``; ``row`` is the index that select and put have."""

    name: str
    arguments: tuple[int | float, ...]
    shape: Shape
    row: int = 0

    @property
    def inputs(self) -> tuple[int, ...]:
        return tuple(a for a in self.arguments if isinstance(a, int))

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass
class Graph:
    """``inputs`` and ``outputs`` are numbers of nodes; ``written`` maps an input to its new value."""

    nodes: list[Node] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    written: dict[int, int] = field(default_factory=dict)

    def add(
        self, name: str, *arguments: int | float, shape: Shape | None = None, row: int = 0
    ) -> int:
        if shape is None:
            shape = torch.broadcast_shapes(
                *(self.nodes[a].shape for a in Node("", arguments, ()).inputs)
            )
        node = Node(name, arguments, tuple(shape), row)
        if name not in WRITES and node in self.nodes:  # computed already
            return self.nodes.index(node)
        self.nodes.append(node)
        return len(self.nodes) - 1

    def placeholder(self, shape: Shape) -> int:
        self.nodes.append(Node("input", (float(len(self.inputs)),), shape))
        self.inputs.append(len(self.nodes) - 1)
        return self.inputs[-1]

    def __str__(self) -> str:
        lines = []
        for number, node in enumerate(self.nodes):
            arguments = ", ".join(f"%{a}" if isinstance(a, int) else str(a) for a in node.arguments)
            lines.append(f"  %{number} = {node.name}({arguments}) {list(node.shape)}")
        written = "".join(f"; input %{a} becomes %{b}" for a, b in self.written.items())
        return "\n".join([*lines, f"  return {', '.join(f'%{o}' for o in self.outputs)}{written}"])


WRITES = {"add_": "add", "mul_": "mul", "copy_": "copy"}
"""Operators that write to their first argument, each with what it writes."""


# --- capture ---


class Traced:
    """Stands for a tensor while the function runs: what is done to it becomes nodes."""

    def __init__(self, graph: Graph, number: int) -> None:
        self.graph, self.number = graph, number

    @property
    def shape(self) -> Shape:
        return self.graph.nodes[self.number].shape

    def _do(self, name: str, *others: Any, shape: Shape | None = None, row: int = 0) -> Traced:
        arguments = [o.number if isinstance(o, Traced) else float(o) for o in others]
        number = self.graph.add(name, self.number, *arguments, shape=shape, row=row)
        return Traced(self.graph, number)

    def __add__(self, other: Any) -> Traced:
        return self._do("add", other)

    def __sub__(self, other: Any) -> Traced:
        return self._do("sub", other)

    def __mul__(self, other: Any) -> Traced:
        return self._do("mul", other)

    def __truediv__(self, other: Any) -> Traced:
        return self._do("div", other)

    __radd__, __rmul__ = __add__, __mul__

    def exp(self) -> Traced:
        return self._do("exp")

    def relu(self) -> Traced:
        return self._do("relu")

    def sum(self, dim: int = -1, keepdim: bool = True) -> Traced:
        assert dim == -1 and keepdim, "only sums over the last dimension, which stays as one"
        return self._do("sum", shape=(*self.shape[:-1], 1))

    def __getitem__(self, row: int) -> Traced:
        """A view: writing to it writes to what it is a view of."""
        return self._do("select", shape=self.shape[1:], row=range(self.shape[0])[row])

    def add_(self, other: Any) -> Traced:
        return self._write("add_", other)

    def mul_(self, other: Any) -> Traced:
        return self._write("mul_", other)

    def copy_(self, other: Any) -> Traced:
        return self._write("copy_", other)

    def _write(self, name: str, other: Any) -> Traced:
        self._do(name, other, shape=self.shape)
        return self


def capture(function: Callable[..., Any], arguments: Sequence[Any]) -> Graph:
    """The graph of a call: Python runs as it is, so ``if`` and ``for`` are over when the graph begins."""
    graph = Graph()
    stand_ins = [
        Traced(graph, graph.placeholder(tuple(a.shape))) if isinstance(a, torch.Tensor) else a
        for a in arguments
    ]
    result = function(*stand_ins)
    results = result if isinstance(result, tuple) else (result,)
    graph.outputs = [r.number for r in results]
    return graph


def guard_of(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """What a later call must have in common with this one for its code to serve: shapes, and constants."""
    return tuple(
        (tuple(a.shape), a.dtype, a.requires_grad and torch.is_grad_enabled())
        if isinstance(a, torch.Tensor)
        else (type(a), a)
        for a in arguments
    )


# --- functionalize: TensorSSA ---


def functionalize(graph: Graph) -> Graph:
    """The same without writes: a write makes a new version of a value, and views are read anew.

    *Pass up*: a write to a view writes a changed copy of its base.  *Pass down*: whoever reads a view later
    selects it from the base's new version.
    """
    pure = Graph()
    version: dict[int, int] = {}  # of each node that is no view: its value as of now
    base: dict[int, int] = {}  # of each view: what it is a view of

    def read(number: int | float) -> int | float:
        if isinstance(number, int) and number in base:
            node = graph.nodes[number]
            return pure.add("select", read(base[number]), shape=node.shape, row=node.row)
        return version[number] if isinstance(number, int) else number

    def write(number: int, value: int | float) -> None:
        if number in base:
            node, above = graph.nodes[number], base[number]
            shape = graph.nodes[above].shape
            write(above, pure.add("put", read(above), value, shape=shape, row=node.row))
        else:
            version[number] = int(value)

    for number, node in enumerate(graph.nodes):
        if node.name == "input":
            version[number] = pure.placeholder(node.shape)
        elif node.name == "select":
            base[number] = node.inputs[0]
        elif node.name in WRITES:
            target, *others = node.arguments
            values = (*([] if node.name == "copy_" else [read(target)]), *map(read, others))
            write(int(target), pure.add(WRITES[node.name], *values, shape=node.shape))
        else:
            values = tuple(map(read, node.arguments))
            version[number] = pure.add(node.name, *values, shape=node.shape)
    pure.outputs = [int(read(o)) for o in graph.outputs]
    changed = ((i, version[n]) for i, n in zip(pure.inputs, graph.inputs, strict=True))
    pure.written = {i: now for i, now in changed if now != i}
    return pure


# --- differentiate: the joint graph of forward and backward ---


def differentiate(graph: Graph) -> tuple[Graph, int, list[int]]:
    """Forward and backward in one graph; where forward ends; the gradients of the inputs, -1 for none.

    The inputs are forward's, then the gradients of its outputs.
    """
    joint = Graph(list(graph.nodes), list(graph.inputs), list(graph.outputs), dict(graph.written))
    end = len(joint.nodes)
    gradients: dict[int, int] = {}

    def accumulate(number: int | float, gradient: int) -> None:
        if not isinstance(number, int):
            return
        gradient = reduced(joint, gradient, joint.nodes[number].shape)
        known = gradients.get(number)
        gradients[number] = gradient if known is None else joint.add("add", known, gradient)

    for output in graph.outputs:
        accumulate(output, joint.placeholder(joint.nodes[output].shape))
    for number in reversed(range(end)):
        if number in gradients and graph.nodes[number].name != "input":
            node = graph.nodes[number]
            for argument, gradient in RULES[node.name](joint, node, number, gradients[number]):
                accumulate(argument, gradient)
    return joint, end, [gradients.get(i, -1) for i in graph.inputs]


def reduced(graph: Graph, number: int, shape: Shape) -> int:
    """A gradient summed over what broadcasting had repeated (here: the last dimension, or rows)."""
    node = graph.nodes[number]
    if node.shape == shape:
        return number
    if len(node.shape) > len(shape):
        rows = [
            graph.add("select", number, shape=node.shape[1:], row=r) for r in range(node.shape[0])
        ]
        for row in rows[1:]:
            rows[0] = graph.add("add", rows[0], row)
        return reduced(graph, rows[0], shape)
    assert node.shape[:-1] == shape[:-1] and shape[-1] == 1, (node.shape, shape)
    return graph.add("sum", number, shape=shape)


Rule = Callable[[Graph, Node, int, int], list[tuple[int | float, int]]]
"""Given the node, its number and its gradient: gradients of its arguments."""


def _div(g: Graph, node: Node, number: int, gradient: int) -> list[tuple[int | float, int]]:
    a, b = node.arguments
    scaled = g.add("div", gradient, b, shape=node.shape)
    return [(a, scaled), (b, g.add("mul", g.add("mul", scaled, number), -1.0))]


RULES: dict[str, Rule] = {
    "add": lambda g, n, i, d: [(a, d) for a in n.arguments],
    "sub": lambda g, n, i, d: [(n.arguments[0], d), (n.arguments[1], g.add("mul", d, -1.0))],
    "mul": lambda g, n, i, d: [
        (a, g.add("mul", d, b, shape=n.shape))
        for a, b in zip(n.arguments, n.arguments[::-1], strict=True)
    ],
    "div": _div,
    "exp": lambda g, n, i, d: [(n.arguments[0], g.add("mul", d, i))],
    "relu": lambda g, n, i, d: [(n.arguments[0], g.add("where_positive", n.arguments[0], d))],
    "sum": lambda g, n, i, d: [
        (n.arguments[0], g.add("expand", d, shape=g.nodes[n.inputs[0]].shape))
    ],
    "copy": lambda g, n, i, d: [(n.arguments[0], d)],
    "select": lambda g, n, i, d: [
        (n.arguments[0], g.add("put", 0.0, d, shape=g.nodes[n.inputs[0]].shape, row=n.row))
    ],
    "put": lambda g, n, i, d: [
        (n.arguments[0], g.add("put", d, 0.0, shape=n.shape, row=n.row)),
        (n.arguments[1], g.add("select", d, shape=n.shape[1:], row=n.row)),
    ],
}


# --- partition: what forward keeps for backward ---

COSTLY = frozenset({"sum", "input"})
"""What backward may not compute again."""


def partition(joint: Graph, end: int, gradients: list[int]) -> tuple[Graph, Graph, list[int]]:
    """Forward, backward, and the nodes that forward gives to backward, by a minimum cut.

    Each value of forward is an edge that weighs its bytes.  To cut it is to keep the value; what backward
    needs beyond the cut it computes again from what is kept.
    """
    flow = networkx.DiGraph()
    flow.add_nodes_from(["source", "sink"])
    needed = {a for n in joint.nodes[end:] for a in n.inputs if a < end}
    needed |= {g for g in gradients if 0 <= g < end}
    for number, node in enumerate(joint.nodes[:end]):
        flow.add_edge((number, "in"), (number, "out"), capacity=4 * node.size)
        if node.name in COSTLY:
            flow.add_edge("source", (number, "in"))  # no capacity: never cut
        for argument in node.inputs:
            flow.add_edge((argument, "out"), (number, "in"))
        if number in needed:
            flow.add_edge((number, "out"), "sink")
    _, (reached, _) = networkx.minimum_cut(flow, "source", "sink")
    kept = [n for n in range(end) if (n, "in") in reached and (n, "out") not in reached]
    used = [g for g in gradients if g >= 0]
    forward_inputs = joint.inputs[: len(joint.inputs) - len(joint.outputs)]
    forward = extract(joint, forward_inputs, [*joint.outputs, *joint.written.values(), *kept])
    tangents = joint.inputs[len(forward_inputs) :]
    return forward, extract(joint, [*kept, *tangents], used), kept


def extract(graph: Graph, inputs: Sequence[int], outputs: Sequence[int]) -> Graph:
    """The part of a graph that computes ``outputs`` from ``inputs``."""
    part = Graph()
    renamed = {number: part.placeholder(graph.nodes[number].shape) for number in inputs}

    def need(number: int) -> int:
        if number not in renamed:
            node = graph.nodes[number]
            arguments = [need(a) if isinstance(a, int) else a for a in node.arguments]
            renamed[number] = part.add(node.name, *arguments, shape=node.shape, row=node.row)
        return renamed[number]

    part.outputs = [need(o) for o in outputs]
    return part


# --- lower: nodes become loops; fuse ---
#
# A value is a function from an index to a C expression.  A view is another index and no loop; a pointwise
# operator calls its operands' functions.  So fusion is not storing: a value is stored only if it is a result,
# a sum, or is read by several others.

Index = tuple[str, ...]
POINTWISE = {
    "add": "({0} + {1})", "sub": "({0} - {1})", "mul": "({0} * {1})", "div": "({0} / {1})",
    "exp": "expf({0})", "relu": "fmaxf({0}, 0.0f)", "where_positive": "({0} > 0 ? {1} : 0.0f)",
    "copy": "{0}", "expand": "{0}",
}  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """A loop nest that stores one node's value; ``body`` is C, ``reads`` are nodes in memory."""

    node: int
    body: str
    reads: tuple[int, ...]


def lower(graph: Graph) -> list[Kernel]:
    readers: dict[int, int] = {}
    for node in live(graph):
        for argument in set(graph.nodes[node].inputs):
            readers[argument] = readers.get(argument, 0) + 1
    stored = {
        n
        for n in live(graph)
        if graph.nodes[n].name != "input"
        and (n in graph.outputs or graph.nodes[n].name == "sum" or readers.get(n, 0) > 1)
    }
    return [_kernel(graph, number, stored) for number in sorted(stored)]


def live(graph: Graph) -> list[int]:
    """The nodes that the outputs need, in order."""
    found: set[int] = set()
    pending = list(graph.outputs)
    while pending:
        number = pending.pop()
        if number not in found:
            found.add(number)
            pending += graph.nodes[number].inputs
    return sorted(found)


def _kernel(graph: Graph, number: int, stored: set[int]) -> Kernel:
    reads: list[int] = []

    def value(source: int | float, index: Index) -> str:
        """The C expression of an element of a node, or of a constant."""
        if not isinstance(source, int):
            return f"{source!r}f"
        node = graph.nodes[source]
        if node.name == "input" or (source in stored and source != number):
            reads.append(source)
            return f"b{source}[{place(node.shape, index)}]"
        return element(node, index)

    def element(node: Node, index: Index) -> str:
        if node.name == "select":
            return value(node.arguments[0], (str(node.row), *index))
        if node.name == "put":
            base, part = (value(node.arguments[0], index), value(node.arguments[1], index[1:]))
            return f"({index[0]} == {node.row} ? {part} : {base})"
        operands = [value(a, broadcast(graph, a, index)) for a in node.arguments]
        return POINTWISE[node.name].format(*operands)

    node = graph.nodes[number]
    index = tuple(f"i{k}" for k in range(len(node.shape)))
    target = f"b{number}[{place(node.shape, index)}]"
    if node.name == "sum":
        length = graph.nodes[node.inputs[0]].shape[-1]
        term = value(node.inputs[0], (*index[:-1], "k"))
        inner = f"float total = 0; for (long k = 0; k < {length}; k++) total += {term}; {target} = total;"
    else:
        inner = f"{target} = {element(node, index)};"
    loops = "".join(
        f"for (long {i} = 0; {i} < {n}; {i}++) " for i, n in zip(index, node.shape, strict=True)
    )
    return Kernel(number, f"{loops}{{ {inner} }}", tuple(dict.fromkeys(reads)))


def broadcast(graph: Graph, argument: int | float, index: Index) -> Index:
    if not isinstance(argument, int):
        return ()
    shape = graph.nodes[argument].shape
    own = index[len(index) - len(shape) :]
    return tuple("0" if n == 1 else i for i, n in zip(own, shape, strict=True))


def place(shape: Shape, index: Index) -> str:
    """Where an element lies in memory."""
    strides = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
    return " + ".join(f"{i} * {s}" for i, s in zip(index, strides, strict=True)) or "0"


# --- plan memory ---


def plan_memory(graph: Graph, kernels: Sequence[Kernel]) -> tuple[dict[int, int], int]:
    """Offsets of intermediate values in one arena, and its length: places are used more than once."""
    last = {read: step for step, kernel in enumerate(kernels) for read in kernel.reads}
    placed: list[tuple[int, int, int]] = []  # offset, end, last step
    offsets: dict[int, int] = {}
    for step, kernel in enumerate(kernels):
        if kernel.node in graph.outputs:
            continue
        placed = [p for p in placed if p[2] >= step]
        size, offset = graph.nodes[kernel.node].size, 0
        for begin, end, _ in sorted(placed):
            if offset + size <= begin:
                break
            offset = max(offset, end)
        offsets[kernel.node] = offset
        placed.append((offset, offset + size, last.get(kernel.node, step)))
    return offsets, max((o + graph.nodes[n].size for n, o in offsets.items()), default=0)


# --- print C, compile, run ---


@dataclass(frozen=True)
class Program:
    """A compiled graph: call it with the inputs, it gives the outputs."""

    graph: Graph
    source: str
    kernels: tuple[Kernel, ...]
    entry: Any
    arena: int

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        tensors = [i.detach().contiguous() for i in inputs]
        made = {
            o: torch.empty(self.graph.nodes[o].shape) for o in dict.fromkeys(self.graph.outputs)
        }
        for number, tensor in zip(self.graph.inputs, tensors, strict=True):
            if number in made:  # a result that is an input
                made[number].copy_(tensor)
        arena = torch.empty(self.arena)
        addresses = [t.data_ptr() for t in (*tensors, *made.values(), arena)]
        self.entry((ctypes.c_void_p * len(addresses))(*addresses))
        return [made[o] for o in self.graph.outputs]


def generate(graph: Graph) -> Program:
    kernels = lower(graph)
    offsets, arena = plan_memory(graph, kernels)
    outputs = list(dict.fromkeys(graph.outputs))
    lines = ["#include <math.h>", "void run(float** given) {"]
    for position, number in enumerate(graph.inputs):
        lines.append(f"  const float* b{number} = given[{position}];")
    for position, number in enumerate(outputs, len(graph.inputs)):
        if number not in graph.inputs:
            lines.append(f"  float* b{number} = given[{position}];")
    lines.append(f"  float* arena = given[{len(graph.inputs) + len(outputs)}];")
    lines += [f"  float* b{number} = arena + {offset};" for number, offset in offsets.items()]
    lines += [f"  {kernel.body}" for kernel in kernels]
    source = "\n".join([*lines, "}"])
    return Program(graph, source, tuple(kernels), build(source).run, arena)


_folder = tempfile.TemporaryDirectory()


def build(source: str) -> ctypes.CDLL:
    path = Path(_folder.name) / f"{hashlib.sha256(source.encode()).hexdigest()[:16]}.so"
    if not path.exists():
        path.with_suffix(".c").write_text(source)
        flags = ["-O2", "-march=native", "-shared", "-fPIC"]
        subprocess.run(
            ["cc", *flags, str(path.with_suffix(".c")), "-o", str(path), "-lm"], check=True
        )
    return ctypes.CDLL(str(path))


# --- compile: the wrapper ---


def compile(function: Callable[..., Any], show: bool = False) -> Callable[..., Any]:
    """The function, compiled for each set of shapes and constants that it is called with."""
    entries: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def run(*arguments: Any) -> Any:
        guard = guard_of(arguments)
        if guard not in entries:
            entries[guard] = compile_call(function, arguments, show)
        return entries[guard](*arguments)

    run.entries = entries  # type: ignore[attr-defined]
    return run


def compile_call(
    function: Callable[..., Any], arguments: Sequence[Any], show: bool
) -> Callable[..., Any]:
    captured = capture(function, arguments)
    pure = functionalize(captured)
    stages: list[tuple[str, object]] = [("captured", captured), ("functional", pure)]
    tensors = [k for k, a in enumerate(arguments) if isinstance(a, torch.Tensor)]
    trains = torch.is_grad_enabled() and any(arguments[k].requires_grad for k in tensors)
    written = [pure.inputs.index(i) for i in pure.written]
    count = len(pure.outputs)
    if trains:
        joint, end, gradients = differentiate(pure)
        forward_graph, backward_graph, kept = partition(joint, end, gradients)
        forward, backward = generate(forward_graph), generate(backward_graph)
        stages += [
            ("joint", joint),
            (f"kept for backward: {kept}", ""),
            ("C, forward", forward.source),
        ]
        stages += [("C, backward", backward.source)]
        function_of_autograd = training_function(forward, backward, gradients, count, len(written))
    else:
        whole = extract(pure, pure.inputs, [*pure.outputs, *pure.written.values()])
        forward = generate(whole)
        stages.append(("C", forward.source))
    if show:
        print("\n\n".join(f"{name}:\n{stage}" for name, stage in stages))  # noqa: T201

    def run(*arguments: Any) -> Any:
        given = [arguments[k] for k in tensors]
        results = function_of_autograd(*given) if trains else forward(*given)
        for position, value in zip(written, results[count:], strict=False):
            with torch.no_grad():
                given[position].copy_(value)
        return results[0] if count == 1 else tuple(results[:count])

    return run


def training_function(
    forward: Program, backward: Program, gradients: list[int], count: int, written: int
) -> Callable[..., Any]:
    """Forward and backward as one function of eager autograd."""

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            results = forward(*inputs)
            ctx.save_for_backward(*results[count + written :])
            ctx.mark_non_differentiable(*results[count : count + written])
            return tuple(results[: count + written])

        @staticmethod
        def backward(ctx: Any, *tangents: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            found: Iterator[torch.Tensor] = iter(backward(*ctx.saved_tensors, *tangents[:count]))
            return tuple(None if g < 0 else next(found) for g in gradients)

    return Compiled.apply


# --- an example ---


def softmax_of_changed(x: Any, y: Any, scale: float) -> Any:
    row = y[0]
    row.add_(1)  # writes to the caller's y, by a view of it
    e = (x * y * scale).exp()
    return e / e.sum(-1, keepdim=True)


def main() -> None:
    x, y = torch.randn(2, 4, requires_grad=True), torch.randn(2, 4)
    expected_y = y.clone()
    expected = softmax_of_changed(x, expected_y, 0.5)
    compiled = compile(softmax_of_changed, show=True)
    result = compiled(x, y, 0.5)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(y, expected_y)
    weights = torch.randn(2, 4)
    (gradient,) = torch.autograd.grad((result * weights).sum(), x)
    (wanted,) = torch.autograd.grad((expected * weights).sum(), x)
    torch.testing.assert_close(gradient, wanted)


if __name__ == "__main__":
    main()

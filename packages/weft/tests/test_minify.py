"""``weft minify``: planted faults are found, in their stage, in a graph of few operations."""

from __future__ import annotations

import inspect
import random
import runpy
from pathlib import Path

import pytest
import torch
import weft
import weft_functionalize
import weft_loop_ir
from weft.cli import main
from weft.minify import first_failure, first_inaccuracy, reduce_graph
from weft.minify.reduce import call_count
from weft_codegen_cpp.kernel import body_printer
from weft_loop_ir.lowering.pointwise import elementwise
from weft_loop_ir.lowering.promotion import Promotion
from weft_loop_ir.lowering.registry import RULES


def program(x: torch.Tensor, y: torch.Tensor):
    a = (x * 2 + y).relu()
    b = torch.softmax(a, -1) @ y.t()
    c = (b - b.mean(-1, keepdim=True)).exp()
    return c.cumsum(0), (a + 1).log()


def inputs() -> list[torch.Tensor]:
    return [torch.rand(4, 4), torch.rand(4, 4)]


def has(target) -> object:
    return lambda graph_module, given: any(n.target == target for n in graph_module.graph.nodes)


@pytest.mark.parametrize("target", [torch.softmax, "exp", "cumsum", "log", "relu", "mean"])
def test_one_operation_is_left_of_a_graph_whose_fault_is_one(target) -> None:
    """Where the fault needs nothing but that there is such a call."""
    reduced = reduce_graph(torch.fx.symbolic_trace(program), inputs(), has(target))
    assert reduced.size == 1 and has(target)(reduced.graph_module, reduced.inputs)
    given = [value.clone() for value in reduced.inputs]
    assert torch.is_tensor(reduced.graph_module(*given)[0])
    assert len(given) == len(reduced.graph_module.graph.find_nodes(op="placeholder"))


def random_program(seed: int):
    """A chain of operations with values that are used again."""
    source = random.Random(seed)
    names = ["exp", "sin", "cos", "tanh", "sigmoid", "abs", "neg", "sqrt"]

    def run(x: torch.Tensor):
        values = [x]
        for _ in range(20):
            value = getattr(source.choice(values), source.choice(names))()
            values.append(value + source.choice(values) if source.random() < 0.4 else value)
        return values[-1], values[-3]

    return torch.fx.symbolic_trace(run)


@pytest.mark.parametrize("seed", range(8))
def test_what_holds_of_two_operations_in_a_row_is_left_with_them(seed) -> None:
    graph_module = random_program(seed)
    calls = [n for n in graph_module.graph.nodes if n.op == "call_method"]
    pair = next((n, n.args[0]) for n in reversed(calls) if n.args[0].op == "call_method")
    wanted = pair[0].target, pair[1].target

    def holds(candidate, given) -> bool:
        return any(
            n.op == "call_method" and n.target == wanted[0]
            and any(a.op == "call_method" and a.target == wanted[1] for a in n.all_input_nodes)
            for n in candidate.graph.nodes
        )  # fmt: skip

    reduced = reduce_graph(graph_module, [torch.rand(3)], holds)
    assert reduced.size == 2 < call_count(graph_module)


def test_a_limit_is_kept() -> None:
    reduced = reduce_graph(random_program(0), [torch.rand(3)], lambda *_: True, limit=3)
    assert reduced.tried <= 3
    with pytest.raises(ValueError, match="nothing to look for"):
        reduce_graph(random_program(0), [torch.rand(3)], lambda *_: False)


def test_nothing_is_wrong_with_a_good_graph() -> None:
    graph_module = torch.fx.symbolic_trace(program)
    assert first_failure(graph_module, inputs()) is None
    assert first_inaccuracy(graph_module, inputs()) is None


FILE = """
import torch


class Graph(torch.nn.Module):
    def forward(self, x, y):
        a = torch.relu(x * 2 + y)
        b = torch.softmax(a, -1)
        c = torch.exp(b - y)
        return torch.cumsum(c, 0), torch.log(a + 1)


if __name__ == "__main__":
    inputs = [torch.rand(4, 4), torch.rand(4, 4)]
    print(Graph()(*inputs))
"""


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "graph.py"
    path.write_text(FILE)
    return path


def test_a_stage_that_fails_is_found(file, tmp_path, monkeypatch, capsys) -> None:
    """functionalize can't do ``exp``, it is said."""
    real = weft_functionalize.functionalize

    def failing(graph_module, *arguments, **keywords):
        if any(node.target is torch.exp for node in graph_module.graph.nodes):
            raise RuntimeError("no exponentials today")
        return real(graph_module, *arguments, **keywords)

    monkeypatch.setattr(weft_functionalize, "functionalize", failing)
    output = tmp_path / "small.py"
    assert main(["minify", str(file), "--output", str(output)]) == 0
    text = capsys.readouterr().out
    assert "functionalize fails: RuntimeError: no exponentials today" in text
    assert "1 operation\n" in text
    assert output.read_text().count("torch.") and "exp" in output.read_text()
    runpy.run_path(str(output), run_name="__main__")


def test_a_stage_that_is_inaccurate_is_found(file, tmp_path, monkeypatch, capsys) -> None:
    """Where loop-ir's program of an exponential is wrong by a thousandth, loop-ir is named."""
    real, lower = weft_loop_ir.evaluate, weft_loop_ir.lower
    lowered = []

    def noted(graph_module, **options):
        lowered.append({str(node.target) for node in graph_module.graph.nodes})
        return lower(graph_module, **options)

    def rounded(schedule, given):
        results = real(schedule, given)
        return [r * 1.001 if "aten.exp.default" in lowered[-1] else r for r in results]

    monkeypatch.setattr(weft_loop_ir, "lower", noted)
    monkeypatch.setattr(weft_loop_ir, "evaluate", rounded)
    output = tmp_path / "small.py"
    assert main(["minify", str(file), "--accuracy", "--output", str(output)]) == 0
    text = capsys.readouterr().out
    assert "loop-ir is the first stage that is less exact than eager" in text
    assert "1 operation\n" in text and "torch.exp" in output.read_text()


def test_what_can_not_be_minified_is_told(file, tmp_path, capsys) -> None:
    assert main(["minify", str(file), "--output", str(tmp_path / "o.py")]) == 1
    assert "compiles and runs in every stage" in capsys.readouterr().err
    file.write_text("x = 1")
    assert main(["minify", str(file)]) == 1
    assert "no class Graph" in capsys.readouterr().err
    assert main(["minify", str(tmp_path / "none.py")]) == 1


def test_graphs_of_a_dump_can_be_minified(tmp_path, capsys) -> None:
    compiled = weft.compile(program, options={"dump_directory": str(tmp_path)})
    compiled(*inputs())
    (file,) = tmp_path.glob("0*/1_captured.py")
    assert main(["minify", str(file), "--accuracy"]) == 1
    assert "as exact as eager" in capsys.readouterr().err


def wrong(ops, value):
    """An exponential that is off by a thousandth."""
    exact = ops.exp(value)
    return ops.mul(exact, ops.constant(1.001, ops.dtype_of(exact)))


def shifted(x: torch.Tensor, y: torch.Tensor):
    a = torch.softmax(x @ y.t(), -1)
    b = (a - y).exp()
    return (b @ x).relu() + 1


@pytest.fixture
def a_wrong_lowering(monkeypatch) -> None:
    def rule(context, tensor):
        return elementwise(context, [tensor], Promotion.INT_TO_FLOAT, wrong, costly=True)

    monkeypatch.setitem(RULES, torch.ops.aten.exp.default, rule)


def test_a_wrong_lowering_is_found_in_its_kernel_with_the_users_line(
    tmp_path, a_wrong_lowering, capsys
) -> None:
    """From a dump: the stage, the kernel and the line of the program that it computes."""
    compiled = weft.compile(shifted, options={"dump_directory": str(tmp_path)})
    compiled(*inputs())
    (file,) = tmp_path.glob("0*/1_captured.py")
    line = inspect.getsourcelines(shifted)[1] + 2
    assert main(["minify", str(file), "--accuracy", "--output", str(tmp_path / "o.py")]) == 0
    text = capsys.readouterr().out
    assert "loop-ir is the first stage that is less exact than eager" in text
    assert "the first such kernel is " in text
    assert f"test_minify.py:{line} in shifted" in text and "its exp" in text


def test_other_kernels_are_not_blamed(a_wrong_lowering) -> None:
    """In the whole graph, where matmuls, a softmax and a sum are right, before it and behind."""
    fault = first_inaccuracy(torch.fx.symbolic_trace(shifted), inputs())
    assert fault is not None and fault.stage == "loop-ir" and fault.kernel is not None
    assert "exp" in fault.kernel.name or "exp" in fault.kernel.node
    assert first_inaccuracy(torch.fx.symbolic_trace(lambda x, y: x.log() + y), inputs()) is None


def test_a_wrong_kernel_of_the_code_generator_is_named(monkeypatch) -> None:
    """Where the loops are right, but not what is generated for them."""
    literal = body_printer.literal
    monkeypatch.setattr(
        body_printer,
        "literal",
        lambda value, dtype: literal(value + 0.01 if value == 7.0 else value, dtype),
    )
    graph = torch.fx.symbolic_trace(lambda x, y: (x @ y).relu() * 7.0)
    fault = first_inaccuracy(graph, inputs())
    assert fault is not None and fault.stage == "codegen" and fault.kernel is not None
    assert "mul" in fault.kernel.node

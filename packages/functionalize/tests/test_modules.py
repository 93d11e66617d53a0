"""Parameters and buffers: lifted, written back, described."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import weft_functionalize
from torch import Tensor, nn
from weft_functionalize import InputKind


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(self.norm(self.conv(x)))


def counting_graph() -> torch.fx.GraphModule:
    """Adds one to a buffer; returns a sum with it, the buffer, and a view of it."""
    root = nn.Module()
    root.register_buffer("count", torch.zeros(3))
    root.register_buffer("offset", torch.ones(6)[::2])  # itself a view
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    count = graph.get_attr("count")
    graph.call_method("add_", (count, 1))
    total = graph.call_function(torch.add, (x, graph.get_attr("count")))
    total = graph.call_function(operator.add, (total, graph.get_attr("offset")))
    tail = graph.call_function(operator.getitem, (count, slice(1, None)))
    graph.output((total, count, tail))
    return torch.fx.GraphModule(root, graph)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(check: Any, training: bool) -> None:
    functional = check(ConvNet().train(training), torch.randn(2, 3, 8, 8))
    mutated = {d.target for d in functional.inputs if d.mutated}
    expected = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert mutated == (expected if training else set())


def test_lifted_inputs_come_first(check: Any) -> None:
    functional = check(counting_graph(), torch.zeros(3))
    kinds = [d.kind for d in functional.inputs]
    assert kinds[-1] is InputKind.USER_INPUT
    assert {d.target: d.kind for d in functional.inputs[:-1]} == {
        "count": InputKind.BUFFER,
        "offset": InputKind.BUFFER,
    }
    placeholders = functional.graph_module.graph.find_nodes(op="placeholder")
    assert [n.name for n in placeholders] == [d.name for d in functional.inputs]


def test_returned_buffer_is_the_buffer() -> None:
    module = counting_graph()
    functional = weft_functionalize.functionalize(torch.fx.symbolic_trace(module), [torch.zeros(3)])
    run = weft_functionalize.bind(functional, functional.graph_module)
    _, count, tail = weft_functionalize.wrap(functional, run)(torch.zeros(3))
    assert count is module.count
    assert tail.data_ptr() == module.count[1:].data_ptr()
    assert module.count.tolist() == [1.0, 1.0, 1.0]


def test_pure_graph_is_not_wrapped() -> None:
    functional = weft_functionalize.functionalize(
        torch.fx.symbolic_trace(nn.Linear(3, 2)), [torch.zeros(1, 3)]
    )

    def compiled(*inputs: Any) -> tuple[Any, ...]:
        return inputs

    assert weft_functionalize.wrap(functional, compiled) is compiled


def test_literal_is_new_in_each_call() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    literal = graph.call_function(torch.tensor, ([1.0, 2.0],))
    graph.call_method("add_", (literal, x))
    graph.output((literal,))
    functional = weft_functionalize.functionalize(
        torch.fx.GraphModule(nn.Module(), graph), [torch.ones(2)]
    )
    run = weft_functionalize.wrap(
        functional, weft_functionalize.bind(functional, functional.graph_module)
    )
    first, second = run(torch.ones(2))[0], run(torch.ones(2))[0]
    assert first.tolist() == second.tolist() == [2.0, 3.0]
    assert first.data_ptr() != second.data_ptr()


@pytest.mark.parametrize("fails", [False, True])
def test_autocast_nodes_cast_and_leave_no_state(fails: bool) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    enter = graph.call_function(
        torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, None)
    )
    product = graph.call_function(torch.mm, (x, x))
    if fails:
        product = graph.call_function(torch.mm, (x, graph.call_method("flatten", (x,))))
    graph.call_function(torch.amp.autocast_mode._exit_autocast, (enter,))
    graph.call_function(torch._C._set_grad_enabled, (False,))
    graph.output((product,))
    module = torch.fx.GraphModule(nn.Module(), graph)
    if fails:
        with pytest.raises(weft_functionalize.Unsupported, match="must be a matrix"):
            weft_functionalize.functionalize(module, [torch.randn(3, 3)])
    else:
        functional = weft_functionalize.functionalize(module, [torch.randn(3, 3)])
        (output,) = functional.graph_module.graph.find_nodes(op="output")
        assert output.args[0][0].meta["val"].dtype is torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()


def test_stack_traces_are_kept() -> None:
    module = counting_graph()
    for node in module.graph.nodes:
        node.meta["stack_trace"] = f"File user.py, line {node.name}"
    functional = weft_functionalize.functionalize(module, [torch.zeros(3)])
    calls = functional.graph_module.graph.find_nodes(
        op="call_function", target=torch.ops.aten.add.Tensor
    )
    assert calls
    assert all(node.meta["stack_trace"].startswith("File user.py") for node in calls)


def test_print_readable_is_python() -> None:
    functional = weft_functionalize.functionalize(counting_graph(), [torch.zeros(3)])
    compile(functional.print_readable(), "printed", "exec")


def test_names_are_identifiers_and_unique(check: Any) -> None:
    graph, root = torch.fx.Graph(), nn.Module()
    x = graph.placeholder("x")
    for path in ("a.b_c", "a_b.c", "0.weight"):
        owner, name = path.split(".")
        if not hasattr(root, owner):
            root.add_module(owner, nn.Module())
        root.get_submodule(owner).register_buffer(name, torch.ones(2))
        x = graph.call_function(torch.add, (x, graph.get_attr(path)))
    graph.output((x,))
    functional = check(torch.fx.GraphModule(root, graph), torch.zeros(2))
    assert len({d.name for d in functional.inputs}) == 4
    assert all(d.name.isidentifier() for d in functional.inputs)


def test_a_functional_graph_is_compiled_when_it_is_called() -> None:
    """The stages after this one read its nodes."""
    graph = torch.fx.Graph()
    graph.output((graph.call_function(torch.sin, (graph.placeholder("x"),)),))
    x = torch.randn(3)
    module = weft_functionalize.functionalize(torch.fx.GraphModule({}, graph), [x]).graph_module
    assert "_code" not in vars(module)
    assert torch.equal(module(x)[0], x.sin())
    assert "sin" in vars(module)["_code"]

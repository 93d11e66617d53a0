"""The compiler in one file, ``docs/mini_weft.py``, gives what eager gives, and its stages do what it says."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
FILE = Path(__file__).parents[1] / "docs" / "mini_weft.py"


@pytest.fixture(scope="module")
def mini():
    spec = importlib.util.spec_from_file_location("mini_weft", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["mini_weft"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mini_weft"]


def chain(x, y, k):
    return (x * y + k).exp() / (x * x + 1)


def softmax(x, y, k):
    e = (x * k).exp()
    return e / e.sum(-1, keepdim=True) - y


def broadcast(x, y, k):
    return (x - x.sum(-1, keepdim=True)).relu() * y[1] + y.sum(-1, keepdim=True)


def row_written(x, y, k):
    a = x * 2
    a[1].mul_(y[0])
    b = a[1]
    a.add_(k)
    return b.exp(), a


def input_written(x, y, k):
    row = y[2]
    row.copy_(x[0] * k)
    y.add_(x)
    return y * row


def looped(x, y, k):
    for i in range(3):
        x = x * y[i] if i % 2 else x + y[i]
    return x, x.sum(-1, keepdim=True)


PROGRAMS = [chain, softmax, broadcast, row_written, input_written, looped]


def tensors() -> list[torch.Tensor]:
    return [torch.randn(3, 5) * 0.5 for _ in range(2)]


@pytest.mark.parametrize("program", PROGRAMS)
def test_results_and_writes_are_eagers(mini, program) -> None:
    compiled = mini.compile(program)
    for _ in range(2):
        given = tensors()
        expected_inputs = [t.clone() for t in given]
        expected = program(*expected_inputs, 0.5)
        torch.testing.assert_close(compiled(*given, 0.5), expected)
        torch.testing.assert_close(given, expected_inputs)
    assert len(compiled.entries) == 1


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p is not input_written])
def test_gradients_are_eagers(mini, program) -> None:
    leaves = [t.requires_grad_() for t in tensors()]
    others = [t.detach().clone().requires_grad_() for t in leaves]
    for inputs, run in ((leaves, mini.compile(program)), (others, program)):
        result = run(*inputs, 0.5)
        total = sum(r.square().sum() for r in (result if isinstance(result, tuple) else [result]))
        total.backward()
    for leaf, other in zip(leaves, others, strict=True):
        torch.testing.assert_close(leaf.grad, other.grad)


def test_shapes_and_constants_are_guarded(mini) -> None:
    compiled = mini.compile(chain)
    for shape, k in (((3, 5), 1.0), ((2, 4), 1.0), ((3, 5), 2.0), ((3, 5), 1.0)):
        x, y = torch.randn(shape), torch.randn(shape)
        torch.testing.assert_close(compiled(x, y, k), chain(x, y, k))
    assert len(compiled.entries) == 3


def test_stages_do_what_they_say(mini) -> None:
    x, y = tensors()
    captured = mini.capture(row_written, [x, y, 0.5])
    pure = mini.functionalize(captured)
    assert any(node.name in mini.WRITES for node in captured.nodes)
    assert not any(node.name in mini.WRITES for node in pure.nodes)
    fused = mini.generate(mini.functionalize(mini.capture(chain, [x, y, 0.5])))
    assert len(fused.kernels) == 1 and fused.arena == 0
    joint, end, gradients = mini.differentiate(
        mini.functionalize(mini.capture(softmax, [x, y, 0.5]))
    )
    _, backward, kept = mini.partition(joint, end, gradients)
    assert all(joint.nodes[n].name in ("input", "sum", "exp", "mul", "div") for n in kept)
    assert any(node.name == "mul" for node in backward.nodes)


def test_memory_is_used_again(mini) -> None:
    def sums(x, y, k):
        for _ in range(6):
            x = x / x.exp().sum(-1, keepdim=True)
        return x

    program = mini.generate(mini.functionalize(mini.capture(sums, [*tensors(), 1.0])))
    sizes = [program.graph.nodes[k.node].size for k in program.kernels]
    assert 0 < program.arena < sum(sizes)


def test_the_example_runs(mini, capsys) -> None:
    mini.main()
    text = capsys.readouterr().out
    assert all(name in text for name in ("captured:", "functional:", "joint:", "void run"))

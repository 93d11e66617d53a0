"""Saved programs with sizes that vary, with several calls of one function, and with gradients."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch
import weft
import weft_aot_autograd
from own_gradients import Cubed, Once
from weft.plain_data import NotPlain, decode, encode
from weft.saved_file import read_file, write_file


def viewed(x, y):
    return (x * 2 + y).reshape(-1, 2), x.view(-1), y[1:]


def padded(x, y):
    if x.shape[0] % 2:
        return torch.nn.functional.pad(x, (0, 0, 0, 1)).sum(1), y.softmax(-1)
    return x.sum(1), y.softmax(-1)


def written(x, y):
    x.add_(y.mean())
    return x.cumsum(0), y.t()


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, y):
        return self.inner(x[None], y[None], y[None], need_weights=False)[0]


VARYING = {"views": viewed, "a branch on a size": padded, "writes": written, "module": Attention()}


@pytest.mark.parametrize("name", VARYING)
def test_sizes_vary(name, tmp_path) -> None:
    function = VARYING[name]
    weft.save(function, tmp_path / "p", [torch.randn(6, 8), torch.randn(6, 8)], dynamic=True)
    program = weft.load(tmp_path / "p")
    for rows in (6, 4, 10, 128):
        arguments = [torch.randn(rows, 8), torch.randn(rows, 8)]
        copies = [a.clone() for a in arguments]
        with torch.no_grad():
            torch.testing.assert_close(program(*arguments), function(*copies))
        torch.testing.assert_close(arguments, copies)


def test_sizes_that_break_what_was_assumed_are_refused(tmp_path) -> None:
    weft.save(padded, tmp_path / "p", [torch.randn(6, 8), torch.randn(6, 8)], dynamic=True)
    program = weft.load(tmp_path / "p")
    for x, y, message in (
        (torch.randn(5, 8), torch.randn(6, 8), r"Mod\(\w+, 2\)"),
        (torch.randn(0, 8), torch.randn(6, 8), ">= 2"),
        (torch.randn(8, 6).t(), torch.randn(6, 8), "strides"),
        (torch.randn(6, 8), torch.randn(6, 8, 1), r"\(6, 8, 1\)"),
        (torch.randn(6, 8).double(), torch.randn(6, 8), "float64"),
    ):
        for _ in range(2):
            with pytest.raises(weft.SavedProgramError, match=message):
                program(x, y)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: {f"{x.shape[0]} rows": x * 2},
        lambda x: (x * 2, f"{x.shape[0]} rows"),
        lambda x: x * math.log(x.shape[0]),
        lambda x: x * torch.hann_window(x.shape[0])[:, None],
        lambda x: x[: round(x.shape[0] * 0.3)] + (x.shape[0] & 1),
    ],
)
def test_what_python_makes_of_sizes_fixes_them(function, tmp_path) -> None:
    weft.save(function, tmp_path / "p", [torch.randn(6, 8)], dynamic=True)
    program = weft.load(tmp_path / "p")
    x = torch.randn(6, 8)
    found, wanted = program(x), function(x)
    assert str(found) == str(wanted)
    with pytest.raises(weft.SavedProgramError, match=r"\(7, 8\)"):
        program(torch.randn(7, 8))


def test_sizes_that_are_equal_have_to_be(tmp_path) -> None:
    weft.save(
        lambda x, y: x + y,
        tmp_path / "p",
        [torch.ones(4, 3), torch.ones(4, 3)],
        dynamic=True,
    )
    program = weft.load(tmp_path / "p")
    assert program(torch.ones(7, 2), torch.ones(7, 2)).shape == (7, 2)
    with pytest.raises(weft.SavedProgramError, match="argument 1 has size 5"):
        program(torch.ones(4, 3), torch.ones(5, 3))


@pytest.mark.parametrize("mark", [weft.mark_dynamic, weft.maybe_mark_dynamic, weft.mark_unbacked])
def test_marked_sizes_vary_and_no_others(mark, tmp_path) -> None:
    x = torch.randn(4, 3)
    mark(x, 0)
    weft.save(lambda x: x.sin().sum(1), tmp_path / "p", [x])
    program = weft.load(tmp_path / "p")
    for size in (2, 9) if mark is not weft.mark_unbacked else (1, 2, 9):
        y = torch.randn(size, 3)
        torch.testing.assert_close(program(y), y.sin().sum(1))
    with pytest.raises(weft.SavedProgramError, match=r"shape \(4, 2\)"):
        program(torch.randn(4, 2))


def test_bounds_of_marks_are_checked(tmp_path) -> None:
    x = torch.randn(4, 3)
    weft.mark_dynamic(x, 0, min=3, max=8)
    weft.save(lambda x: x.exp(), tmp_path / "p", [x])
    program = weft.load(tmp_path / "p")
    assert program(torch.ones(8, 3)).shape == (8, 3)
    for size in (2, 9):
        with pytest.raises(weft.SavedProgramError, match="saved for sizes with"):
            program(torch.ones(size, 3))


def test_results_that_may_be_sizes_are_refused(tmp_path) -> None:
    with pytest.raises(weft.SavedProgramError, match="number 4, which may depend on sizes"):
        weft.save(lambda x: (x + 1, x.shape[0]), tmp_path / "p", [torch.ones(4)], dynamic=True)


def test_several_calls_of_one_function(tmp_path) -> None:
    """The one that fits runs; they have the weights in common."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.ReLU()).eval()

    def function(x, *, flag=False, other=None):
        y = model(x)
        return (y * 2, flag) if flag else y if other is None else y + other

    calls = [
        ([torch.randn(2, 4)], {"flag": True}),
        ([torch.randn(5, 4)], {}),
        ([torch.randn(2, 4)], {"other": torch.randn(8)}),
    ]
    weft.save(function, tmp_path / "p", [torch.randn(2, 4)], more_calls=calls)
    _, blocks = read_file(tmp_path / "p")
    assert len(blocks) == 2 + 4  # weights and programs
    program = weft.load(tmp_path / "p")
    with torch.no_grad():
        for args, kwargs in [([torch.randn(2, 4)], {}), *calls]:
            torch.testing.assert_close(program(*args, **kwargs), function(*args, **kwargs))
    with pytest.raises(
        weft.SavedProgramError, match=r"has 4 programs[\s\S]*3: was saved for other"
    ):
        program(torch.randn(3, 4))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Dropout(0.3), torch.nn.BatchNorm1d(8)
        )
        self.last = torch.nn.Linear(8, 4)
        self.last.weight.requires_grad_(False)

    def forward(self, x):
        return {"logits": self.last(self.layers(x)) + x, "same": x}


def step(run, named, x, seed: int):
    """The result of a training step, its gradients, and the weights that SGD makes of them."""
    torch.manual_seed(seed)
    x = x.clone().requires_grad_()
    logits = run(x)["logits"]
    logits.square().mean().backward()
    gradients = {name: p.grad.clone() for name, p in named.items() if p.requires_grad}
    with torch.no_grad():
        for p in named.values():
            if p.grad is not None:
                p -= 0.1 * p.grad
                p.grad = None
    return logits.detach(), x.grad, gradients


@pytest.mark.parametrize("dynamic", [False, True])
def test_training_goes_on_where_it_is_loaded(dynamic, tmp_path) -> None:
    model = Net()
    example = torch.randn(6, 4, requires_grad=True)
    weft.save(weft.compile(model), tmp_path / "p", [example], training=True, dynamic=dynamic)
    reference = copy.deepcopy(model)
    program = weft.load(tmp_path / "p")
    named = {n: program.weights[n] for n, _ in reference.named_parameters()}
    assert {n for n, w in named.items() if w.requires_grad} == {
        n for n, p in reference.named_parameters() if p.requires_grad
    }
    for seed, rows in enumerate((6, 9, 6) if dynamic else (6, 6, 6)):
        x = torch.randn(rows, 4)
        expected = step(reference, dict(reference.named_parameters()), x, seed)
        torch.testing.assert_close(step(program, named, x, seed), expected)
    for name in ("layers.3.running_mean", "layers.3.running_var"):
        torch.testing.assert_close(program.weights[name], reference.get_buffer(name))
    with pytest.raises(weft.SavedProgramError, match="requires gradients"):
        program(torch.randn(6, 4))


def test_which_backward_was_saved_is_known(tmp_path, monkeypatch) -> None:
    """A loss beside other results: the backward in the file is that of the loss alone."""

    def function(x):
        logits = (x * 2).tanh() @ x.t()
        return logits.square().mean(), logits

    x = torch.randn(2, 3, requires_grad=True)
    weft.save(weft.compile(function), tmp_path / "p", [x], training=True)
    monkeypatch.delattr(weft_aot_autograd, "expected_backward")
    run = weft.load(tmp_path / "p")
    for asked in (0, 1):
        (wanted,) = torch.autograd.grad(function(x)[asked].sum(), x)
        (found,) = torch.autograd.grad(run(x)[asked].sum(), x)
        torch.testing.assert_close(found, wanted)


def test_given_parameters_get_the_gradients(tmp_path) -> None:
    model, other = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    weft.save(model, tmp_path / "p", [torch.randn(3, 4)], training=True)
    program = weft.load(tmp_path / "p", weights=dict(other.named_parameters()))
    x = torch.randn(3, 4)
    program(x).sum().backward()
    torch.testing.assert_close(other.weight.grad, x.sum(0).expand(2, 4))
    assert model.weight.grad is None
    with torch.no_grad():
        assert not program(x).requires_grad


def test_tensors_from_outside_get_gradients(tmp_path) -> None:
    scale = torch.full((4,), 3.0, requires_grad=True)

    def function(x):
        return x.sum(0) * scale

    weft.save(function, tmp_path / "p", [torch.ones(2, 4)], training=True, dynamic=True)
    program = weft.load(tmp_path / "p")
    for rows in (2, 5):
        x = torch.randn(rows, 4)
        program.weights["scale"].grad = None
        program(x).sum().backward()
        torch.testing.assert_close(program.weights["scale"].grad, x.sum(0))
    assert scale.grad is None


def test_tensors_from_outside_that_others_would_train_are_refused(tmp_path) -> None:
    leaf = torch.ones(4, requires_grad=True)
    scale = leaf * 2

    def function(x):
        return x * scale

    with pytest.raises(weft.SavedProgramError, match="is computed from tensors"):
        weft.save(function, tmp_path / "p", [torch.ones(4)], training=True)
    with torch.no_grad():
        weft.save(function, tmp_path / "p", [torch.ones(4)])
    assert weft.load(tmp_path / "p")(torch.ones(4)).tolist() == [2.0] * 4


def test_tensors_from_outside_whose_sizes_vary_are_refused(tmp_path) -> None:
    scale = torch.ones(4, 3)
    weft.mark_dynamic(scale, 0)

    def function(x):
        return x * scale.sum(0)

    with pytest.raises(weft.SavedProgramError, match="sizes that vary"):
        weft.save(function, tmp_path / "p", [torch.ones(3)])


def test_gradients_that_the_program_wrote(tmp_path) -> None:
    def function(x):
        first, second = Cubed.apply(x * 2, 3)
        return Once.apply(first).sum() + second.sum()

    with torch.enable_grad():
        weft.save(function, tmp_path / "p", [torch.ones(2, 3, requires_grad=True)], training=True)
    program = weft.load(tmp_path / "p")
    x = torch.randn(2, 3, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    program(x).backward()
    function(y).backward()
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.filterwarnings("ignore:.*gradients of gradients")
def test_gradients_of_gradients_that_the_program_wrote(tmp_path) -> None:
    def function(x):
        return Cubed.apply(x, 3)[0].sum()

    weft.save(function, tmp_path / "p", [torch.ones(3, requires_grad=True)], training=True)
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    for run in (function, weft.load(tmp_path / "p")):
        (first,) = torch.autograd.grad(run(x), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        assert first.tolist() == [5.0, 20.0, 45.0] and second.tolist() == [10.0, 20.0, 30.0]


def test_a_forged_name_of_gradients_is_refused(tmp_path) -> None:
    """torch prints graphs as source code, with the names of what they call."""
    weft.save(
        lambda x: Cubed.apply(x, 3)[0], tmp_path / "p", [torch.ones(3, requires_grad=True)],
        training=True,
    )  # fmt: skip
    header, blocks = read_file(tmp_path / "p")
    header.pop("blocks")
    text = json.dumps(header)
    assert '["rule", "Cubed"' in text
    forged = json.loads(text.replace('["rule", "Cubed"', '["rule", "Cubed(); import os"'))
    write_file(tmp_path / "q", forged, [bytes(block) for block in blocks])
    with pytest.raises(weft.SavedProgramError, match="damaged"):
        weft.load(tmp_path / "q")


def test_gradients_of_gradients(tmp_path) -> None:
    weft.save(
        lambda x: x.pow(3).sum(), tmp_path / "p", [torch.ones(3, requires_grad=True)], training=True
    )
    x = torch.arange(3.0, requires_grad=True)
    result = weft.load(tmp_path / "p")(x)
    with pytest.warns(UserWarning, match="gradients of gradients"):
        (first,) = torch.autograd.grad(result, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, 6 * x.detach())


def test_a_write_to_shared_memory_is_refused(tmp_path) -> None:
    def function(x, y):
        x.add_(1)
        return x * y

    weft.save(function, tmp_path / "p", [torch.ones(3), torch.ones(3)])
    memory = torch.ones(5)
    with pytest.raises(weft.SavedProgramError, match="share memory"):
        weft.load(tmp_path / "p")(memory[:3], memory[1:4])
    assert memory.tolist() == [1] * 5


def forged(graph: list) -> list[list]:
    """Graphs with a text in them that torch would print as source."""
    bad = "x\n    import os"
    found = []
    for place, value in ((1, bad), (2, bad), (0, "call_method"), (0, "call_module")):
        other = copy.deepcopy(graph)
        node = other[1][3]["nodes"][1]
        node[place + 1] = value
        found.append(other)
    other = copy.deepcopy(graph)
    other[1][3]["class_name"] = bad
    found.append(other)
    other = copy.deepcopy(graph)
    call = next(n for n in other[1][3]["nodes"][1:] if n[1] == "call_function")
    call[4] = ["tuple", ["data", "weft.options", "CompileOptions", {}]]
    found.append(other)
    other = copy.deepcopy(graph)
    call = next(n for n in other[1][3]["nodes"][1:] if n[1] == "call_function")
    call[3] = ["function", "builtins", "eval"]
    found.append(other)
    return found


def test_graphs_are_plain_data_and_forged_ones_refused() -> None:
    graph = torch.fx.symbolic_trace(torch.nn.Identity())
    x = graph.graph.find_nodes(op="placeholder")[0]
    with graph.graph.inserting_after(x):
        y = graph.graph.call_function(torch.ops.aten.add.Tensor, (x, 2.5), {"alpha": 3})
    graph.graph.output_node().args = ((y,),)
    graph.recompile()
    encoded = json.loads(json.dumps(encode(graph, lambda tensor: 0)))
    again = decode(encoded, lambda number: torch.ones(1))
    assert again(torch.ones(2))[0].tolist() == [8.5, 8.5]
    for other in forged(encoded):
        with pytest.raises(NotPlain):
            decode(other, lambda number: torch.ones(1))


def test_files_of_training_with_other_graphs_are_refused(tmp_path) -> None:
    weft.save(torch.nn.Linear(2, 2), tmp_path / "p", [torch.ones(1, 2)], training=True)
    header, blocks = read_file(tmp_path / "p")
    text = json.dumps({k: v for k, v in header.items() if k != "blocks"})
    for old, new in (
        ('"placeholder"', '"call_module"'),
        ("aten.", "aten.nothing."),
        ('"fake"', '"tensor"'),
    ):
        assert old in text
        write_file(tmp_path / "q", json.loads(text.replace(old, new)), [bytes(b) for b in blocks])
        with pytest.raises(weft.SavedProgramError, match="damaged"):
            weft.load(tmp_path / "q")


def test_loops_and_literals_train(tmp_path) -> None:
    """A loop that stays one, whose counter no argument's size says, and tensors made of numbers in it."""

    def function(x):
        for k in range(20):
            x = x + torch.tensor([0.5, 1.0, 2.0]) * k
        if x.sum() > 0:
            return x.sin() * torch.tensor([1.0, 2.0, 3.0])
        return x.cos() - torch.tensor([1.0, 2.0, 4.0])

    weft.save(function, tmp_path / "p", [torch.randn(2, 3, requires_grad=True)], training=True)
    program = weft.load(tmp_path / "p")
    for x in (torch.randn(2, 3), torch.full((2, 3), -1000.0)):
        x.requires_grad_()
        results = [f(x) for f in (program, function)]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*(torch.autograd.grad(r.sum(), x)[0] for r in results))

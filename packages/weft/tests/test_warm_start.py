"""Programs kept on disk: a second pipeline runs no stage and gives what eager does, effects included."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import weft
import weft_aot_autograd
from own_gradients import Cubed, Once
from torch import nn
from weft._torch import rely_on
from weft.graph_description import (
    NotDescribable,
    describe_graph,
    describe_settings,
    describe_sources,
)
from weft.pipeline import Pipeline
from weft.program_cache import ProgramCache


class Norm(nn.Module):
    """Writes to buffers while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.linear = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.linear.weight

    def forward(self, x):
        return self.tied(self.linear(self.norm(x)).relu())


def writes_to_input(x):
    x.add_(1)
    return x * 2


def views_and_constants(x):
    y = x * 2
    return y, y[0], x, x.t(), None, 3, y


def library_calls(x):
    return torch.rand(3), x.sort(1), torch.linalg.inv(x @ x.t() + torch.eye(3))


def by_operators_names(x):
    return torch.ops.aten.add(x, torch.ops.aten.mul.Tensor(x, x), alpha=2)


def literals(x):
    table = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    table[0, 1] = 5.0
    for k in range(20):
        x = x + torch.tensor([0.5]) * k
    return x[[2, 0]] * table, torch.tensor([7, 8]), x[:, torch.tensor([True, False, True, True])]


FUNCTIONS = (
    writes_to_input, views_and_constants, library_calls, by_operators_names, literals
)  # fmt: skip
INPUTS = {
    "dense": lambda: torch.randn(3, 4),
    "transposed": lambda: torch.randn(4, 3).t(),
}


def compiled(model: Callable[..., object], folder: Path, **options: object) -> tuple:
    """``model`` compiled with the programs in ``folder``: the function, the cache and the reports."""
    programs, log = ProgramCache(folder), weft.CompileLog()
    pipeline = Pipeline(
        weft.CompileOptions(**options),
        raise_errors=True,
        observers=lambda: (log,),
        programs=programs,
    )
    return weft.compile(model, backend=pipeline), programs, log


def outcome(function: Callable[..., object], x: torch.Tensor) -> object:
    torch.manual_seed(1)
    with torch.no_grad():
        return function(x), x


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", INPUTS)
def test_a_second_pipeline_runs_no_stage(function, name, tmp_path) -> None:
    torch.manual_seed(0)
    x = INPUTS[name]()
    for hits in (0, 1):
        run, programs, log = compiled(function, tmp_path)
        expected, given = x.clone(), x.clone()
        torch.testing.assert_close(outcome(run, given), outcome(function, expected), equal_nan=True)
        assert programs.counts["hit"] == hits, programs.counts
        stages = [set(report.seconds) for report in log.graphs]
        assert not hits or stages == [{"program cache"}]


def writes_to_shared(x, y):
    x.add_(1)
    return y * 2


def test_inputs_that_share_memory(tmp_path) -> None:
    for hits in (0, 1):
        run, programs, _ = compiled(writes_to_shared, tmp_path)
        x, y = torch.randn(4, 4), torch.randn(4, 4)
        with torch.no_grad():
            x.copy_(y)
            torch.testing.assert_close(run(x, x.t()), writes_to_shared(y, y.t()))
        torch.testing.assert_close(x, y)
        assert programs.counts["hit"] == hits, programs.counts


def test_modules_parameters_and_buffers(tmp_path) -> None:
    for hits in (0, 1):
        torch.manual_seed(2)
        model, plain = Norm(), Norm()
        plain.load_state_dict(model.state_dict())
        run, programs, _ = compiled(model, tmp_path)
        for step in range(3):
            x = torch.randn(5, 4)
            torch.testing.assert_close(outcome(run, x), outcome(plain, x))
            torch.testing.assert_close(model.state_dict(), plain.state_dict())
            with torch.no_grad():
                for module in (model, plain):
                    module.linear.bias += step
                    module.norm.weight.data = torch.full((4,), 2.0 + step)
        assert programs.counts["hit"] == hits, programs.counts


def second_output(program: str) -> str:
    """What another process prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, check=True, capture_output=True).stdout.decode()


STAGES = """
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)).eval()
log, x = weft.CompileLog(), torch.randn(3, 4)
with torch.no_grad(), weft.observe(log):
    torch.testing.assert_close(weft.compile(model)(x), model(x))
print(*(stage for report in log.graphs for stage in report.seconds), sep=",")
"""

LAYERS = """torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Flatten(), torch.nn.Linear(36, 5), torch.nn.GELU(), torch.nn.LayerNorm(5))"""

CALLS = {
    "inference": ("torch.no_grad()", ""),
    "inference mode": ("torch.inference_mode()", ""),
    "training": ("torch.enable_grad()", ".square().mean().backward()"),
}


LOOP = """
torch.manual_seed(0)
weights = torch.randn(4, 12), torch.randn(12)
def scan(x):
    state, rows = x.new_zeros(3, 4), torch.zeros(x.shape[0], 3, 12)
    for i in range(x.shape[0]):
        gates = torch.addmm(weights[1], state + x[i], weights[0]).sigmoid()
        rows[i] = gates
        state = torch.tanh(state * gates[:, :4] + x[-1])
    return state, rows
x = torch.randn(40, 3, 4)
found = weft.compile(scan, fullgraph=True)(x)
loads = [name in sys.modules for name in ("torch._dynamo", "torch.distributed.tensor")]
torch.testing.assert_close(found, scan(x))
graph = weft.explain(scan)(x).graphs[0]
print("while_loop" in str(graph.graph_module.graph), *loads)
"""
"""A loop that stays one: its counter is a symbol, of which rows are chosen and written."""


def test_a_second_process_runs_no_stage_and_does_not_load_torchs_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its import takes longer than all else; without symbols nothing of it is needed.

    The first is this one.  One start of the second for all: it takes longer than what it does.
    """
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_STRICT", "0")
    calls = "".join(
        f"""
torch.manual_seed(0)
model = {LAYERS}.train({bool(then)})
with {context}:
    x = torch.randn(2, 3, 8, 8)
    for _ in range(2):
        weft.compile(model)(x){then}
print({name!r}, "torch._dynamo" in sys.modules)
"""
        for name, (context, then) in CALLS.items()
    )
    program = f"import sys, torch, weft\n{LOOP}{STAGES}{calls}"
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
    first, second = capfd.readouterr().out.splitlines(), second_output(program).splitlines()
    assert first[0].startswith("True True")
    assert first[1] == "program cache,functionalize,aot-autograd,loop-ir,codegen"
    assert second == ["True False False", "program cache", *(f"{name} False" for name in CALLS)]


FOREIGN = pickle.dumps(((), ())) + pickle.dumps("foreign")
OTHERS = pickle.dumps({"unlike": 1})


@pytest.mark.parametrize(
    "damage",
    [b"", b"foreign", None, *(hashlib.sha256(p).digest() + p for p in (FOREIGN, OTHERS, b"\x80"))],
)
def test_damaged_entries_are_compiled_again(damage, tmp_path) -> None:
    x = torch.randn(3, 4)
    compiled(views_and_constants, tmp_path)[0](x)
    (entry,) = tmp_path.iterdir()
    content = entry.read_bytes()
    entry.write_bytes(content[:-1] if damage is None else damage)
    run, programs, _ = compiled(views_and_constants, tmp_path)
    torch.testing.assert_close(run(x), views_and_constants(x))
    assert (programs.counts["damaged"], programs.counts["stored"]) == (1, 1)
    assert entry.read_bytes()[32:40] == content[32:40]


def test_a_folder_that_cannot_be_written_to_is_no_error(tmp_path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    x = torch.randn(3, 4)
    run, _, _ = compiled(views_and_constants, file / "below")
    with pytest.warns(UserWarning, match="cannot be used"):
        torch.testing.assert_close(run(x), views_and_constants(x))
    assert file.read_text() == ""


@torch.library.custom_op("weft_test_warm_start::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@double.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def with_custom_operator(x):
    return double(x) + 1


@double.register_kernel("cpu")
def _(x: torch.Tensor) -> torch.Tensor:
    return x + x


double.register_autograd(lambda context, gradient: gradient * 2)


@torch.library.custom_op("weft_test_warm_start::fill", mutates_args=("x",))
def fill(x: torch.Tensor) -> None:
    x.fill_(3)


LIBRARY = torch.library.Library("weft_test_warm_start", "FRAGMENT")
LIBRARY.define("composite(Tensor x) -> Tensor")
LIBRARY.impl("composite", lambda x: x.sin() + 1, "CompositeImplicitAutograd")
LIBRARY.define("plain(Tensor x, int k) -> Tensor")
LIBRARY.impl("plain", lambda x, k: x[:k] + 1, "CPU")
LIBRARY.impl("plain", lambda x, k: x.new_empty(k, *x.shape[1:]), "Meta")
own = torch.ops.weft_test_warm_start


def with_custom_operators(x):
    return double(x.exp()) + own.plain(double(x), 2).sum(0) + own.plain.default(x, 1)


def that_writes(x):
    y = x * 2
    fill(y)
    return y + 1


def that_is_composite(x):
    return own.composite(x) * 2


def test_gradients_of_operators_of_the_user_are_not_kept(tmp_path) -> None:
    for _ in range(2):
        run, programs, _ = compiled(with_custom_operator, tmp_path)
        x = torch.randn(3, 4, requires_grad=True)
        run(x).sum().backward()
        assert torch.equal(x.grad, torch.full((3, 4), 2.0))
        assert programs.counts["hit"] == programs.counts["stored"] == 0


def test_operators_of_the_user_without_gradients(tmp_path) -> None:
    """What is known of them is in the graph: the values that their fakes give, and their schemas."""
    for hits in (0, 1):
        run, programs, _ = compiled(with_custom_operators, tmp_path)
        x = torch.randn(3, 4)
        torch.testing.assert_close(outcome(run, x), outcome(with_custom_operators, x))
        assert programs.counts["hit"] == hits, programs.counts
        with torch.enable_grad():
            torch.testing.assert_close(run(x), with_custom_operators(x))


def test_branches_that_the_program_asks_for(tmp_path) -> None:
    def function(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos(), (x,))

    for hits in (0, 1):
        weft.reset()
        run, programs, _ = compiled(function, tmp_path)
        for sign in (1, -1):
            x = (torch.ones(3, 4) * sign).requires_grad_()
            y = x.detach().clone().requires_grad_()
            torch.testing.assert_close(run(x), function(y))
            run(x).sum().backward()
            function(y).sum().backward()
            torch.testing.assert_close(x.grad, y.grad)
        assert programs.counts["hit"] == hits, programs.counts


def with_gradients_of_its_own(x):
    first, second = Cubed.apply(x * 2, 3)
    return Once.apply(first).sum() + second.sum()


def test_gradients_that_the_program_wrote(tmp_path) -> None:
    for hits in (0, 1):
        run, programs, _ = compiled(with_gradients_of_its_own, tmp_path)
        x = torch.randn(2, 3, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        torch.testing.assert_close(run(x), with_gradients_of_its_own(y))
        run(x).backward()
        with_gradients_of_its_own(y).backward()
        torch.testing.assert_close(x.grad, y.grad)
        assert programs.counts["hit"] == hits, programs.counts


def loss_and_logits(x):
    logits = (x * 2).tanh() @ x.t()
    return logits.square().mean(), logits


@pytest.mark.parametrize("asked", [0, 1])
def test_which_backward_was_compiled_is_kept(asked, tmp_path, monkeypatch) -> None:
    """It is not looked for again; what is asked for besides is compiled when it is."""
    x = torch.randn(2, 3, requires_grad=True)
    (wanted,) = torch.autograd.grad(loss_and_logits(x)[asked].sum(), x)
    for hits in (0, 1):
        run, programs, _ = compiled(loss_and_logits, tmp_path)
        (found,) = torch.autograd.grad(run(x)[asked].sum(), x)
        torch.testing.assert_close(found, wanted)
        assert programs.counts["hit"] == hits, programs.counts
        monkeypatch.delattr(weft_aot_autograd, "expected_backward", raising=False)


def test_other_gradients_are_another_program(tmp_path) -> None:
    def rule_of(factor):
        class Rule(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, gradient):
                return gradient * factor

        return Rule

    for factor in (3.0, 4.0):
        rule = rule_of(factor)
        run, programs, _ = compiled(lambda x, rule=rule: rule.apply(x).sum(), tmp_path)
        x = torch.ones(3, requires_grad=True)
        run(x).backward()
        assert x.grad.tolist() == [factor] * 3
        assert programs.counts["hit"] == 0


NOT_KEPT: Sequence[tuple[Callable[..., object], dict[str, object]]] = (
    (that_writes, {}),
    (that_is_composite, {}),
    (writes_to_input, {"freezing": True}),
    (writes_to_input, {"verify": True}),
)


@pytest.mark.parametrize(
    ("function", "options"), NOT_KEPT, ids=["writes", "composite", "frozen", "verified"]
)
def test_what_is_not_kept(function, options, tmp_path) -> None:
    for _ in range(2):
        run, programs, _ = compiled(function, tmp_path, **options)
        x = torch.ones(3, 4)
        torch.testing.assert_close(outcome(run, x.clone()), outcome(function, x.clone()))
        assert programs.counts["hit"] == programs.counts["stored"] == 0


def pairs_of_sums(x, times):
    for k in range(times):
        x = x.sin() + k
        x = x * 2 if x.sum() > 0 else x - 1
    return x, x.shape[0], x[1:]


def until_large(x):
    while x.sum() < 100:
        x = x * 2
    return x, x > 1


def scaled_sum(x, scale):
    return (x * scale).softmax(0).t().reshape(-1), x.shape[0] * 2


def selected(x):
    return x[x > 0].sum(), x[x > 0] * 2


def item_of(x):
    return x * int(x.abs().sum().item())


def written(x):
    x.mul_(2)
    return x[1:], x.sin()


def without_elements(x):
    wide = (x * 2).view(-1, 1).repeat(1, 100)
    return wide.sin()[0:0, 3:4], wide[:, 5:].cos()


def rows(count: int, *more: object) -> tuple[object, ...]:
    return torch.randn(count, 3, dtype=torch.float64), *more


Calls = Sequence[tuple[object, ...]]
VARYING: dict[str, tuple[Callable[..., object], Callable[[], Calls]]] = {
    "loop": (pairs_of_sums, lambda: [rows(n + 2, n) for n in (3, 4, 6, 1, 0)]),
    "until": (until_large, lambda: [(x[0].abs(),) for x in (rows(4), rows(5), rows(7))]),
    "sizes": (scaled_sum, lambda: [rows(n, 0.5) for n in (4, 5, 7, 1, 2, 0)]),
    "float": (scaled_sum, lambda: [rows(4, n / 2) for n in (3, 4, 5)]),
    "selected": (selected, lambda: [rows(n) for n in (4, 5, 7)]),
    "item": (item_of, lambda: [rows(n) for n in (4, 5)]),
    "written": (written, lambda: [rows(n) for n in (4, 5, 6)]),
    "empty": (without_elements, lambda: [rows(n) for n in (4, 5, 6)]),
}


def called(function: Callable[..., object], arguments: Sequence[object], trains: bool) -> object:
    """Results, what became of arguments, and with ``trains`` the gradients of those that have some."""
    torch.manual_seed(3)
    given = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
    leaves = [a.requires_grad_(trains) for a in given if isinstance(a, torch.Tensor)]
    inputs = [a * 1 if trains and isinstance(a, torch.Tensor) else a for a in given]
    found = function(*inputs)
    results = found if isinstance(found, tuple) else (found,)
    differentiable = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    gradients: Sequence[torch.Tensor | None] = ()
    if differentiable:
        loss = torch.stack([(r * r).sum() for r in differentiable]).sum()
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    values = [r.detach() if isinstance(r, torch.Tensor) else r for r in (*results, *inputs)]
    return values, gradients


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", VARYING)
def test_sizes_numbers_regions_and_gradients_are_kept(name, trains, tmp_path) -> None:
    """What varies between calls does so in a later process too, and no stage runs for it."""
    function, make = VARYING[name]
    kept: dict[str, int] = {}
    for turn in range(2):
        weft.reset()
        torch.manual_seed(0)
        run, programs, log = compiled(function, tmp_path)
        for arguments in make():
            torch.testing.assert_close(
                called(run, arguments, trains), called(function, arguments, trains)
            )
        if turn == 0:
            kept = dict(programs.counts)
            assert kept["stored"] > 0
        else:
            # Python 3.12 has a loop's test twice: the graph after one is found again after the other
            found_at_once = kept.get("hit", 0)
            assert programs.counts["hit"] == kept["stored"] + found_at_once, (kept, programs.counts)
            assert programs.counts["stored"] == programs.counts["damaged"] == 0
            assert all(set(report.seconds) == {"program cache"} for report in log.graphs)


def test_literals_distinguish_graphs(tmp_path) -> None:
    """Each has its own numbers, and gradients that depend on them."""
    for values in ([1.0, 2.0, 3.0], [1.0, 2.0, 4.0], [1.0, 2.0, 3.0]):

        def scaled(x, values=values):
            return (x * torch.tensor(values)).sin()

        run, _, _ = compiled(scaled, tmp_path)
        x = torch.randn(2, 3, requires_grad=True)
        results = [f(x) for f in (run, scaled)]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*(torch.autograd.grad(r.sum(), x) for r in results))
    run, programs, _ = compiled(scaled, tmp_path)
    run(torch.randn(2, 3, requires_grad=True))
    assert programs.counts["hit"] == 1


def test_what_else_a_training_step_asks_for(tmp_path) -> None:
    """Gradients of some results only, gradients of gradients, parameters that share memory, two passes."""

    def two(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = model(x)
        return y.exp(), (y / y.detach().abs().sum()).sin()

    for hits in (0, 1):
        weft.reset()
        torch.manual_seed(2)
        model = Norm()
        model.norm = nn.LayerNorm(4)
        run, programs, _ = compiled(two, tmp_path)
        x = torch.randn(5, 4, requires_grad=True)
        leaves = (x, *model.parameters())
        for function in (run, two):
            first, second = function(model, x)
            found = [
                torch.autograd.grad(first.sum(), leaves, retain_graph=True),
                torch.autograd.grad(first.sum() + second.sum(), leaves, retain_graph=True),
            ]
            (inner,) = torch.autograd.grad(second.sum(), x, create_graph=True)
            found.append(torch.autograd.grad(inner.square().sum(), x))
            if function is run:
                computed = found
        torch.testing.assert_close(computed, found)
        assert programs.counts["hit"] == hits, programs.counts


def test_sizes_that_a_kept_program_does_not_hold_for(tmp_path) -> None:
    """A relation that compiling relied on is checked in the call that would load the program."""

    class Relying(ProgramCache):
        """As if a stage had asked whether there are fewer than six rows."""

        def store(self, description, entry, source) -> None:
            (size,) = (s for s in description.hints if description.hints[s] > 3)
            assert rely_on(description.fake_mode.shape_env, size < 6)
            super().store(description, entry, source)

    def rows_of(count: int) -> torch.Tensor:
        x = torch.randn(count, 3)
        weft.mark_dynamic(x, 0)
        return x

    def sine(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    hits = []
    for kind, sizes in ((Relying, (5,)), (ProgramCache, (4, 9)), (ProgramCache, (9, 4))):
        weft.reset()
        programs = kind(tmp_path)
        pipeline = Pipeline(
            weft.CompileOptions(), raise_errors=True, observers=lambda: (), programs=programs
        )
        run = weft.compile(sine, backend=pipeline)
        for size in sizes:
            x = rows_of(size)
            torch.testing.assert_close(run(x), x.sin())
        hits.append((programs.counts["hit"], programs.counts["stored"]))
    # At 9 the program for fewer than 6 does not serve; what replaces it serves for all.
    assert hits == [(0, 1), (1, 1), (1, 0)]


def captured_text(function: Callable[..., object], *inputs: torch.Tensor) -> str:
    """The description of the one graph of a call."""
    found: list[str] = []

    def backend(graph_module, example_inputs):
        found.append(describe_graph(graph_module, example_inputs))
        return graph_module.forward

    weft.compile(function, backend=backend)(*inputs)
    (text,) = found
    return text


def test_what_distinguishes_graphs() -> None:
    x = torch.randn(4, 4)
    both = torch.randn(8)
    calls: list[tuple[Callable[..., object], tuple[torch.Tensor, ...]]] = [
        (lambda a: a * 2.0, (x,)),
        (lambda a: a * 2, (x,)),
        (lambda a: a * -0.0, (x,)),
        (lambda a: a * 0.0, (x,)),
        (lambda a: a * 2.0, (x.t(),)),
        (lambda a: a * 2.0, (x.double(),)),
        (lambda a: a * 2.0, (x[1:],)),
        (lambda a: a * 2.0, (x[:3],)),
        (lambda a: a * 2.0, (x.clone().requires_grad_(),)),
        (lambda a: a * 2.0, (nn.Parameter(x),)),
        (lambda a: a[1:3], (x,)),
        (lambda a: a[1:4], (x,)),
        (lambda a, b: a.add_(b), (both[:4], both[4:])),
        (lambda a, b: a.add_(b), (both[:4].clone(), both[4:].clone())),
        (lambda a: a.to(torch.float16), (x,)),
        (lambda a: a.to(torch.bfloat16), (x,)),
        (lambda a: a.sum(0), (x,)),
        (lambda a: a.sum(0, True), (x,)),
    ]
    texts = [captured_text(function, *inputs) for function, inputs in calls]
    assert len(set(texts)) == len(texts)
    assert captured_text(lambda a: a * 2.0, torch.randn(4, 4)) == texts[0]


def test_what_distinguishes_settings() -> None:
    texts = [describe_settings()]
    with torch.no_grad():
        texts.append(describe_settings())
    with torch.inference_mode():
        texts.append(describe_settings())
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            texts.append(describe_settings())
    with torch.backends.mkldnn.flags(enabled=False):
        texts.append(describe_settings())
    assert len(set(texts)) == len(texts)
    assert describe_settings() == texts[0]


def test_what_distinguishes_sources(tmp_path) -> None:
    path = tmp_path / "below" / "module.py"
    path.parent.mkdir()
    path.write_text("x = 1")
    texts = [describe_sources([str(tmp_path)])]
    path.write_text("x = 12")
    texts.append(describe_sources([str(tmp_path)]))
    os.utime(path, (1, 1))
    texts.append(describe_sources([str(tmp_path)]))
    (tmp_path / "another.py").touch()
    texts.append(describe_sources([str(tmp_path)]))
    assert len(set(texts)) == len(texts)


def test_subclasses_have_no_description() -> None:
    class Sub(torch.Tensor):
        pass

    graph_module = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(NotDescribable, match="Sub"):
        describe_graph(graph_module, [torch.randn(3).as_subclass(Sub)])
    with pytest.raises(NotDescribable, match="layout"):
        describe_graph(graph_module, [torch.randn(3, 3).to_sparse()])

"""Programs of the GPU's code generator in files: through Triton's interpreter, and on a GPU."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import weft
from torch import nn
from torch.nn import functional as F
from weft.saved_file import read_file, write_file
from weft_codegen_triton import TritonCodegen, TritonOptions

from tests.triton_interpreter import require_interpreter

require_interpreter()

T = torch.Tensor


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where programs run: on the CPU by the interpreter."""
    if request.param == "cpu":
        monkeypatch.setattr(weft.registry, "codegens", {})
        weft.register_codegen("cpu", lambda: TritonCodegen(TritonOptions(interpret=True)))
    yield str(request.param)
    weft.registry.stage_folders.cache_clear()


class Net(nn.Module):
    """Tied weights, a buffer that is a part of another one, and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8, bias=False)
        self.second = nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("part", torch.arange(24.0).reshape(3, 8)[1])

    def forward(self, x: T) -> dict[str, T]:
        y = self.norm(F.gelu(self.first(x)) + self.part)
        return {"logits": self.second(y), "rows": y.sum(1)}


def libraries(x: T) -> tuple[T, ...]:
    return torch.linalg.qr(x)[0].abs(), x.sort(dim=0).indices + 1


def drawn(x: T) -> T:
    return F.dropout(x, 0.5) + torch.rand_like(x)


def written(x: T) -> T:
    x.add_(x.mean())
    return x.cumsum(0)


class Scaled(nn.Module):
    """A number on the CPU, wherever the rest is."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.tensor(3.0)
        self.register_buffer("shift", torch.tensor([1.5, 2.0]))

    def forward(self, x: T) -> T:
        return x * self.scale + self.shift


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: T) -> T:
        return self.inner(x[None], x[None], x[None], need_weights=False)[0].sum(-1)


CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "module": (Net(), (6, 8)),
    "libraries": (libraries, (4, 4)),
    "random numbers": (drawn, (4, 4)),
    "writes": (written, (5, 3)),
    "constants": (Scaled(), (3, 2)),
    "attention": (Attention(), (6, 16)),
    "no elements": (written, (3, 0)),
    "a loop": (lambda x: torch.stack([x.cumsum(0).exp() for _ in range(5)]), (4, 3)),
}


def on(device: str, function: Any) -> Any:
    return copy.deepcopy(function).to(device) if isinstance(function, nn.Module) else function


@pytest.mark.parametrize("name", CASES)
def test_loaded_programs_give_what_eager_gives(name: str, device: str, tmp_path: Path) -> None:
    """Call by call: step by step first, and where that is recorded replays after that."""
    function, size = CASES[name]
    function = on(device, function)
    x = torch.randn(size, device=device)
    with torch.no_grad():
        weft.save(weft.compile(copy.deepcopy(function)), tmp_path / "p", [x.clone()])
        program = weft.load(tmp_path / "p")
        if isinstance(function, nn.Module):
            function.load_state_dict(program.weights, strict=False)
        for seed in range(4):
            x = torch.randn(size, device=device)
            mine, others = x.clone(), x.clone()
            torch.manual_seed(seed)
            got = program(mine)
            torch.manual_seed(seed)
            if name == "random numbers":  # not eager's
                torch.testing.assert_close(got, weft.compile(function)(others))
                continue
            torch.testing.assert_close(got, function(others), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(mine, others)
    if name == "module":
        for key in ("norm.running_mean", "norm.running_var"):
            torch.testing.assert_close(program.weights[key], function.get_buffer(key))


def test_sizes_vary_and_several_calls_share_weights(device: str, tmp_path: Path) -> None:
    """Also sizes for which kernels are others, multiples of 16 or not, than in the call that was saved."""
    model = Attention().to(device)
    first, second = torch.randn(6, 16, device=device), torch.randn(1, 16, device=device)
    weft.save(model, tmp_path / "p", [first], more_calls=[([second], {})], dynamic=True)
    program = weft.load(tmp_path / "p")
    with torch.no_grad():
        for rows in (6, 1, 16, 33, 7):
            x = torch.randn(rows, 16, device=device)
            torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-4)
    with pytest.raises(weft.SavedProgramError, match="2 programs"):
        program(torch.randn(2, 8, device=device))
    weights = [w["name"] for w in read_file(tmp_path / "p")[0]["weights"]]
    assert sorted(weights) == sorted(model.state_dict())


def test_kernels_are_in_the_file_once(device: str, tmp_path: Path) -> None:
    """Those that programs for several calls share, which differ in a kernel of their own."""

    def function(x: T, *, scale: float) -> tuple[T, T]:
        return x.softmax(-1).cumsum(0).sort(0).values.softmax(-1), x * scale

    x = torch.randn(6, 16, device=device)
    sizes = []
    for scales in ((2.0,), (2.0, 3.0)):
        calls = [([x], {"scale": scale}) for scale in scales]
        weft.save(function, tmp_path / "p", *calls[0], more_calls=calls[1:])
        header, blocks = read_file(tmp_path / "p")
        pieces = [number for p in header["programs"] for code in p["codes"] for number, _ in code]
        sizes.append((len(pieces), len(set(pieces)), len(blocks)))
    (alone, _, _), (both, distinct, there) = sizes
    assert both == 2 * alone and alone < distinct < both and there == distinct
    program = weft.load(tmp_path / "p")
    for scale in (2.0, 3.0):
        for got, expected in zip(program(x, scale=scale), function(x, scale=scale), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def set_precision(tf32: bool) -> None:
    torch.set_float32_matmul_precision("high" if tf32 else "highest")


@pytest.fixture
def fusing(device: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A code generator whose kernels multiply float32 themselves; torch's setting is put back."""
    options = TritonOptions(interpret=device == "cpu", fuse_matmuls=True)
    monkeypatch.setattr(weft.registry, "codegens", {})
    weft.register_codegen(device, lambda: TritonCodegen(options))
    before = torch.get_float32_matmul_precision()
    yield device
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("training", [False, True])
def test_both_precisions_of_matmuls_are_saved(training: bool, fusing: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(32, 48), nn.ReLU()).to(fusing)
    x = torch.randn(20, 32, device=fusing)
    set_precision(tf32=False)
    weft.save(model, tmp_path / "p", [x], training=training)
    (described,) = read_file(tmp_path / "p")[0]["programs"]
    assert json.dumps(described["program"]).count('"ByPrecision"') == 1 + training
    program = weft.load(tmp_path / "p")
    for tf32 in (True, False, True):
        set_precision(tf32)
        tolerance = 1e-2 if tf32 else 1e-5
        got, expected = program(x), model(x)
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
        if training:
            ours = torch.autograd.grad(got.square().sum(), list(program.weights.values()))
            theirs = torch.autograd.grad(expected.square().sum(), list(model.parameters()))
            for mine, other in zip(ours, theirs, strict=True):
                torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


def step(run: Callable[..., Any], named: dict[str, T], x: T) -> tuple[Any, ...]:
    """The result of a step of SGD, its gradients, and the weights after it."""
    x = x.clone().requires_grad_()
    results = run(x)
    (results["logits"].square().mean() + results["rows"].mean()).backward()
    gradients = {name: None if p.grad is None else p.grad.clone() for name, p in named.items()}
    with torch.no_grad():
        for p in named.values():
            p -= 0.1 * p.grad
            p.grad = None
    return results["logits"].detach(), x.grad, gradients


@pytest.mark.parametrize("dynamic", [False, True])
def test_training_goes_on_where_it_is_loaded(dynamic: bool, device: str, tmp_path: Path) -> None:
    model = Net().to(device)
    example = torch.randn(6, 8, device=device, requires_grad=True)
    weft.save(weft.compile(model), tmp_path / "p", [example], training=True, dynamic=dynamic)
    program = weft.load(tmp_path / "p")
    named = {n: program.weights[n] for n, _ in model.named_parameters()}
    for rows in (6, 9, 16, 6) if dynamic else (6, 6, 6, 6):
        x = torch.randn(rows, 8, device=device)
        expected = step(model, dict(model.named_parameters()), x)
        torch.testing.assert_close(step(program, named, x), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(program.weights["norm.running_var"], model.norm.running_var)

    other = Net().to(device)
    program = weft.load(tmp_path / "p", weights=dict(other.named_parameters()))
    program(example.detach().requires_grad_())["rows"].sum().backward()
    assert other.first.weight.grad is not None


CHILD = """
import sys, time
sys.modules["triton"] = None  # as if it were not installed
import torch, weft
import weft.saved_programs
start = time.perf_counter()
program = weft.load(sys.argv[1])
x = torch.arange(48.0, device="cuda").reshape(6, 8)
with torch.no_grad():
    result = program(x)["logits"]
torch.cuda.synchronize()
print(f"loaded and called in {time.perf_counter() - start:.3f} s")
torch.save(result.cpu(), sys.argv[2])
assert "weft_bytecode_capture.symbolic.root_frame" not in sys.modules
"""


@pytest.mark.gpu
def test_no_triton_and_no_compiler_is_needed(tmp_path: Path) -> None:
    model = Net().cuda().eval()
    weft.save(model, tmp_path / "p", [torch.randn(6, 8, device="cuda")])
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "CXX": "/no/such/compiler",
        "WEFT_CACHE_DIR": str(tmp_path / "empty"),
    }
    command = [sys.executable, "-c", CHILD, str(tmp_path / "p"), str(tmp_path / "result")]
    subprocess.run(command, env=environment, check=True)
    x = torch.arange(48.0, device="cuda").reshape(6, 8)
    expected = model(x)["logits"].detach().cpu()
    torch.testing.assert_close(torch.load(tmp_path / "result"), expected, rtol=1e-4, atol=1e-4)
    assert not list(tmp_path.glob("empty/**/*.cubin"))


def changed(path: Path, change: Callable[[Any, Any], object]) -> None:
    header, blocks = read_file(path)
    header.pop("blocks")
    contents = [bytes(block) for block in blocks]
    change(header["programs"][0], contents)
    write_file(path, header, contents)


CHANGES: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    "a GPU": (
        lambda p, b: p["needs"].update({"cuda:0 of compute capability": ["99.9"]}),
        r"this one lacks cuda:0 of compute capability 99\.9",
    ),
    "a tuned GPU": (
        lambda p, b: p["needs"].update({"cuda:0 for which kernels were timed,": ["a GPU"]}),
        "lacks cuda:0 for which kernels were timed, a GPU",
    ),
    "a code generator": (
        lambda p, b: p["needs"].update({"the code generator": ["theirs.Codegen"]}),
        "lacks the code generator theirs.Codegen",
    ),
    "other code": (
        lambda p, b: b.__setitem__(p["codes"][0][0][0], b"x" + b[p["codes"][0][0][0]]),
        "code is not what was saved",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_files_that_do_not_fit_are_refused(name: str, device: str, tmp_path: Path) -> None:
    """Before anything is put on a device."""
    change, message = CHANGES[name]
    model = nn.Linear(4, 3).to(device)
    weft.save(model, tmp_path / "p", [torch.ones(2, 4, device=device)])
    changed(tmp_path / "p", change)
    with pytest.raises(weft.SavedProgramError, match=message):
        weft.load(tmp_path / "p")


def test_another_code_generator_takes_no_such_file(
    monkeypatch: pytest.MonkeyPatch, device: str, tmp_path: Path
) -> None:
    weft.save(lambda x: x.exp(), tmp_path / "p", [torch.ones(2, 4, device=device)])
    from weft_codegen_cpp import CppCodegen

    monkeypatch.setattr(weft.registry, "codegens", {device: CppCodegen})
    with pytest.raises(weft.SavedProgramError, match=r"lacks .*Triton"):
        weft.load(tmp_path / "p")


@pytest.mark.gpu
def test_weights_and_arguments_elsewhere_are_refused(tmp_path: Path) -> None:
    model = nn.Linear(4, 3).cuda()
    weft.save(model, tmp_path / "p", [torch.ones(2, 4, device="cuda")])
    with pytest.raises(weft.SavedProgramError, match="weight is on cpu, not on cuda:0"):
        weft.load(tmp_path / "p", weights={"weight": torch.ones(3, 4)})
    with pytest.raises(weft.SavedProgramError, match="on cpu"):
        weft.load(tmp_path / "p")(torch.ones(2, 4))

"""Compiled functions in training loops, beside eager: optimizers, autocast, breaks, wrong use."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import Tensor, nn


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(16), nn.Linear(16, 4)
    )


def image_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Dropout(0.1),
        nn.Conv2d(8, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


CASES = {"perceptron": (network, (32, 8)), "convolutions": (image_network, (8, 3, 8, 8))}


@pytest.mark.parametrize("name", CASES)
def test_steps_of_adamw_converge_alike(name: str) -> None:
    build, shape = CASES[name]
    plain = build()
    model = copy.deepcopy(plain)
    inputs, classes = torch.randn(shape), torch.randint(0, 4, shape[:1])
    curves = []
    for called, owner in ((plain, plain), (weft.compile(model, fullgraph=True), model)):
        torch.manual_seed(1)
        optimizer = torch.optim.AdamW(owner.parameters(), 1e-2)
        losses = []
        for _ in range(15):
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(called(inputs), classes)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        curves.append(losses)
    torch.testing.assert_close(curves[1], curves[0], rtol=1e-2, atol=1e-2)
    assert curves[1][-1] < 0.8 * curves[1][0]


@pytest.mark.parametrize("inside", [False, True])
def test_autocast(inside: bool) -> None:
    plain = network().eval()
    model = copy.deepcopy(plain)

    def loss_of(module: Any, x: Tensor) -> Tensor:
        if not inside:
            return module(x).float().pow(2).mean()
        with torch.autocast("cpu", torch.bfloat16):
            y = module(x)
        return y.float().pow(2).mean()

    x = torch.randn(32, 8)
    for function, module in ((loss_of, plain), (weft.compile(loss_of, fullgraph=True), model)):
        with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
            loss = function(module, x)
        loss.backward()
    for want, got in zip(plain.parameters(), model.parameters(), strict=True):
        assert got.grad.dtype == want.grad.dtype
        torch.testing.assert_close(got.grad, want.grad, rtol=3e-2, atol=3e-3)


def test_gradient_scaler() -> None:
    plain = network().eval()
    model = copy.deepcopy(plain)
    x = torch.randn(16, 8)
    for called, owner in ((plain, plain), (weft.compile(model), model)):
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        optimizer = torch.optim.SGD(owner.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(called(x).pow(2).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    for want, got in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(got, want)


def test_switching_between_training_and_inference() -> None:
    model = network()
    compiled = weft.compile(model, fullgraph=True)
    x = torch.randn(2, 8)
    for _ in range(2):
        compiled.eval()
        torch.testing.assert_close(compiled(x), model(x))
        with torch.no_grad():
            result = compiled(x)
        assert not result.requires_grad
        compiled.train()
        torch.manual_seed(1)
        result = compiled(x)
        torch.manual_seed(1)
        torch.testing.assert_close(result, model(x))


def test_a_whole_step_with_a_break_at_backward() -> None:
    plain = network().eval()
    model = copy.deepcopy(plain)

    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = module(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    compiled = weft.compile(step)
    first = torch.optim.SGD(plain.parameters(), 0.1)
    second = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(8, 8)
    for _ in range(3):
        torch.testing.assert_close(compiled(model, second, x), step(plain, first, x))


def test_breaks_between_what_has_gradients() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        y = (x @ w).relu()
        weft_breaks_here()
        return (y * 2 + x).sum()

    x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    got = torch.autograd.grad(weft.compile(program)(x, w), [x, w])
    torch.testing.assert_close(got, torch.autograd.grad(program(x, w), [x, w]))


@weft.disable
def weft_breaks_here() -> None:
    """Stays out of captured code."""


def test_regions_without_gradients() -> None:
    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            scale = (x * w).abs().mean()
        y = x * w / scale
        return y, scale, y.detach()

    x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    want, got = program(x, w), weft.compile(program, fullgraph=True)(x, w)
    assert [t.requires_grad for t in got] == [t.requires_grad for t in want]
    torch.testing.assert_close(
        torch.autograd.grad(got[0].sum(), [x, w]), torch.autograd.grad(want[0].sum(), [x, w])
    )


def test_masks_that_are_empty_at_first() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * w
        y[y < -0.5] *= 3
        return y * w

    compiled = weft.compile(function)
    for factor in (0, 1, -1):
        x = torch.linspace(-2, 2, 6).mul(factor)
        mine, theirs = ([x.clone().requires_grad_(), x.exp().requires_grad_()] for _ in range(2))
        got, want = compiled(*mine), function(*theirs)
        torch.testing.assert_close(got, want)
        got.square().sum().backward()
        want.square().sum().backward()
        torch.testing.assert_close([t.grad for t in mine], [t.grad for t in theirs])


def test_a_memory_budget() -> None:
    plain = network().eval()
    model = copy.deepcopy(plain)
    compiled = weft.compile(model, fullgraph=True, options={"activation_memory_budget": 0.0})
    x = torch.randn(8, 8)
    for called in (plain, compiled):
        called(x).pow(2).mean().backward()
    for want, got in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_eagers_error_for_a_write_to_a_leaf(fullgraph: bool) -> None:
    def program(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2

    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used"):
        weft.compile(program, fullgraph=fullgraph)(torch.randn(3, requires_grad=True))


def test_backward_twice_is_eagers_error() -> None:
    model = weft.compile(network().eval())
    loss = model(torch.randn(2, 8)).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


class Squared(torch.autograd.Function):
    """A function with a gradient of the user's own, which is not the true one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 3 * x


def test_the_users_own_gradient() -> None:
    x = torch.randn(3, requires_grad=True)
    (got,) = torch.autograd.grad(weft.compile(lambda x: Squared.apply(x).sum())(x), [x])
    torch.testing.assert_close(got, 3 * x.detach())


def test_checkpointed_modules() -> None:
    plain = network()
    model = copy.deepcopy(plain)

    def program(module: nn.Module, x: Tensor) -> Tensor:
        result: Tensor = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)
        return result.sum()

    x = torch.randn(8, 8)
    for function, module in ((program, plain), (weft.compile(program), model)):
        torch.manual_seed(1)
        function(module, x).backward()
    for want, got in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)


RECURRENT = {
    "LSTM": lambda: nn.LSTM(5, 7, 2, batch_first=True, bidirectional=True),
    "LSTM with projections": lambda: nn.LSTM(5, 7, proj_size=3),
    "GRU": lambda: nn.GRU(5, 7, batch_first=True),
    "RNN": lambda: nn.RNN(5, 7, batch_first=True, bidirectional=True),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_train(name: str) -> None:
    torch.manual_seed(0)
    plain = RECURRENT[name]()
    model = copy.deepcopy(plain)
    compiled = weft.compile(model, fullgraph=True)
    for length in (4, 6):
        x = torch.randn(2, length, 5)
        for called, owner in ((plain, plain), (compiled, model)):
            owner.zero_grad()
            output, state = called(x)
            state = state if isinstance(state, tuple) else (state,)
            sum(value.square().sum() for value in (output, *state)).backward()
        for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_long_sequences_stay_the_librarys() -> None:
    model = nn.LSTM(2, 3, 2, batch_first=True)
    log = weft.CompileLog()
    with weft.observe(log):
        compiled = weft.compile(model, backend="eager")
        for length in (64, 65):
            compiled(torch.randn(1, length, 2))
    assert [b.kind for b in log.graph_breaks] == ["function that stays eager in training"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bfloat16])
def test_recurrent_networks_on_a_gpu(make: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    before, network = nn.Linear(16, 16), make(16, 32, 2, batch_first=True, bidirectional=True)
    model = nn.ModuleList([before, network]).to("cuda", dtype)

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        output, state = network(before(x).relu())
        return output * 2, state[0] + 1 if isinstance(state, tuple) else state + 1

    compiled = weft.compile(program)
    tolerance = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype]
    close = {"rtol": tolerance, "atol": tolerance}
    for length in (5, 9):
        x = torch.randn(3, length, 16, device="cuda", dtype=dtype)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), program(x), **close)
        gradients = [
            torch.autograd.grad(sum(y.square().sum() for y in f(x)), [*model.parameters()])
            for f in (program, compiled)
        ]
        for theirs, mine in zip(*gradients, strict=True):
            assert float((mine - theirs).norm()) <= 10 * tolerance * float(theirs.norm() + 1)


@torch.library.custom_op("weft_tests::scaled", mutates_args=())
def scaled(x: Tensor, factor: float) -> Tensor:
    return x * factor


@scaled.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


def _keep_factor(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.factor = inputs[1]


scaled.register_autograd(
    lambda ctx, gradient: (gradient * ctx.factor, None), setup_context=_keep_factor
)


def test_a_gradient_registered_for_an_operator_of_the_users() -> None:
    def program(x: Tensor) -> Tensor:
        with torch.no_grad():
            fixed = scaled(x, 2.0)
        return (scaled(x.sin(), 3.0) * fixed + x).sum()

    x = torch.randn(3, requires_grad=True)
    (got,) = torch.autograd.grad(weft.compile(program, fullgraph=True)(x), [x])
    torch.testing.assert_close(got, torch.autograd.grad(program(x), [x])[0])

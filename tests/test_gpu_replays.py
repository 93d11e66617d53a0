"""Calls on a GPU under each mode: what is replayed gives what eager does, and nothing held is overwritten."""

from __future__ import annotations

import copy
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
import weft
from torch import nn

pytestmark = pytest.mark.gpu

MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs")
each_mode = pytest.mark.parametrize("mode", MODES)


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """Products in float32, not in TF32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


class Block(nn.Module):
    """Products between kernels, and buffers that training writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 32)
        self.norm = nn.BatchNorm1d(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(nn.functional.gelu(self.first(self.norm(x)))).softmax(-1) + x


def assert_close(got: object, want: object) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def assert_near(got: Sequence[torch.Tensor | None], want: Sequence[torch.Tensor | None]) -> None:
    """By the norm of the difference: gradients of a mean are small."""
    for mine, theirs in zip(got, want, strict=True):
        assert mine is not None and theirs is not None
        assert (mine - theirs).norm() <= 1e-3 * theirs.norm()


@each_mode
def test_results_are_held_while_inputs_move(mode: str) -> None:
    model = Block().cuda().eval()
    compiled = weft.compile(model, mode=mode)
    held = []
    with torch.no_grad():
        for _ in range(8):
            x = torch.randn(16, 32, device="cuda")
            held.append((x, compiled(x)))
        for x, got in held:
            assert_close(got, model(x))


@each_mode
def test_buffers_and_inputs_that_a_call_writes_to(mode: str) -> None:
    model = Block().cuda()
    plain = copy.deepcopy(model)

    def step(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x.mul_(0.5)
        return block(x)

    compiled = weft.compile(step, mode=mode)
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(16, 32, device="cuda")
            given, wanted = x.clone(), x.clone()
            assert_close((compiled(model, given), given), (step(plain, wanted), wanted))
            assert_close(model.state_dict(), plain.state_dict())


@each_mode
def test_more_sizes_than_there_are_recordings(mode: str) -> None:
    model = Block().cuda().eval()
    compiled = weft.compile(model, mode=mode, dynamic=True)
    with torch.no_grad():
        for _ in range(
            3
        ):  # each size step by step, recorded, replayed; from the 17th on step by step
            held = []
            for rows in range(2, 22):
                x = torch.randn(rows, 32, device="cuda")
                held.append((x, compiled(x)))
            for x, got in held:
                assert_close(got, model(x))


@each_mode
def test_steps_of_training(mode: str) -> None:
    model = Block().cuda()
    plain = copy.deepcopy(model)
    compiled = weft.compile(model, mode=mode)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (model, plain)]
    held = []
    for _ in range(6):
        x = torch.randn(16, 32, device="cuda")
        for run, optimizer in zip((compiled, plain), optimizers, strict=True):
            optimizer.zero_grad()
            result = run(x)
            (result * result).sum().backward()
            held.append(result.detach())
            optimizer.step()
        assert_close(model.state_dict(), plain.state_dict())
    for got, want in zip(held[::2], held[1::2], strict=True):
        assert_close(got, want)


class Wide(nn.Module):
    """Saves some 700 MiB for backward in float32, for a batch of 8192."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = nn.functional.gelu(layer(x)) + x
        return x.mean(-1)


def test_what_a_large_step_saves_is_donated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward are replayed, but for calls whose saved values are in use."""
    replayed = []
    replay = torch.cuda.CUDAGraph.replay

    def counting(graph: torch.cuda.CUDAGraph) -> None:
        replayed.append(graph)
        replay(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", counting)
    model = Wide().cuda()
    plain = copy.deepcopy(model)
    compiled = weft.compile(model)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (model, plain)]
    for number in range(8):
        results = []
        x, y = torch.randn(2, 8192, 1024, device="cuda")
        for run, optimizer in zip((compiled, plain), optimizers, strict=True):
            optimizer.zero_grad()
            result = run(x)
            if number == 6:  # the first waits while the second is computed
                other = run(y)
                other.square().mean().backward()
            result.square().mean().backward()
            results.append(result.detach())
        assert_near(*([result] for result in results))
        assert_near(*([p.grad for p in m.parameters()] for m in (model, plain)))
        for optimizer in optimizers:
            optimizer.step()
    assert len(set(replayed)) >= 2
    assert len(replayed) >= 9


class Tied(nn.Module):
    """Its last step multiplies, in forward and in backward, and it keeps statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1001, 256)
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))
        self.norm = nn.BatchNorm1d(256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.words(x))
        for layer in self.layers:
            y = nn.functional.gelu(layer(y)) + y
        return y @ self.words.weight.t()


@each_mode
@pytest.mark.parametrize("seed", range(3))
def test_backward_reuses_what_is_donated(seed: int, mode: str) -> None:
    """In any order of calls, gradients of those that wait, some twice, and steps."""
    chosen, waiting = random.Random(seed), list[tuple[torch.Tensor, torch.Tensor]]()
    torch.manual_seed(seed)
    models = [Tied().cuda()]
    models.append(copy.deepcopy(models[0]))
    runs = weft.compile(models[0], mode=mode), models[1]
    optimizers = [torch.optim.SGD(model.parameters(), 0.01) for model in models]
    most = (1, 3)[seed % 2]
    for _ in range(60):
        action = chosen.random()
        if action < 0.4 and len(waiting) < most:
            x = torch.randint(1001, (512,), device="cuda")
            waiting.append((runs[0](x), runs[1](x)))
        elif action < 0.8 and waiting:
            results = waiting.pop(chosen.randrange(len(waiting)))
            again = chosen.random() < 0.2
            for result in results:
                result.square().mean().backward(retain_graph=again)
            if again:
                waiting.append(results)
            assert_near(*([result.detach()] for result in results))
            del result, results
            assert_near(*([p.grad for p in model.parameters()] for model in models))
        elif not waiting:
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()


USES: dict[str, Callable[[nn.Module, list[torch.Tensor]], None]] = {
    "let go of": lambda model, held: model.zero_grad(),
    "accumulated": lambda model, held: None,
    "zeroed": lambda model, held: model.zero_grad(set_to_none=False),
    "held": lambda model, held: (held.extend(_gradients(model)), model.zero_grad()),  # type: ignore[func-returns-value]
    "held as views": lambda model, held: (  # type: ignore[func-returns-value]
        held.extend(gradient[:1] for gradient in _gradients(model)),
        model.zero_grad(),
    ),
    "in use now and then": lambda model, held: model.zero_grad() if len(held) % 3 else None,
}


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


@each_mode
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_gradients_that_callers_hold(
    use: Callable[[nn.Module, list[torch.Tensor]], None], mode: str
) -> None:
    """Those of one step are not written over by the next."""
    models = [Tied().cuda()]
    models.append(copy.deepcopy(models[0]))
    runs = weft.compile(models[0], mode=mode), models[1]
    everything: tuple[list[torch.Tensor], ...] = [], []
    for _ in range(10):
        x = torch.randint(1001, (512,), device="cuda")
        for model, run, held in zip(models, runs, everything, strict=True):
            result = run(x)
            if use is not USES["accumulated"] and len(held) % 2:
                use(model, held)  # between forward and backward
            result.square().mean().backward()
            held.append(result.detach())
        assert_near(*map(_gradients, models))
        for model, held in zip(models, everything, strict=True):
            use(model, held)
    assert_near(*everything)


@each_mode
def test_gradients_in_lists(mode: str) -> None:
    """Those that ``torch.autograd.grad`` gives, of the steps before."""
    models = [Tied().cuda()]
    models.append(copy.deepcopy(models[0]))
    runs = weft.compile(models[0], mode=mode), models[1]
    lists: tuple[list[torch.Tensor], ...] = [], []
    for _ in range(6):
        x = torch.randint(1001, (512,), device="cuda")
        for model, run, held in zip(models, runs, lists, strict=True):
            held.extend(torch.autograd.grad(run(x).square().mean(), [*model.parameters()]))
    assert_near(*lists)


def test_backward_takes_its_memory_from_what_it_has_read() -> None:
    model = Wide().cuda()
    compiled = weft.compile(model)
    x = torch.randn(8192, 1024, device="cuda")
    before = torch.cuda.memory_allocated()
    for _ in range(8):
        model.zero_grad()
        compiled(x).square().mean().backward()
    donated = 8 * 2 * x.numel() * x.itemsize  # the inputs of products, and what gelu is given
    assert torch.cuda.memory_allocated() - before < donated // 2


def test_what_is_lent_is_safe_from_other_recordings() -> None:
    """Those that were made before, and have used all that was free when it was donated."""
    teacher, model = Wide().cuda().eval(), Wide().cuda()
    plain = copy.deepcopy(model)
    teach, run = weft.compile(teacher), weft.compile(model)
    x, y = torch.randn(2, 4096, 1024, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            wanted = teach(y)
    for _ in range(5):
        gradients = []
        for forward, parameters in ((run, model.parameters()), (plain, plain.parameters())):
            result = forward(x)
            with torch.no_grad():
                assert_close(teach(y), wanted)
            leaves = list(parameters)
            gradients.append(torch.autograd.grad((result - wanted).square().mean(), leaves))
        assert_near(*gradients)


PROGRAM = """
import torch, weft
from tests.test_gpu_replays import Block, assert_close
torch.manual_seed(0)
model = Block().cuda().eval()
log = weft.CompileLog()
compiled = weft.compile(model)
with torch.no_grad(), weft.observe(log):
    for _ in range(4):
        x = torch.randn(16, 32, device="cuda")
        assert_close(compiled(x), model(x))
print(*(stage for report in log.graphs for stage in report.seconds), sep=",")
"""


def test_a_second_process_runs_no_stage(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    settings = {"WEFT_CACHE_DIR": str(tmp_path), "WEFT_STRICT": "0", "PYTHONPATH": path}
    outputs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, **settings},
            check=True,
            capture_output=True,
        ).stdout.decode()
        for _ in range(2)
    ]
    assert outputs[0].startswith("program cache,functionalize,")
    assert outputs[1] == "program cache\n"


class Decoder(nn.Module):
    """Layers of one token's attention to those before it, whose keys and values are in buffers."""

    def __init__(self, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.into = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(layers, 1, width // 64, length, 64))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(self.length, device=x.device)[None] <= at[:, None]
        for layer, (into, out) in enumerate(zip(self.into, self.out, strict=True)):
            y = nn.functional.rms_norm(x, x.shape[-1:])
            q, k, v = into(y).view(1, 1, 3, -1, 64).permute(2, 0, 3, 1, 4)
            self.keys[layer][:, :, at] = k
            self.values[layer][:, :, at] = v
            kept = self.keys[layer], self.values[layer]
            y = nn.functional.scaled_dot_product_attention(q, *kept, attn_mask=mask)
            x = x + out(y.transpose(1, 2).reshape(x.shape))
        return x


@each_mode
@pytest.mark.parametrize("width", [128, 2048])
def test_caches_are_written_where_they_are(mode: str, width: int) -> None:
    """While other kernels change the weights between calls, which the next call has to see."""
    torch.manual_seed(0)
    model = Decoder(width, 3, 32).cuda().bfloat16()
    twin = copy.deepcopy(model)
    compiled = weft.compile(model, mode=mode, fullgraph=True)
    places = model.keys.data_ptr(), model.values.data_ptr()
    with torch.no_grad():
        for step in range(24):
            x = torch.randn(1, 1, width, device="cuda", dtype=torch.bfloat16)
            at = torch.tensor([step], device="cuda")
            got, want = compiled(x, at), twin(x, at)
            torch.testing.assert_close(got, want, rtol=5e-2, atol=5e-2)
            torch.testing.assert_close(model.keys, twin.keys, rtol=5e-2, atol=5e-2)
            torch.testing.assert_close(model.values, twin.values, rtol=5e-2, atol=5e-2)
            for kept, other in zip(model.parameters(), twin.parameters(), strict=True):
                change = torch.randn_like(kept) * 0.02
                kept.copy_(change)
                other.copy_(change)
    assert places == (model.keys.data_ptr(), model.values.data_ptr())


def test_weights_that_a_kernel_of_another_program_has_just_written_are_seen() -> None:
    """Each call of one compiled function changes the weights of the other's products."""
    torch.manual_seed(0)
    weights = [torch.randn(2048, 2048, device="cuda").bfloat16() / 45 for _ in range(4)]
    x = torch.randn(1, 2048, device="cuda").bfloat16()

    def change(weights: list[torch.Tensor], by: torch.Tensor) -> None:
        for weight in weights:
            weight.mul_(by)

    def product(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
        for weight in weights:
            x = nn.functional.rms_norm(x, x.shape[-1:]) @ weight.t()
        return x

    changing, multiplying = (weft.compile(f, fullgraph=True) for f in (change, product))
    with torch.no_grad():
        for step in range(60):
            changing(weights, torch.tensor(-1.0 if step % 2 else 2.0, device="cuda").bfloat16())
            got = multiplying(x, weights)
            torch.testing.assert_close(got, product(x, weights), rtol=5e-2, atol=5e-2)
            if step % 2:
                change(weights, torch.tensor(0.5, device="cuda").bfloat16())


def by_what_the_gpu_is(x: torch.Tensor) -> torch.Tensor:
    properties = torch.cuda.get_device_properties(x.device)
    if torch.cuda.get_device_capability(x.device) >= (3, 0) and torch.cuda.is_bf16_supported():
        x = x * properties.multi_processor_count
    return x + len(torch.cuda.get_device_name()) + properties.major


def test_what_the_gpu_is_is_known_while_compiling() -> None:
    x = torch.randn(8, device="cuda")
    compiled = weft.compile(by_what_the_gpu_is, fullgraph=True)
    torch.testing.assert_close(compiled(x), by_what_the_gpu_is(x))

"""One process that uses two GPUs: kernels, recordings and memory are each device's own."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable

import pytest
import torch
import weft
from torch import nn

from tests.test_gpu_replays import MODES, Block, assert_close

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

DEVICES = ("cuda:0", "cuda:1")
CYCLES = 50_000_000
"""Tens of milliseconds, in which whatever does not wait for them goes ahead."""

each_mode = pytest.mark.parametrize("mode", MODES)
each_current = pytest.mark.parametrize("current", range(2))


def blocks() -> list[Block]:
    """The same parameters on each device."""
    torch.manual_seed(0)
    plain = Block().eval()
    return [copy.deepcopy(plain).to(device) for device in DEVICES]


@each_mode
@each_current
def test_results_of_both_are_held(mode: str, current: int) -> None:
    """One function for both, called in turn: replays leave what the caller holds, and the current device."""
    compiled = weft.compile(lambda block, x: block(x), mode=mode, fullgraph=True)
    models, held = blocks(), []
    with torch.cuda.device(current), torch.no_grad():
        for _ in range(6):
            for model, device in zip(models, DEVICES, strict=True):
                x = torch.randn(16, 32, device=device)
                held.append((model, x, compiled(model, x)))
                assert torch.cuda.current_device() == current
        for model, x, got in held:
            assert got.device == x.device
            assert_close(got, model(x))


@each_mode
@each_current
def test_steps_of_training_on_both(mode: str, current: int) -> None:
    models = [model.train() for model in blocks()]
    plain = copy.deepcopy(models)
    compiled = weft.compile(lambda block, x: block(x), mode=mode, fullgraph=True)

    def step(run: Callable[..., torch.Tensor], model: Block, x: torch.Tensor) -> list[torch.Tensor]:
        model.zero_grad()
        result = run(model, x)
        (result * result).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter -= 0.1 * parameter.grad
        return [result.detach(), *model.state_dict().values()]

    with torch.cuda.device(current):
        for _ in range(5):
            for model, reference, device in zip(models, plain, DEVICES, strict=True):
                x = torch.randn(16, 32, device=device)
                got = step(compiled, model, x)
                assert_close(got, step(lambda block, x: block(x), reference, x))
                assert torch.cuda.current_device() == current


@each_mode
def test_streams_of_each_device(mode: str) -> None:
    """A call waits for what its device's current stream does, and for nothing of the other device's."""
    compiled = weft.compile(lambda block, x: block(x), mode=mode, fullgraph=True)
    models, held = blocks(), []
    streams = [torch.cuda.Stream(device) for device in DEVICES]
    sources = [torch.randn(16, 32, device=device) for device in DEVICES]
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    with torch.no_grad():
        for number in range(4):
            for model, stream, source in zip(models, streams, sources, strict=True):
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(CYCLES)
                    x = source * number
                    held.append((model, x, compiled(model, x)))
        for stream in streams:
            stream.synchronize()
        for model, x, got in held:
            assert_close(got, model(x))


@pytest.mark.parametrize("busy", range(2))
def test_recordings_take_memory_of_their_device(busy: int) -> None:
    """Calls on one device allocate nothing on the other."""
    compiled = weft.compile(lambda block, x: block(x), mode="reduce-overhead", fullgraph=True)
    other = 1 - busy
    models = blocks()
    x = torch.randn(16, 32, device=DEVICES[busy])
    gc.collect()  # what earlier calls left
    allocated, reserved = torch.cuda.memory_allocated(other), torch.cuda.memory_reserved(other)
    with torch.cuda.device(other), torch.no_grad():
        for _ in range(5):
            compiled(models[busy], x)
    torch.cuda.synchronize(busy)
    assert torch.cuda.memory_allocated(other) <= allocated
    assert torch.cuda.memory_reserved(other) == reserved


@each_mode
def test_a_thread_for_each_device(mode: str) -> None:
    compiled = weft.compile(lambda block, x: block(x), mode=mode, fullgraph=True)
    errors: list[BaseException] = []

    def work(model: Block, device: str) -> None:
        try:
            with torch.no_grad():
                held = []
                for _ in range(20):
                    x = torch.randn(16, 32, device=device)
                    held.append((x, compiled(model, x)))
                for x, got in held:
                    assert_close(got, model(x))
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=arguments)
        for arguments in zip(blocks(), DEVICES, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@each_mode
def test_a_model_for_each_device(mode: str) -> None:
    models = blocks()
    compiled = [weft.compile(model, mode=mode, fullgraph=True) for model in models]
    with torch.no_grad():
        for _ in range(4):
            xs = [torch.randn(16, 32, device=device) for device in DEVICES]
            results = [run(x) for run, x in zip(compiled, xs, strict=True)]
            for model, x, got in zip(models, xs, results, strict=True):
                assert_close(got, model(x))


@each_mode
def test_a_tensor_on_the_wrong_device_is_eagers_error(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_STRICT", "0")
    first, _ = blocks()
    compiled = weft.compile(first, mode=mode)
    x = torch.randn(16, 32, device=DEVICES[1])
    with torch.no_grad():
        for _ in range(2):
            assert_close(compiled(x.to(DEVICES[0])), first(x.to(DEVICES[0])))
        with pytest.raises(RuntimeError, match="device"):
            first(x)
        with pytest.raises(RuntimeError, match="device"):
            compiled(x)
        assert_close(compiled(x.to(DEVICES[0])), first(x.to(DEVICES[0])))


class Halves(nn.Module):
    """Layers on two devices, as pipelines have them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = blocks()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).to(DEVICES[1])).to(DEVICES[0]) + x


@each_mode
def test_layers_on_two_devices(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No one graph has both devices (it runs eagerly, with a warning), and results are eager's."""
    monkeypatch.setenv("WEFT_STRICT", "0")
    model = Halves()
    compiled = weft.compile(model, mode=mode)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(16, 32, device=DEVICES[0])
            assert_close(compiled(x), model(x))

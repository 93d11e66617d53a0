"""Steps of training with their optimizer on a GPU: ``python -m benchmarks.gpu_training_steps [CASE ...]``.

``zero_grad``, the loss under bfloat16 autocast, ``backward`` and AdamW's ``step``, of a transformer of 12
layers (8 x 512 tokens) and a convolutional network (64 images).  What is compiled stands after the compiler's
name: ``loss``, ``loss+step``, or the ``whole`` function.  A process a measurement, one after another, each
with empty caches; prints a table of medians.  ``--tiny`` tries all this on the processor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu import compile_with
from benchmarks.gpu_decode import milliseconds, run_command

COMPILERS = (
    "eager",
    "torch.compile:reduce-overhead/loss+step",
    "weft/loss",
    "weft/loss+step",
    "weft/whole",
)
WORDS = 8192


class Block(nn.Module):
    """Causal attention and two linear layers, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.mixed(self.norms[0](x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        widened: Tensor = self.layers(self.norms[1](x))
        return x + widened


def transformer(*, tiny: bool) -> tuple[nn.Module, Tensor, Tensor]:
    width, layers, length = (32, 2, 8) if tiny else (768, 12, 512)
    blocks = [Block(width, width // 16 if tiny else width // 64) for _ in range(layers)]
    model = nn.Sequential(
        nn.Embedding(WORDS, width), *blocks, nn.LayerNorm(width), nn.Linear(width, WORDS)
    )
    return model, torch.randint(0, WORDS, (8, length)), torch.randint(0, WORDS, (8, length))


def convolutions(*, tiny: bool) -> tuple[nn.Module, Tensor, Tensor]:
    layers: list[nn.Module] = []
    inside = 3
    for width in (8, 16) if tiny else (64, 128, 256, 512):
        for stride in (2, 1):
            layers.append(nn.Conv2d(inside, width, 3, stride, 1, bias=False))
            layers += [nn.BatchNorm2d(width), nn.ReLU()]
            inside = width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))
    count, size = (2, 16) if tiny else (64, 128)
    return model, torch.randn(count, 3, size, size), torch.randint(0, 1000, (count,))


CASES: dict[str, Callable[..., tuple[nn.Module, Tensor, Tensor]]] = {
    "transformer": transformer,
    "convolutions": convolutions,
}


def step_of(model: nn.Module, compiler: str) -> Callable[[Tensor, Tensor], Tensor]:
    """A step of training, of which ``compiler`` compiles what it says."""
    name, _, part = compiler.partition("/")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def loss(x: Tensor, target: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            logits = model(x)
        return F.cross_entropy(logits.float().flatten(0, -2), target.flatten())

    of_loss = compile_with(name, loss) if part.startswith("loss") else loss
    update = compile_with(name, optimizer.step) if part.endswith("step") else optimizer.step

    def step(x: Tensor, target: Tensor) -> Tensor:
        optimizer.zero_grad()
        found = of_loss(x, target)
        found.backward()
        update()
        return found.detach()

    return compile_with(name, step) if part == "whole" else step


def measure(case: str, compiler: str, device: str) -> dict[str, float]:
    """Milliseconds of a step, and the loss after some beside eager's."""
    losses = []
    for chosen in ("eager", compiler):
        torch.manual_seed(0)
        model, *batch = CASES[case](tiny=device == "cpu")
        model.to(device)
        x, target = (tensor.to(device) for tensor in batch)
        step: Any = step_of(model, chosen)
        losses.append([float(step(x, target)) for _ in range(6)])
    alone, flow = milliseconds(lambda: step(x, target), device)
    error = max(abs(a - b) / abs(a) for a, b in zip(*losses, strict=True))
    return {"ms": alone, "ms one after another": flow, "difference of losses from eager": error}


if __name__ == "__main__":
    run_command("benchmarks.gpu_training_steps", __doc__, CASES, COMPILERS, measure)

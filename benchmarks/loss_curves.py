"""Loss curves of training with weft beside eager: ``python -m benchmarks.loss_curves [--steps N]``.

A small GPT-2 on synthetic text (a random grammar: each token depends on the two before it) and a ResNet with
BatchNorm and dropout on synthetic images take steps of AdamW, in eager PyTorch and compiled, from the same
weights, data and random numbers.  Writes ``loss_curves.svg`` beside this file and prints one line of JSON
a model: the loss at the first and last steps and the largest difference between the two curves.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import weft
from torch import Tensor, nn

from .svg import Curve, line_chart

VOCABULARY, LENGTH = 64, 48


class ResidualBlock(nn.Module):
    """Two convolutions with BatchNorm, and what goes past them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(3))
        self.past = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)), inplace=True)
        return F.relu(self.norms[1](self.second(y)) + self.norms[2](self.past(x)))


class ResNet(nn.Module):
    """Gives the mean cross-entropy of images' classes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            *(ResidualBlock(*s) for s in ((3, 8, 1), (8, 16, 2), (16, 16, 2)))
        )
        self.dropout, self.head = nn.Dropout(0.2), nn.Linear(16, 10)

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        features = self.dropout(self.blocks(images).mean((2, 3)))
        return F.cross_entropy(self.head(features), classes)


class LanguageModel(nn.Module):
    """GPT-2 of two layers with its dropout; gives the mean cross-entropy of each next token."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        self.model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY,
                n_positions=LENGTH,
                n_embd=64,
                n_layer=2,
                n_head=4,
                bos_token_id=0,
                eos_token_id=0,
            )
        )

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.model(tokens, use_cache=False).logits[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def text() -> Iterator[tuple[Tensor]]:
    """Batches of 8 sequences of a random grammar."""
    generator = torch.Generator().manual_seed(1)
    likely = torch.randint(0, VOCABULARY, (VOCABULARY, VOCABULARY, 2), generator=generator)
    while True:
        tokens = torch.randint(0, VOCABULARY, (8, LENGTH), generator=generator)
        for position in range(2, LENGTH):
            choice = torch.randint(0, 2, (8,), generator=generator)
            before = tokens[:, position - 2] % 4, tokens[:, position - 1]
            tokens[:, position] = likely[(*before, choice)]
        yield (tokens,)


def images() -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of 16 noisy images, each of its class's pattern."""
    generator = torch.Generator().manual_seed(1)
    patterns = torch.randn(10, 3, 16, 16, generator=generator)
    while True:
        classes = torch.randint(0, 10, (16,), generator=generator)
        noise = 2 * torch.randn(16, 3, 16, 16, generator=generator)
        yield patterns[classes] + noise, classes


@dataclass(frozen=True)
class Case:
    """A model, its data, and the learning rate of AdamW."""

    build: Callable[[], nn.Module]
    batches: Callable[[], Iterator[tuple[Any, ...]]]
    learning_rate: float


CASES = {
    "GPT-2, two layers": Case(LanguageModel, text, 2e-3),
    "ResNet with BatchNorm and dropout": Case(ResNet, images, 3e-3),
}


def train(case: Case, model: nn.Module, called: Any, steps: int) -> list[float]:
    """The loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), case.learning_rate)
    torch.manual_seed(2)
    losses = []
    for _, batch in zip(range(steps), case.batches(), strict=False):
        loss = called(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".svg"))
    options = parser.parse_args()
    charts = []
    for name, case in CASES.items():
        torch.manual_seed(0)
        plain = case.build()
        model = copy.deepcopy(plain)
        eager = train(case, plain, plain, options.steps)
        compiled = train(case, model, weft.compile(model, fullgraph=True), options.steps)
        apart = max(abs(a - b) for a, b in zip(eager, compiled, strict=True))
        result = {"first": eager[0], "eager": eager[-1], "weft": compiled[-1], "apart": apart}
        print(json.dumps({"model": name, "steps": options.steps, **result}))
        charts.append(
            (name, (Curve("eager", eager, "#999", 5.0), Curve("weft", compiled, "#c22", 1.2)))
        )
    options.output.write_text(line_chart(charts, "step", "loss"))


if __name__ == "__main__":
    main()

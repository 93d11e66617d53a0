"""Peak memory and time of a training step: ``python -m benchmarks.training [--seconds N]``.

A transformer of twelve layers takes steps of AdamW under eager PyTorch, torch.compile and weft, each in
processes of its own, one after another.  ``peak_mib`` is the most memory that the process takes during a
step above what it takes between steps (activations, gradients, temporaries); it is measured in a process
whose C library gives every block over 64 KiB back when it is freed.  ``step_ms`` is the median of a step,
``step_processor_ms`` that of the processor's time for it, which other jobs on the machine disturb less.
Prints one line of JSON a measurement.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .measure import compile_with, median_ms

COMPILERS = ("eager", "torch.compile", "weft")
LAYERS, WIDTH, HEADS, VOCABULARY, BATCH, LENGTH = 12, 128, 4, 512, 4, 128


class Block(nn.Module):
    """A block of GPT-2's form, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in self.query_key_value(self.first(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.projection(mixed.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.down(F.gelu(self.up(self.second(x)))))


class LanguageModel(nn.Module):
    """Gives the mean cross-entropy of predicting each token from those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.last = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.last(x))[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def measure(compiler: str, what: str, seconds: float) -> dict[str, Any]:
    """One process's measurement: peak memory, or first step and median time of a step; the loss."""
    torch.manual_seed(0)
    model = LanguageModel()
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    compiled = compile_with(compiler, model)

    def step() -> Tensor:
        loss: Tensor = compiled(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    start = time.perf_counter()
    step()
    first = time.perf_counter() - start
    losses = [step().item() for _ in range(3)]
    result: dict[str, Any] = {"compiler": compiler, "loss_after_4_steps": losses[-1]}
    if what == "memory":
        return {**result, "peak_mib": max(_peak_bytes(step) for _ in range(3)) / 2**20}
    steady = median_ms(step, seconds)
    processor = []
    for _ in range(10):
        start = time.process_time()
        step()
        processor.append((time.process_time() - start) * 1e3)
    times = {"step_ms": steady, "step_processor_ms": statistics.median(processor)}
    return {**result, "first_step_seconds": first, **times}


def _peak_bytes(step: Any) -> int:
    """The most resident memory during ``step``, above that before it; memory freed earlier is given back."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _status_bytes("VmRSS")
    step()
    return _status_bytes("VmHWM") - before


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiler", choices=COMPILERS, help="measure in this process")
    parser.add_argument("--what", choices=("memory", "time"), default="time")
    parser.add_argument("--seconds", type=float, default=10.0, help="of timing, each")
    arguments = parser.parse_args()
    if arguments.compiler:
        print(json.dumps(measure(arguments.compiler, arguments.what, arguments.seconds)))
        return
    for compiler, what in itertools.product(COMPILERS, ("memory", "time")):
        command = [sys.executable, "-m", "benchmarks.training", "--compiler", compiler]
        command += ["--what", what, "--seconds", str(arguments.seconds)]
        given_back = {"MALLOC_MMAP_THRESHOLD_": "65536"} if what == "memory" else {}
        subprocess.run(command, check=True, env={**os.environ, **given_back})


if __name__ == "__main__":
    main()

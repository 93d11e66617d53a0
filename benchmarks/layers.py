"""First calls by the number of layers, on the CPU: ``python -m benchmarks.layers [--train] [MODEL ...]``.

Each process builds a small model, of transformers or of plain PyTorch, with empty caches and takes the
processor time of its first compiled call, weft's own and its compilers' (g++); a process after it finds what
that one left.  Blocks that are alike are to cost little: the goal is that 32 layers take at most 1.3 times
what 4 take, and 0.5 s with filled caches.  ``--share`` compiles them by the block (``share_blocks``),
``--peer`` is torch.compile.  Rounds go through the numbers of layers in turn; medians count.  Python finds
its bytecode files: a process before the rounds leaves them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.warm_start import run_twice

LAYERS = (4, 16, 32)
MODELS = ("plain", "llama", "qwen", "gpt2", "bert")
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "vocab_size": 99,
}


class Block(torch.nn.Module):
    """A layer of a transformer as one writes it by hand."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(width) for _ in range(2)])
        self.into = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Causal attention of ``x``, (batch, length, width)."""
        batch, length, width = x.shape
        split = self.into(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norms[0](x))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Plain(torch.nn.Module):
    """A decoder without a library, whose process has not loaded torch's compiler."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        width, heads = SMALL["hidden_size"], SMALL["num_attention_heads"]
        self.embedding = torch.nn.Embedding(SMALL["vocab_size"], width)
        self.blocks = torch.nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.head = torch.nn.Linear(width, SMALL["vocab_size"])

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor]:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return (self.head(x),)


def build(name: str, layers: int) -> torch.nn.Module:
    """A decoder or an encoder of that many layers, 64 wide."""
    if name == "plain":
        return Plain(layers)
    import transformers

    given: dict[str, Any] = {"num_hidden_layers": layers, **SMALL}
    if name == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**given))
    if name == "qwen":
        config = transformers.Qwen2Config(num_key_value_heads=2, **given)
        return transformers.Qwen2ForCausalLM(config)
    if name == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**given))
    return transformers.BertModel(transformers.BertConfig(**given))


def first_call(name: str, layers: int, chosen: argparse.Namespace) -> tuple[float, float]:
    """Seconds of the first call, with backward for a step of training: its own and its compilers'."""
    import weft as weft

    train: bool = chosen.train
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = build(name, layers).train(train)
    tokens = torch.randint(0, SMALL["vocab_size"], (2, 32))
    compiled: Any = (
        torch.compile(model)
        if chosen.peer
        else weft.compile(model, options={"share_blocks": chosen.share})
    )
    before = os.times()
    with torch.set_grad_enabled(train):
        result = compiled(tokens)[0]
        if train:
            result.square().mean().backward()
    after = os.times()
    own = after.user + after.system - before.user - before.system
    return own, (after.children_user + after.children_system) - (
        before.children_user + before.children_system
    )


def cold_and_warm(
    chosen: argparse.Namespace, name: str, layers: int, bytecode: str
) -> tuple[float, float, float]:
    """The same in a process with empty caches, and the sum of both in one that finds what it left."""
    command = [sys.executable, "-m", "benchmarks.layers", name, "--worker", str(layers)]
    options = {"train": chosen.train, "share": chosen.share, "peer": chosen.peer}
    command += [f"--{option}" for option, given in options.items() if given]
    with tempfile.TemporaryDirectory() as folder:
        cold, warm = run_twice(command, folder, bytecode, TORCHINDUCTOR_CACHE_DIR=folder)
    return *cold, sum(warm)


def main() -> None:
    """Measure and print a row of a Markdown table for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--train", action="store_true", help="a step of training")
    parser.add_argument(
        "--share", action="store_true", help="one program for blocks that are alike"
    )
    parser.add_argument("--peer", action="store_true", help="torch.compile in weft's place")
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        print(json.dumps(first_call(chosen.models[0], chosen.worker, chosen)))
        return
    with tempfile.TemporaryDirectory() as bytecode:
        print_table(chosen, bytecode)


def print_table(chosen: argparse.Namespace, bytecode: str) -> None:
    """Print the table; ``bytecode`` is an empty folder for Python's files."""
    columns = " | ".join(f"{layers} layers, s (compilers), filled" for layers in chosen.layers)
    print(f"| model | {columns} | last over first |\n|---|{'---|' * (len(chosen.layers) + 1)}")
    for name in chosen.models:
        cold_and_warm(chosen, name, chosen.layers[0], bytecode)
        rounds = [
            [cold_and_warm(chosen, name, layers, bytecode) for layers in chosen.layers]
            for _ in range(chosen.rounds)
        ]
        cells, totals = [], []
        for column in zip(*rounds, strict=True):
            totals.append(statistics.median(own + compilers for own, compilers, _ in column))
            compilers, warm = (statistics.median(row[place] for row in column) for place in (1, 2))
            cells.append(f"{totals[-1]:.2f} ({compilers:.2f}), {warm:.2f}")
        print(f"| {name} | {' | '.join(cells)} | {totals[-1] / totals[0]:.2f} |", flush=True)


if __name__ == "__main__":
    main()

"""First calls by the number of layers, on the CPU: ``python -m benchmarks.layers [--train] [MODEL ...]``.

Each process builds a small model of transformers with empty caches and takes the processor time of its
first compiled call, weft's own and its compilers' (g++).  Blocks that are alike are to cost little: the goal
is that 32 layers take at most 1.3 times what 4 take.  ``--share`` compiles them by the block
(``share_blocks``).  Rounds go through the numbers of layers in turn; medians count.  Python finds its
bytecode files: a process before the rounds leaves them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.warm_start import UNSET

LAYERS = (4, 16, 32)
MODELS = ("llama", "bert")
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "vocab_size": 99,
}


def build(name: str, layers: int) -> torch.nn.Module:
    """A decoder or an encoder of that many layers, 64 wide."""
    import transformers

    if name == "llama":
        config: Any = transformers.LlamaConfig(num_hidden_layers=layers, **SMALL)
        return transformers.LlamaForCausalLM(config)
    return transformers.BertModel(transformers.BertConfig(num_hidden_layers=layers, **SMALL))


def first_call(name: str, layers: int, train: bool, share: bool) -> tuple[float, float]:
    """Seconds of the first call, with backward for a step of training: weft's own and its compilers'."""
    import weft as weft

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = build(name, layers).train(train)
    tokens = torch.randint(0, SMALL["vocab_size"], (2, 32))
    compiled = weft.compile(model, options={"share_blocks": share})
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


def measured(
    chosen: argparse.Namespace, name: str, layers: int, bytecode: str
) -> tuple[float, float]:
    """The same in a process of its own, with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {key: value for key, value in os.environ.items() if key not in UNSET}
        environment |= {"WEFT_CACHE_DIR": folder, "PYTHONPYCACHEPREFIX": bytecode}
        command = [sys.executable, "-m", "benchmarks.layers", name, "--worker", str(layers)]
        output = subprocess.run(
            command + ["--train"] * chosen.train + ["--share"] * chosen.share,
            env=environment,
            cwd=Path(__file__).parent.parent,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    own, compilers = json.loads(output.splitlines()[-1])
    return own, compilers


def main() -> None:
    """Measure and print a row of a Markdown table for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--train", action="store_true", help="a step of training")
    parser.add_argument(
        "--share", action="store_true", help="one program for blocks that are alike"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        print(json.dumps(first_call(chosen.models[0], chosen.worker, chosen.train, chosen.share)))
        return
    with tempfile.TemporaryDirectory() as bytecode:
        print_table(chosen, bytecode)


def print_table(chosen: argparse.Namespace, bytecode: str) -> None:
    """Print the table; ``bytecode`` is an empty folder for Python's files."""
    columns = " | ".join(f"{layers} layers, s (g++)" for layers in LAYERS)
    print(f"| model | {columns} | 32 over 4 |\n|---|{'---|' * (len(LAYERS) + 1)}")
    for name in chosen.models:
        measured(chosen, name, LAYERS[0], bytecode)
        rounds = [
            [measured(chosen, name, layers, bytecode) for layers in LAYERS]
            for _ in range(chosen.rounds)
        ]
        totals = [statistics.median(map(sum, column)) for column in zip(*rounds, strict=True)]
        compilers = [
            statistics.median(seconds for _, seconds in column)
            for column in zip(*rounds, strict=True)
        ]
        cells = [f"{t:.2f} ({c:.2f})" for t, c in zip(totals, compilers, strict=True)]
        print(f"| {name} | {' | '.join(cells)} | {totals[-1] / totals[0]:.2f} |", flush=True)


if __name__ == "__main__":
    main()

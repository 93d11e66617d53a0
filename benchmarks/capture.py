"""Capture alone, with a backend that does nothing: ``python -m benchmarks.capture [--rounds N]``.

Weft's capture beside torch.compile's on BERT-base and on a GPT-2 of 48 layers (narrow: the width costs
capture nothing).  One process a measurement, the two in turn within each round, medians over the rounds.
Seconds are of the processor, all threads of the process, so that other jobs of the machine count little; wall
seconds are shown beside.  Each process runs the model eagerly first, then compiles and calls it once; both
compilers are told that sizes are fixed and breaks are errors.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.run import machine

COMPILERS = ("torch.compile", "weft")


def _bert() -> tuple[torch.nn.Module, dict[str, Any]]:
    import transformers

    model = transformers.BertModel(transformers.BertConfig())
    tokens = torch.randint(0, 90, (2, 16))
    return model, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def _gpt2() -> tuple[torch.nn.Module, dict[str, Any]]:
    import transformers

    size = {"n_layer": 48, "n_embd": 64, "n_head": 4, "vocab_size": 99}
    config = transformers.GPT2Config(**size, bos_token_id=1, eos_token_id=1)
    return transformers.GPT2LMHeadModel(config), {"input_ids": torch.randint(0, 90, (2, 16))}


MODELS = {"BERT-base": _bert, "GPT-2, 48 layers": _gpt2}


def _graph_itself(graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    return graph_module.forward


def measure(name: str, compiler: str) -> dict[str, float]:
    """Processor and wall seconds of the first call, and for weft the instructions evaluated in it."""
    model, inputs = MODELS[name]()
    model.eval()
    instructions = 0
    with torch.no_grad():
        model(**inputs)
        if compiler == "weft":
            import weft

            # the import is not capture
            importlib.import_module("weft_bytecode_capture.symbolic.root_frame")
            log = weft.CompileLog()
            compiled = weft.compile(model, backend=_graph_itself, fullgraph=True, dynamic=False)
            with weft.observe(log):
                seconds = _timed(compiled, inputs)
            instructions = sum(report.instruction_count for report in log.conversions)
        else:
            importlib.import_module("torch._dynamo")  # likewise
            compiled = torch.compile(model, backend=_graph_itself, fullgraph=True, dynamic=False)
            seconds = _timed(compiled, inputs)
    return {**seconds, "instructions": instructions}


def _timed(function: Callable[..., Any], inputs: dict[str, Any]) -> dict[str, float]:
    wall, processor = time.perf_counter(), time.process_time()
    function(**inputs)
    return {"wall": time.perf_counter() - wall, "seconds": time.process_time() - processor}


def _in_a_process(name: str, compiler: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.capture", "--one", name, compiler]
    folder = Path(__file__).parent.parent
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(f"{compiler} failed on {name}:\n{process.stderr[-3000:]}")
    result: dict[str, float] = json.loads(process.stdout.strip().splitlines()[-1])
    return result


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "COMPILER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one)))
        return
    print(machine() + "\n")
    print("| model | torch.compile s | weft s | ratio | wall s | instructions | a second |")
    print("|---|---|---|---|---|---|---|")
    for name in MODELS:
        rounds = [
            [_in_a_process(name, compiler) for compiler in COMPILERS] for _ in range(options.rounds)
        ]
        peer, own = (statistics.median(row[i]["seconds"] for row in rounds) for i in (0, 1))
        walls = [statistics.median(row[i]["wall"] for row in rounds) for i in (0, 1)]
        ratios = [row[1]["seconds"] / row[0]["seconds"] for row in rounds]
        count = int(rounds[0][1]["instructions"])
        print(
            f"| {name} | {peer:.2f} | {own:.2f} | {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}) | {walls[0]:.1f}, {walls[1]:.1f} "
            f"| {count:,} | {count / own:,.0f} |"
        )


if __name__ == "__main__":
    main()

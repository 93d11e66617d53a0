"""Data parallel training on several GPUs: ``python -m benchmarks.gpu_data_parallel``.

One process a GPU, through NCCL, trains a language model of 1.1 billion parameters in bfloat16 with AdamW,
4 x 2048 tokens a process and step: sharded by FSDP2 with each block compiled (``blocks``), the same compiled
as one module (``whole``), or in copies under DistributedDataParallel (``ddp``).  Each compiler and way has
processes of its own, one after another.  Six steps warm up; ``first_ms`` is the wall time of the first of
them on rank 0.  Of the steps behind them ``step_ms`` is the median, and ``peak_gib`` the most memory that
the GPU's allocator had handed out at once.  Prints one line of JSON a measurement; with ``--trace FOLDER``
also writes there what torch's profiler sees of three steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .gpu_decode import rotated
from .measure import compile_with

COMPILERS = ("eager", "torch.compile", "weft")
WAYS = ("blocks", "whole", "ddp")
WIDTH, INNER, HEADS, LAYERS, VOCABULARY = 2048, 8192, 16, 16, 32000
BATCH, LENGTH, WARM_UP_STEPS, STEPS = 4, 2048, 6, 20


class Block(nn.Module):
    """Attention and a gated feed-forward layer, each behind its norm."""

    def __init__(self, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv, self.out = (nn.Linear(width, n * width, bias=False) for n in (3, 1))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        parts = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in parts)
        q, k = rotated(q, cosine, sine), rotated(k, cosine, sine)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class LanguageModel(nn.Module):
    """Blocks between an embedding and a linear layer, and the loss of predicting the next token."""

    def __init__(self, layers: int, width: int, inner: int, heads: int, words: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, inner, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)
        steps = 10000.0 ** (-torch.arange(0, width // heads, 2).float() / (width // heads))
        self.register_buffer("steps", steps, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        place = torch.arange(tokens.shape[1], device=tokens.device).float()
        angles = torch.outer(place, self.steps.float()).repeat(1, 2)
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cosine, sine)
        scores = self.head(self.norm(x))[:, :-1]
        return F.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())


def _prepared(model: LanguageModel, compiler: str, way: str) -> Any:
    """The model, spread over the processes and compiled."""
    if way == "ddp":
        return compile_with(compiler, DistributedDataParallel(model, gradient_as_bucket_view=True))
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
        if way == "blocks":
            block.forward = compile_with(compiler, block.forward)
    fully_shard(model, mesh=mesh)
    return model if way == "blocks" else compile_with(compiler, model)


def measure(rank: int, store: str, options: argparse.Namespace) -> None:
    """One process's part; rank 0 prints."""
    device = options.device
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=options.processes
    )
    torch.manual_seed(0)
    sizes = (
        options.layers,
        *((64, 128, 2, 500) if options.small else (WIDTH, INNER, HEADS, VOCABULARY)),
    )
    with torch.device(device):
        model = LanguageModel(*sizes)
    model.to(torch.bfloat16)
    trained = _prepared(model, options.compiler, options.way)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    torch.manual_seed(rank)
    shape = (2, 16) if options.small else (BATCH, LENGTH)
    tokens = torch.randint(0, sizes[-1], shape, device=device)

    def step() -> float:
        start = time.perf_counter()
        loss = trained(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        times.append((time.perf_counter() - start) * 1e3)
        return value

    times: list[float] = []
    losses = [step() for _ in range(WARM_UP_STEPS)]
    first = times[0]
    times.clear()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(options.steps):
        step()
    result = {"way": options.way, "compiler": options.compiler, "step_ms": statistics.median(times)}
    result |= {"first_ms": first, "loss": losses[-1]}
    if device == "cuda":
        result["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    if options.trace:
        _trace(step, Path(options.trace) / f"{options.way}-{options.compiler}-{rank}", rank)
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # what the communication leaves behind may abort the interpreter's own way out


def _trace(step: Any, path: Path, rank: int) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(3):
            step()
    if rank == 0:
        table = seen.key_averages().table(sort_by="self_device_time_total", row_limit=45)
        path.with_suffix(".txt").write_text(table)
        seen.export_chrome_trace(f"{path}.json.gz")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compilers", nargs="+", choices=COMPILERS, default=COMPILERS)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--seconds", type=float, default=150.0, help="for one measurement at most")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a tiny model, to try the script")
    parser.add_argument("--trace", help="a folder for profiles of three steps")
    parser.add_argument("--compiler", choices=COMPILERS, help=argparse.SUPPRESS)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compiler:
        with tempfile.TemporaryDirectory() as folder:
            arguments = (str(Path(folder) / "store"), options)
            mp.spawn(measure, arguments, nprocs=options.processes)
        return
    for way in options.ways:
        for compiler in options.compilers:
            command = [sys.executable, "-m", __spec__.name, *sys.argv[1:]]
            command += ["--compiler", compiler, "--way", way]
            try:
                subprocess.run(command, timeout=options.seconds, check=False)
            except subprocess.TimeoutExpired:
                print(json.dumps({"way": way, "compiler": compiler, "step_ms": None}), flush=True)


if __name__ == "__main__":
    main()

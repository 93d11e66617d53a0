"""Data parallel training on two processes: ``python -m benchmarks.data_parallel [--steps N] [--shard]``.

Two processes of one thread each talk through gloo and take steps of a transformer under eager PyTorch,
torch.compile and weft, one after another.  ``step_ms`` is the least of the steps' wall time on rank 0;
``alone_ms`` the same without communication (``no_sync``), so that their difference is what communication
costs that backward does not hide.  With ``--shard`` its blocks are sharded by FSDP2 and each is compiled;
there ``alone_ms`` is missing.  Prints one line of JSON a compiler.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .measure import compile_with
from .training import COMPILERS, VOCABULARY, LanguageModel

BATCH, LENGTH, BUCKET_MEBIBYTES = 2, 64, 1
WARM_UP = 4


def measure(rank: int, store: str, compiler: str, steps: int, shard: bool) -> None:
    """One process's part; rank 0 prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = LanguageModel()
    trained = _sharded(model, compiler) if shard else _replicated(model)
    compiled = trained if shard else compile_with(compiler, trained)
    torch.manual_seed(rank)
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    result: dict[str, Any] = {"compiler": compiler, "shard": shard}
    result["step_ms"] = _least_ms(compiled, model, tokens, steps, contextlib.nullcontext)
    if not shard:
        result["alone_ms"] = _least_ms(compiled, model, tokens, steps, trained.no_sync)
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    os._exit(0)  # threads that gloo leaves behind may abort the interpreter's own way out


def _replicated(model: nn.Module) -> DistributedDataParallel:
    return DistributedDataParallel(
        model, bucket_cap_mb=BUCKET_MEBIBYTES, gradient_as_bucket_view=True
    )


def _sharded(model: LanguageModel, compiler: str) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
        block.forward = compile_with(compiler, block.forward)
    fully_shard(model, mesh=mesh)
    return model


def _least_ms(compiled: Any, model: nn.Module, tokens: Any, steps: int, around: Any) -> float:
    times = []
    for number in range(WARM_UP + steps):
        dist.barrier()
        start = time.perf_counter()
        with around():
            compiled(tokens).backward()
        if number >= WARM_UP:
            times.append((time.perf_counter() - start) * 1e3)
        model.zero_grad(set_to_none=True)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--shard", action="store_true")
    parser.add_argument("--compilers", nargs="+", choices=COMPILERS, default=COMPILERS)
    options = parser.parse_args()
    for compiler in options.compilers:
        with tempfile.TemporaryDirectory() as folder:
            store = str(Path(folder) / "store")
            mp.spawn(measure, (store, compiler, options.steps, options.shard), nprocs=2)


if __name__ == "__main__":
    main()

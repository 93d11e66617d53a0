"""Data parallel training on two processes: ``python -m benchmarks.data_parallel [--shard] [--seconds N]``.

Two processes of one thread each talk through gloo.  Each holds a transformer three times, under eager
PyTorch, torch.compile and weft, and these take steps in turn, so that other jobs on the machine meet all
three alike.  ``step_ms`` is the median of the steps' wall time on rank 0, ``over_eager`` and
``over_torch_compile`` the medians of the ratios to the steps of the same round (above 1: faster than that
one).  ``alone_ms`` is a step without communication (``no_sync``), so that the difference is what backward
does not hide of it.  With ``--shard`` the blocks are sharded by FSDP2 and each is compiled; there
``alone_ms`` is missing.  Prints one line of JSON a compiler.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
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
OTHERS = ("eager", "torch.compile")


Step = Callable[[Any], None]
"""A step of training within a context."""


def measure(
    rank: int, store: str, compilers: Sequence[str], seconds: float, shard: bool, failed: Any
) -> None:
    """One process's part; rank 0 prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        trained = {compiler: _trained(compiler, rank, shard) for compiler in compilers}
        together = _times(trained, seconds, lambda model: contextlib.nullcontext())
        alone = {} if shard else _times(trained, seconds, lambda model: model.no_sync())
        for compiler in compilers if rank == 0 else ():
            result: dict[str, Any] = {"compiler": compiler, "shard": shard}
            result["rounds"] = len(together[compiler])
            result["step_ms"] = statistics.median(together[compiler])
            for other in OTHERS:
                if other in compilers:
                    ratios = _ratios(together[other], together[compiler])
                    result[f"over_{other.replace('.', '_')}"] = ratios
            if alone:
                result["alone_ms"] = statistics.median(alone[compiler])
            print(json.dumps(result), flush=True)
        dist.barrier()
    except BaseException:
        traceback.print_exc()
        failed.value = 1
    finally:
        sys.stdout.flush()
        os._exit(0)  # threads that gloo leaves behind may abort the interpreter's own way out


def _trained(compiler: str, rank: int, shard: bool) -> tuple[Any, Step]:
    """A model, spread over the processes, and its step."""
    torch.manual_seed(0)
    model = LanguageModel()
    trained = _sharded(model, compiler) if shard else _replicated(model)
    compiled = trained if shard else compile_with(compiler, trained)
    torch.manual_seed(rank)
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH))

    def step(around: Any) -> None:
        with around:
            compiled(tokens).backward()
        model.zero_grad(set_to_none=True)

    return trained, step


def _times(
    trained: Mapping[str, tuple[Any, Step]], seconds: float, around: Callable[[Any], Any]
) -> dict[str, list[float]]:
    """Milliseconds of each compiler's steps, round by round, for ``seconds`` after some to warm up."""
    times: dict[str, list[float]] = {compiler: [] for compiler in trained}
    for model, step in trained.values():
        for _ in range(WARM_UP):
            step(around(model))
    end = time.perf_counter() + seconds
    going_on = torch.ones(())
    while going_on:
        for compiler, (model, step) in trained.items():
            dist.barrier()
            start = time.perf_counter()
            step(around(model))
            times[compiler].append((time.perf_counter() - start) * 1e3)
        going_on = torch.tensor(float(time.perf_counter() < end))
        dist.broadcast(going_on, 0)  # both processes take as many steps
    return times


def _ratios(of: Sequence[float], to: Sequence[float]) -> float:
    """The median of the ratios, round by round."""
    return statistics.median(a / b for a, b in zip(of, to, strict=True))


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of steps, each with and without"
    )
    parser.add_argument("--shard", action="store_true")
    parser.add_argument("--compilers", nargs="+", choices=COMPILERS, default=COMPILERS)
    options = parser.parse_args()
    failed = mp.get_context("spawn").Value("i", 0)
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        arguments = (store, tuple(options.compilers), options.seconds, options.shard, failed)
        mp.spawn(measure, arguments, nprocs=2)
    if failed.value:
        raise SystemExit("a process failed")


if __name__ == "__main__":
    main()

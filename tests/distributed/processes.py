"""Runs checks in two processes that talk through gloo, or through NCCL with a GPU each."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import weft

WORLD_SIZE = 2
_PATIENCE = timedelta(seconds=120)
"""How long a process waits for another one in a collective: a test that would hang fails."""

Check = Callable[[int], None]


def _work(rank: int, store: str, backend: str, checks: tuple[Check, ...]) -> None:
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend,
        init_method=f"file://{store}",
        timeout=_PATIENCE,
        rank=rank,
        world_size=WORLD_SIZE,
    )
    for check in checks:
        torch.manual_seed(0)
        weft.reset()
        check(rank)
    dist.barrier()
    dist.destroy_process_group()  # after a failure it would wait for the other process
    os._exit(0)  # threads that gloo leaves behind may abort the interpreter's own way out


def run(folder: Path, *checks: Check, backend: str = "gloo") -> None:
    """Call each of ``checks``, functions of a module, with the rank; raises what one of them raises."""
    mp.spawn(_work, (str(folder / "store"), backend, checks), nprocs=WORLD_SIZE)

"""What the processes of ``test_two_processes.py`` check: compiled modules beside plain ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import weft
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from weft.report import CompileLog, observe


class Partial(nn.Module):
    """Leaves one of its layers out."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.used(x)
        return result


def device() -> torch.device:
    """This process's: a GPU of its own if processes talk through NCCL."""
    if torch.distributed.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def network() -> nn.Module:
    layers = nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)
    return nn.Sequential(*layers).to(device())


def blocks() -> nn.Module:
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)) for _ in range(3))
    ).to(device())


def partial() -> nn.Module:
    return Partial().to(device())


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device())


def step(modules: tuple[nn.Module, nn.Module], rank: int, number: int) -> None:
    """One step of SGD of each, on data of this rank's own."""
    x = random(10 * number + rank, 6, 8)
    for module in modules:
        module.zero_grad(set_to_none=True)
        module(x).pow(2).mean().backward()


def update(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad


def check_data_parallel(
    rank: int, build: Callable[[], nn.Module], inside: bool, **options: Any
) -> None:
    plain = build()
    other = copy.deepcopy(plain)
    first = DistributedDataParallel(plain, **options)
    if inside:
        second: Any = DistributedDataParallel(weft.compile(other), **options)
    else:
        second = weft.compile(DistributedDataParallel(other, **options))
    for number in range(3):
        step((first, second), rank, number)
        for want, got in zip(plain.parameters(), other.parameters(), strict=True):
            if want.grad is None:
                assert got.grad is None or not got.grad.any()
            else:
                torch.testing.assert_close(got.grad, want.grad)
        update(plain)
        update(other)


def compiled_inside(rank: int) -> None:
    check_data_parallel(rank, network, True)


def compiled_around(rank: int) -> None:
    check_data_parallel(rank, network, False)


def static_graph(rank: int) -> None:
    check_data_parallel(rank, network, True, static_graph=True)
    check_data_parallel(rank, network, False, static_graph=True)


def unused_parameters(rank: int) -> None:
    check_data_parallel(rank, partial, True, find_unused_parameters=True)


def small_buckets(rank: int) -> None:
    check_data_parallel(rank, network, True, bucket_cap_mb=0.0003, gradient_as_bucket_view=True)


def fully_sharded(rank: int) -> None:
    """Blocks of FSDP2, each compiled: one graph a block, compiled once."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device().type, (2,))
    plain = blocks()
    models = plain, copy.deepcopy(plain)
    for model, compiles in zip(models, (False, True), strict=True):
        for block in model:
            fully_shard(block, mesh=mesh)
            if compiles:
                block.forward = weft.compile(block.forward, fullgraph=True)
        fully_shard(model, mesh=mesh)
    for number in range(3):
        with observe(CompileLog()) as log:
            step(models, rank, number)
        assert len(log.graphs) == (3 if number == 0 else 0)
        for want, got in zip(*(model.parameters() for model in models), strict=True):
            torch.testing.assert_close(got.grad.to_local(), want.grad.to_local())
        for model in models:
            update(model)


def collectives(rank: int) -> None:
    """Operators of communication in one graph with what surrounds them, gradients too."""
    operators = torch.ops._c10d_functional
    differentiable = torch._C._dispatch_has_kernel_for_dispatch_key(
        "_c10d_functional::all_reduce", "Autograd"
    )  # not in torch 2.11, where eager's gradients of these operators are undefined
    group = torch.distributed.group.WORLD.group_name  # type: ignore[union-attr]

    def program(x: Tensor, y: Tensor) -> Tensor:
        first = operators.wait_tensor(operators.all_reduce(x * 2, "sum", group))
        second = operators.all_gather_into_tensor(y.cos(), 2, group)
        local = (x @ y).sin() + y
        return (first + local).sum() * operators.wait_tensor(second).mean()

    compiled = weft.compile(program, fullgraph=True)
    inputs = [random(rank, 16, 16) for _ in range(2)]
    for gradients in (False, True) if differentiable else (False,):
        x, y = (value.clone().requires_grad_(gradients) for value in inputs)
        for _ in range(5):
            want, got = program(x, y), compiled(x, y)
            torch.testing.assert_close(got, want)
            if gradients:
                torch.testing.assert_close(
                    torch.autograd.grad(got, [x, y]), torch.autograd.grad(want, [x, y])
                )


def overlap(rank: int) -> None:
    """The first bucket is on its way before the gradients of the last one are computed."""
    plain = blocks()
    other = copy.deepcopy(plain)
    events: list[str] = []

    def sends(state, bucket):  # torch takes annotations of a hook only if they are no strings
        events.append(f"bucket {bucket.index()}")
        return allreduce_hook(torch.distributed.group.WORLD, bucket)

    first = DistributedDataParallel(plain, bucket_cap_mb=0.0003)
    second = DistributedDataParallel(weft.compile(other, fullgraph=True), bucket_cap_mb=0.0003)
    second.register_comm_hook(None, sends)
    for number in range(3):
        step((first, second), rank, number)
        for want, got in zip(plain.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(got.grad, want.grad)
    events.clear()
    other[0][0].weight.register_hook(lambda gradient: events.append("first layer"))
    step((first, second), rank, 3)
    assert events.index("bucket 0") < events.index("first layer"), events

"""What the processes of ``test_two_processes.py`` check: programs that communicate, compiled beside eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import weft
from torch import Tensor
from weft.report import CompileLog, observe

from tests.distributed.checks import device, random

Program = Callable[[Tensor], Any]


def all_reduce(x: Tensor) -> Tensor:
    return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


def all_reduce_by_name(x: Tensor) -> Tensor:
    group = dist.group.WORLD
    assert group is not None
    return functional.all_reduce(x * 2, "SUM", group.group_name) + 1


def all_gather_rows(x: Tensor) -> Tensor:
    return functional.all_gather_tensor(x * 2, 0, dist.group.WORLD).sin()


def all_gather_columns(x: Tensor) -> Tensor:
    return functional.all_gather_tensor(x * 2, 1, dist.group.WORLD).sin()


def reduce_scatter_rows(x: Tensor) -> Tensor:
    return functional.reduce_scatter_tensor(x * 2, "sum", 0, dist.group.WORLD).sin()


def reduce_scatter_columns(x: Tensor) -> Tensor:
    return functional.reduce_scatter_tensor(x * 2, "sum", 1, dist.group.WORLD).sin()


def exchange(x: Tensor) -> Tensor:
    return functional.all_to_all_single(x * 2, None, None, dist.group.WORLD).sin()


def exchange_of_sizes(x: Tensor) -> Tensor:
    return functional.all_to_all_single(x * 2, [2, 2], [2, 2], dist.group.WORLD).sin()


def coalesced(x: Tensor) -> Tensor:
    first, second = functional.all_reduce_coalesced([x * 2, x + 1], "sum", dist.group.WORLD)
    return first.sin() + second


def waited_for(x: Tensor) -> Tensor:
    """Which class the result has differs: a compiled program's is plain."""
    result = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
    if isinstance(result, functional.AsyncCollectiveTensor):
        result = result.wait()
    return result.cos()


def returned(x: Tensor) -> Tensor:
    return functional.all_reduce(x * 2, "sum", dist.group.WORLD)


def operators(x: Tensor) -> Tensor:
    group = dist.group.WORLD
    assert group is not None
    started = torch.ops._c10d_functional.all_reduce(x, "sum", group.group_name)
    return functional.wait_tensor(started) + x.exp()


def several(x: Tensor) -> Tensor:
    """One after another, each of what the one before gave."""
    y = functional.all_gather_tensor(x.tanh(), 0, dist.group.WORLD)
    y = functional.reduce_scatter_tensor(y * y, "sum", 0, dist.group.WORLD)
    return functional.all_reduce(y.sum(0), "sum", dist.group.WORLD) * x


DIFFERENTIABLE: tuple[Program, ...] = (
    all_reduce, all_reduce_by_name, all_gather_rows, all_gather_columns, reduce_scatter_rows,
    reduce_scatter_columns, exchange, exchange_of_sizes, coalesced, waited_for, returned, operators,
    several,
)  # fmt: skip


def broadcast(x: Tensor) -> Tensor:
    return functional.broadcast(x * 2, 0, dist.group.WORLD).sin()


def reduced_in_place(x: Tensor) -> Tensor:
    y = x * 2
    assert dist.all_reduce(y) is None
    return y + 1


def argument_reduced(x: Tensor) -> Tensor:
    """The caller sees what is written to its tensor."""
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x + 1


def view_reduced(x: Tensor) -> Tensor:
    y = x.clone()
    dist.all_reduce(y[1:], dist.ReduceOp.SUM, dist.group.WORLD)
    return y


def reduced_meanwhile(x: Tensor) -> Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    z = x.sin()
    assert work is not None
    work.wait()
    return y + z


def broadcast_in_place(x: Tensor) -> Tensor:
    y = x * 2
    dist.broadcast(y, src=1)
    return y + 1


def gathered_in_place(x: Tensor) -> Tensor:
    rows = x.new_empty(2 * x.shape[0], x.shape[1])
    dist.all_gather_into_tensor(rows, x.cos())
    return rows + 1


def gathered_list(x: Tensor) -> tuple[Tensor, Tensor]:
    parts = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(parts, x)
    sums = [x.new_empty(()) for _ in range(2)]
    dist.all_gather(sums, x.sum())
    return parts[0] - parts[1], sums[0] / sums[1]


def scattered_in_place(x: Tensor) -> Tensor:
    output = x.new_empty(x.shape[0] // 2, x.shape[1])
    dist.reduce_scatter_tensor(output, x)
    return output + 1


def exchanged_in_place(x: Tensor) -> tuple[Tensor, Tensor]:
    output, other = torch.empty_like(x), torch.empty_like(x)
    dist.all_to_all_single(output, x)
    dist.all_to_all_single(other, x, [2, 2], [2, 2])
    return output + 1, other


def ranks(x: Tensor) -> Tensor:
    return x * (dist.get_rank() + 1) + dist.get_world_size(dist.group.WORLD)


def gradients_averaged(x: Tensor) -> Tensor:
    """What training by hand does with the gradients of its parameters."""
    parts = [x.sin(), x.sum(0)]
    for part in parts:
        dist.all_reduce(part)
        part /= dist.get_world_size()
    return parts[0] + parts[1]


WRITING: tuple[Program, ...] = (
    broadcast, reduced_in_place, argument_reduced, view_reduced, reduced_meanwhile,
    broadcast_in_place, gathered_in_place, gathered_list, scattered_in_place, exchanged_in_place,
    ranks, gradients_averaged,
)  # fmt: skip


def plain(value: Any) -> Any:
    """``value`` once its collective has ended."""
    return value.wait() if isinstance(value, functional.AsyncCollectiveTensor) else value


def beside_eager(program: Program, rank: int, gradients: bool) -> None:
    """Results, gradients and what is written to the argument, twice from one graph."""
    compiled = weft.compile(program, fullgraph=True)
    graphs = 0
    for number in range(2):
        inputs = [random(10 * number + rank, 4, 6).requires_grad_(gradients) for _ in range(2)]
        want = plain(program(inputs[0]))
        with observe(CompileLog()) as log:
            got = plain(compiled(inputs[1]))
        graphs += len(log.graphs)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(inputs[1], inputs[0])
        if gradients:
            found, wanted = (
                torch.autograd.grad(result.square().sum(), x)
                for result, x in ((got, inputs[1]), (want, inputs[0]))
            )
            torch.testing.assert_close(found, wanted)
    assert graphs == 1, program


def functional_collectives(rank: int) -> None:
    for program in DIFFERENTIABLE:
        for gradients in (False, True):
            beside_eager(program, rank, gradients)


def writing_collectives(rank: int) -> None:
    for program in WRITING:
        beside_eager(program, rank, False)


def broken(program: Program, rank: int, gradients: bool, graphs: int) -> None:
    """The program is compiled in parts, and gives what it gives in eager."""
    x = random(rank, 4, 6).requires_grad_(gradients)
    with observe(CompileLog()) as log:
        got = weft.compile(program)(x)
    want = program(x)
    torch.testing.assert_close(got, want)
    assert len(log.graphs) == graphs, (program, len(log.graphs))
    if gradients:
        pairs = [torch.autograd.grad(result.sum(), x) for result in (got, want)]
        torch.testing.assert_close(*pairs)


def breaks(rank: int) -> None:
    """What a graph doesn't hold: eager does it between two graphs."""

    def barrier(x: Tensor) -> Tensor:
        y = x + 1
        dist.barrier()
        return y * 2

    def strided(x: Tensor) -> Tensor:
        y = x.sin().t().contiguous().t()
        try:
            dist.all_reduce(y)
        except (RuntimeError, ValueError):
            y = y + 1
        return y * 2

    def of_a_number(x: Tensor) -> Tensor:
        y = (x * 2).detach()
        dist.reduce(y, 0)
        return y * 0 + x

    def needs_gradients(x: Tensor) -> Tensor:
        return broadcast(x)

    broken(barrier, rank, False, 2)
    broken(strided, rank, False, 2)
    broken(of_a_number, rank, False, 2)
    broken(needs_gradients, rank, True, 1)


def smaller_group(rank: int) -> None:
    """A group of one process each; ranks inside it are not those among all."""
    groups = [dist.new_group([member]) for member in range(2)]
    own = groups[rank]

    def program(x: Tensor) -> Tensor:
        y = functional.all_gather_tensor(x, 0, own)
        dist.broadcast(y, src=rank, group=own)
        dist.broadcast(y, group=own, group_src=0)
        return y * dist.get_rank(own) + dist.get_world_size(own) + dist.get_rank()

    beside_eager(program, rank, False)
    other = groups[1 - rank]
    compiled = weft.compile(lambda x, group: functional.all_reduce(x, "sum", group) + 1)
    x = random(rank, 3)
    torch.testing.assert_close(compiled(x, own), x + 1)
    both = compiled(x, dist.group.WORLD)
    torch.testing.assert_close(both, random(0, 3) + random(1, 3) + 1)
    torch.testing.assert_close(compiled(x, own), x + 1)
    assert other is not own


def handles(rank: int) -> None:
    """A handle that outlives the graph has ended."""

    def program(x: Tensor) -> Any:
        y = x * 2
        return y, dist.all_reduce(y, async_op=True)

    y, work = weft.compile(program, fullgraph=True)(random(rank, 4))
    assert work.is_completed() and work.wait()
    torch.testing.assert_close(y, 2 * (random(0, 4) + random(1, 4)))
    assert y.device == device()


def given_in_flight(rank: int) -> None:
    """What an eager collective gave is waited for before a compiled function reads it."""
    compiled = weft.compile(lambda x: x.sin() + 1)
    for number in range(2):
        x = random(10 * number + rank, 4, 6)
        flying = functional.all_reduce(x, "sum", dist.group.WORLD)
        want = (random(10 * number, 4, 6) + random(10 * number + 1, 4, 6)).sin() + 1
        torch.testing.assert_close(plain(compiled(flying)), want)

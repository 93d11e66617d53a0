"""Training through sizes and numbers that depend on data: one forward, one backward, eager's gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import Tensor, nn

ROWS, WIDTH, EXPERTS = 6, 3, 4


def rows_of_a_mask(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    found = (x[:, 0] > 0).nonzero().squeeze(1)
    return torch.zeros_like(x).index_add(0, found, (x[found] @ w).tanh()) * v


def masked_loss(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Over no rows at all it is NaN, as in eager."""
    logits = (x @ w)[x[:, 0] > 0]
    target = logits.detach().argmin(-1)
    return F.cross_entropy(logits, target) + v.sum()


def a_count_that_scales(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    count = (x > 0).sum().item()
    return (x @ w) * count * v


def a_count_of_rows(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    count = (x[:, 0] > 0).sum().item()
    return (x[:count] @ w).tanh().sum() + (x[count:] * v).sum() * 2


def positions_up_to_a_number(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    count = x.detach().abs().sum().int().item()
    positions = torch.arange(count, dtype=x.dtype)
    return (positions.unsqueeze(1) * v).sin().sum() + (x @ w).sum()


def sums_by_group(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    groups, group = torch.unique((x[:, 0] * 2).long(), return_inverse=True)
    sums = torch.zeros(groups.shape[0], WIDTH, dtype=x.dtype).index_add(0, group, x @ w)
    return sums.tanh().sum() + v.sum()


def pairs_of_positions(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    h = x @ w
    i, j = torch.where(h > 0)
    return (h[i, j] * v[j]).sum() / (i.shape[0] + 1)


def repeated_rows(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    counts = (x[:, 0] > 0).long() + 1
    return (torch.repeat_interleave(x, counts, dim=0) @ w).sin().sum() * v.sum()


PROGRAMS = [
    rows_of_a_mask,
    masked_loss,
    a_count_that_scales,
    a_count_of_rows,
    positions_up_to_a_number,
    sums_by_group,
    pairs_of_positions,
    repeated_rows,
]


def result_and_gradients(program: Callable[..., Tensor], seed: int) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (ROWS, WIDTH), (WIDTH, WIDTH), (WIDTH,)
    leaves = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    if seed == 3:
        leaves[0] = -leaves[0].abs()  # no row is chosen
    result = program(*(leaf.requires_grad_() for leaf in leaves))
    result.square().sum().backward()
    return [result, *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: str(program.__name__))
def test_one_graph_for_all_sizes(program: Callable[..., Tensor]) -> None:
    compiled = weft.compile(program, fullgraph=True)
    log = weft.CompileLog()
    with weft.observe(log):
        for seed in range(4):
            want = result_and_gradients(program, seed)
            got = result_and_gradients(compiled, seed)
            torch.testing.assert_close(got, want, equal_nan=True)
    assert [graph.eager_reason for graph in log.graphs] == [None]


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(8, 12, bias=False), nn.Linear(8, 12, bias=False)
        self.down = nn.Linear(12, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return down


class Mixture(nn.Module):
    """Each row goes to the two experts that the router ranks first, and comes back weighted."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        mask = F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            slot, rows = torch.where(mask[number])
            given = expert(x[rows]) * weights[rows, slot, None]
            out = out.index_add(0, rows, given)
        return out


def test_a_mixture_of_experts_trains() -> None:
    """Sizes differ from batch to batch; an expert that no row goes to has a gradient of zero."""
    losses = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = Mixture().double()
        called: Any = weft.compile(model, fullgraph=True) if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        generator = torch.Generator().manual_seed(1)
        log = weft.CompileLog()
        with weft.observe(log):
            for _ in range(6):
                x = torch.randn(5, 8, generator=generator, dtype=torch.float64)
                loss = (called(x) - x.flip(-1)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        assert len(log.graphs) == int(compiled)
    torch.testing.assert_close(losses[6:], losses[:6])

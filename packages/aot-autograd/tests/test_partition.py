"""The cut between forward and backward: cheapest, the same each time, within the policy and the budget."""

from __future__ import annotations

import copy
import importlib
import itertools
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F
import weft_aot_autograd
import weft_functionalize
from gradients_beside_eager import check_gradients
from torch import Tensor, nn
from weft_aot_autograd import PartitionedGraph, PartitionOptions, partition
from weft_aot_autograd.partition.depth import LONGEST_CHAIN
from weft_aot_autograd.partition.memory_budget import knapsack, operator_cost
from weft_aot_autograd.partition.min_cut import CutProblem, NoCut, minimum_cut


def partitioned(program: Any, *inputs: Any, budget: float = 1.0) -> PartitionedGraph:
    functional = weft_functionalize.functionalize(torch.fx.symbolic_trace(program), inputs)
    joint = weft_aot_autograd.trace_joint(functional)
    assert joint is not None
    return partition(joint, options=PartitionOptions(budget))


def targets(graph: torch.fx.GraphModule) -> list[str]:
    return [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def _separates(problem: CutProblem, saved: set[int]) -> bool:
    """Whether every needed value is saved or computed from saved values alone."""
    available: set[int] = set()
    arguments: dict[int, list[int]] = {v: [] for v in range(len(problem.users))}
    for v, users in enumerate(problem.users):
        for u in users:
            arguments[u].append(v)
    for v in range(len(problem.users)):
        if v in saved or (v not in problem.given and all(a in available for a in arguments[v])):
            available.add(v)
    return problem.needed <= available


@pytest.mark.parametrize("seed", range(40))
def test_minimum_cut_beside_every_choice(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def chance(probability: float) -> bool:
        return bool(torch.rand((), generator=generator) < probability)

    count = 9
    users = [[u for u in range(v + 1, count) if chance(0.3)] for v in range(count)]
    reached = {u for row in users for u in row}
    given = {v for v in range(count) if v not in reached or chance(0.2)}
    needed = {v for v in range(count) if chance(0.3)} | {count - 1}
    capacity = [
        None if chance(0.15) else int(torch.randint(1, 9, (), generator=generator))
        for _ in range(count)
    ]
    problem = CutProblem(capacity, users, given, needed)
    holdable = [v for v in range(count) if capacity[v] is not None]
    choices = (
        set(choice)
        for size in range(len(holdable) + 1)
        for choice in itertools.combinations(holdable, size)
    )
    costs = [sum(capacity[v] or 0 for v in c) for c in choices if _separates(problem, c)]
    if not costs:
        with pytest.raises(NoCut):
            minimum_cut(problem)
        return
    saved = minimum_cut(problem)
    assert _separates(problem, set(saved))
    assert sum(capacity[v] or 0 for v in saved) == min(costs)


def test_knapsack_beside_every_choice() -> None:
    weights, values = [5, 3, 8, 2, 7, 0], [4.0, 3.0, 9.0, 1.0, 6.0, 1.0]
    for room in range(26):
        best = max(
            sum(values[i] for i in choice)
            for size in range(len(weights) + 1)
            for choice in itertools.combinations(range(len(weights)), size)
            if sum(weights[i] for i in choice) <= room
        )
        chosen = knapsack(weights, values, room)
        assert sum(weights[i] for i in chosen) <= room
        assert sum(values[i] for i in chosen) == best


def test_pointwise_is_recomputed_and_products_are_not() -> None:
    cut = partitioned(lambda x, w: (x @ w).sin().exp().cos(), leaf(8, 8), leaf(8, 8))
    assert cut.activation_bytes == 8 * 8 * 8  # one of the four values
    assert not [t for t in targets(cut.backward) if "sin" in t and "mm" in t]
    assert targets(cut.backward).count("aten.mm.default") == 2  # the gradients alone


def test_nothing_is_kept_of_what_inputs_give() -> None:
    cut = partitioned(lambda x, y: (x * y).sin() + x.exp(), leaf(4), leaf(4))
    assert cut.activation_bytes == 0
    assert {saved.input_index for saved in cut.saved} == {0, 1}


def test_masks_are_kept_as_booleans_and_never_drawn_again() -> None:
    cut = partitioned(lambda x, w: F.dropout(x @ w, 0.5, True) * 2, leaf(8, 8), leaf(8, 8))
    assert cut.activation_bytes == 8 * 8
    assert not [t for t in targets(cut.backward) if "bernoulli" in t]


def _longest_chain_of_sums(graph: torch.fx.Graph, recomputed: tuple[str, ...]) -> int:
    """How many sums that backward computes again follow one from the other."""
    lengths: dict[torch.fx.Node, int] = {}
    for node in graph.nodes:
        before = max((lengths[a] for a in node.all_input_nodes), default=0)
        is_sum = node.name in recomputed and node.target is torch.ops.aten.add.Tensor
        lengths[node] = before + is_sum
    return max(lengths.values())


def test_a_residual_stream_is_not_computed_again_from_its_beginning() -> None:
    """What a product adds to it is half as large, so that all of it could be kept in half the bytes."""

    def stream(x: Tensor, weights: Tensor) -> Tensor:
        for k in range(12):
            x = x + (x.sin() * x.exp()).float().mm(weights[k]).double()
        return x

    cut = partitioned(stream, leaf(8, 8), torch.randn(12, 8, 8, requires_grad=True))
    names = cut.recomputed
    assert 0 < _longest_chain_of_sums(cut.backward.graph, names) <= 1 + LONGEST_CHAIN


def test_a_stream_that_forward_holds_between_products_is_kept() -> None:
    """Rather than what is added to it, which is as large and leaves an addition to do again."""

    def stream(x: Tensor, weights: Tensor) -> Tensor:
        for k in range(6):
            x = x + (x.sin() * x.exp()).mm(weights[k])
        return x

    cut = partitioned(stream, leaf(8, 8), leaf(6, 8, 8))
    assert _longest_chain_of_sums(cut.backward.graph, cut.recomputed) == 0
    assert cut.activation_bytes == 5 * 8 * 8 * 8


def test_a_written_input_is_copied_for_backward() -> None:
    def program(buffer: Tensor, x: Tensor) -> Tensor:
        y = (x * buffer.clone()).exp()
        buffer.add_(1)
        return y

    cut = partitioned(program, torch.ones(3, dtype=torch.float64), leaf(3))
    assert all(saved.input_index != 0 for saved in cut.saved)


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU()) for _ in range(6))
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.mark.parametrize("budget", [0.0, 0.3, 0.6, 1.0])
def test_gradients_within_a_memory_budget(budget: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 16, dtype=torch.float64)
    options = PartitionOptions(budget)
    whole = check_gradients(Perceptron().double(), x)
    cut = check_gradients(Perceptron().double(), x, options=options)
    assert cut.activation_bytes <= max(budget, 0.05) * whole.activation_bytes
    assert len(cut.recomputed) >= len(whole.recomputed)


class Block(nn.Module):
    """A transformer's, with attention by products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.mixed(self.first(x)).chunk(3, dim=-1)
        weights = (query @ key.transpose(-1, -2) / 4.0).softmax(-1)
        x = x + self.projection(weights @ value)
        return x + self.down(F.gelu(self.up(self.second(x))))


def test_a_transformers_bytes_fall_with_the_budget() -> None:
    """At 1, 1/2, 1/4 and 0; the gradients are the same whatever is computed again."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(16) for _ in range(3))).double()
    x = torch.randn(2, 8, 16, dtype=torch.float64)
    parts = [
        check_gradients(copy.deepcopy(model), x, options=PartitionOptions(budget))
        for budget in (1.0, 0.5, 0.25, 0.0)
    ]
    kept = [part.activation_bytes for part in parts]
    assert kept == sorted(kept, reverse=True) and kept[1] < kept[0] and kept[3] < kept[1]
    assert kept[1] <= 0.5 * kept[0] and kept[2] <= 0.25 * kept[0]
    again = [len(part.recomputed) for part in parts]
    assert again[0] < min(again[1:]) and again[3] > max(again[:3]), again


def test_bad_budgets() -> None:
    for budget in (-0.1, 1.5):
        with pytest.raises(ValueError, match="from 0 to 1"):
            PartitionOptions(budget)


def test_cuts_are_the_same_each_time() -> None:
    x = torch.randn(4, 16)
    cuts = [partitioned(Perceptron(), x, budget=b) for b in (1.0, 1.0, 0.5, 0.5)]
    for first, second in (cuts[:2], cuts[2:]):
        assert first.forward.code == second.forward.code
        assert first.backward.code == second.backward.code
        assert first.saved == second.saved


def widths(x: Tensor, first: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """Products whose results differ in size and in the cost to compute them again."""
    wide = (x @ first).sin()
    narrow = ((wide @ second).sigmoid() @ third).tanh()
    return narrow.exp() * narrow.sum(1, keepdim=True).cos() + wide.sum()


def test_the_cheapest_recomputation_within_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside every choice of the values that are kept by default."""
    inputs = leaf(4, 6), leaf(6, 40), leaf(40, 10), leaf(10, 16)
    functional = weft_functionalize.functionalize(torch.fx.symbolic_trace(widths), inputs)
    joint = weft_aot_autograd.trace_joint(functional)
    assert joint is not None
    default = partition(joint).activation_bytes

    def outcome(budget: float) -> tuple[int, float]:
        """The bytes that are kept, and what it costs to compute the others again."""
        cut = partition(joint, options=PartitionOptions(budget))
        nodes = {node.name: node for node in cut.backward.graph.nodes}
        return cut.activation_bytes, sum(operator_cost(nodes[name]) for name in cut.recomputed)

    budgets = (0.1, 0.3, 0.45, 0.6, 0.75, 0.9)
    chosen = [outcome(budget) for budget in budgets]
    choices = []
    for kept in itertools.product((False, True), repeat=5):

        def keep(sides: Any, saved: Any, least: Any, budget: float, kept: Any = kept) -> set[Any]:
            items = [n for n in saved if n.op != "placeholder" and n not in least]
            assert len(items) <= len(kept)
            return {node for node, is_kept in zip(items, kept, strict=False) if is_kept}

        module = importlib.import_module("weft_aot_autograd.partition.partition")
        monkeypatch.setattr(module, "values_to_keep", keep)
        choices.append(outcome(0.5))
    for budget, (kept_bytes, cost) in zip(budgets, chosen, strict=True):
        within = [other for size, other in choices if size <= budget * default]
        assert kept_bytes <= budget * default
        assert cost == min(within)
    assert [size for size, _ in chosen] == sorted(size for size, _ in chosen)
    assert len({size for size, _ in choices}) > 4


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_two_numbers_of_a_row_are_kept_of_a_log_softmax(dtype: torch.dtype) -> None:
    def program(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
        return F.nll_loss(F.log_softmax(x @ w, -1), target)

    inputs = leaf(6, 4).to(dtype).detach().requires_grad_(), leaf(4, 40).to(dtype), torch.arange(6)
    graphs = partitioned(program, *inputs)
    assert not {"aten._log_softmax.default", "aten.amax.default"} & {*targets(graphs.backward)}
    placeholders = graphs.backward.graph.find_nodes(op="placeholder")
    shapes = [tuple(node.meta["val"].shape) for node in placeholders]
    assert (shapes.count((6, 40)), shapes.count((6, 1))) == (1, 2)
    if dtype is torch.float64:
        check_gradients(program, *inputs)

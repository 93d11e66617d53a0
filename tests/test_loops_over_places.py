"""Loops over what ``nonzero`` finds: a branch for each place there may be, one graph, equal to eager.

Float64 throughout, so that results and gradients are compared to the last digits.
"""

from __future__ import annotations

import contextlib
import copy
import os

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import nn
from weft.report import CompileLog, observe

NUMBER = 3


class Experts(nn.Module):
    """A mixture as the library writes it: weights of all experts in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(NUMBER, 6, 3))
        self.down = nn.Parameter(torch.randn(NUMBER, 3, 3))
        self.experts = nn.ModuleList(nn.Linear(3, 3) for _ in range(NUMBER))

    def forward(self, x, index, weights):
        out = torch.zeros_like(x)
        with torch.no_grad():
            mask = F.one_hot(index, num_classes=NUMBER + 1).permute(2, 1, 0)
            hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for number in hit:
            number = number[0]
            if number == NUMBER:
                continue
            position, token = torch.where(mask[number])
            gate, up = F.linear(x[token], self.up[number]).chunk(2, dim=-1)
            current = F.linear(F.silu(gate) * up, self.down[number])
            current = current * weights[token, position, None]
            out.index_add_(0, token, current)
        return out


class Spared(Experts):
    """One place more than there are weights: the body raises for it (DBRX, whose router never gives it)."""

    def forward(self, x, index, weights):
        out = torch.zeros_like(x)
        with torch.no_grad():
            mask = F.one_hot(index, num_classes=NUMBER + 1).permute(2, 1, 0)
            hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for number in hit:
            number = number[0]
            with torch.no_grad():
                position, token = torch.where(mask[number])
            up = self.up[number]
            gate, up = F.linear(x[token], up).chunk(2, dim=-1)
            current = F.linear(F.silu(gate) * up, self.down[number])
            out.index_add_(0, token, current * weights[token, position, None])
        return out


class Rejecting(Spared):
    """The body itself says which places it does not take."""

    def forward(self, x, index, weights):
        out = x * 2
        for number in (F.one_hot(index, NUMBER + 2).sum((0, 1)) > 0).nonzero():
            if number[0] >= NUMBER:
                raise ValueError(f"no expert {number[0]}")
            token, _ = torch.where(index == number)
            out = out.index_add(0, token, self.experts[number[0]](x[token]))
        return out


class Modules(Experts):
    """A module for each expert: those of which no token is have no gradient, None."""

    def forward(self, x, index, weights):
        out = torch.zeros_like(x)
        for number in (F.one_hot(index, NUMBER).sum((0, 1)) > 0).nonzero().squeeze(-1):
            token, position = torch.where(index == number)
            out.index_add_(
                0, token, self.experts[number](x[token]) * weights[token, position, None]
            )
        return out


class Numbers(Experts):
    """The number as Python's, and rows that are skipped where there are none."""

    def forward(self, x, index, weights):
        out = x * 2
        hits = F.one_hot(index, NUMBER).sum((0, 1)) > 0
        for place in torch.where(hits)[0]:
            number = int(place.item())
            rows = torch.nonzero(index[:, 0] == number, as_tuple=True)[0]
            if rows.numel() == 0:
                continue
            out[rows] = self.experts[number](x[rows]) + number
        return out


class Named(Experts):
    """Modules by names that have the number in them; the mask by a tensor of one place."""

    def __init__(self) -> None:
        super().__init__()
        self.named = nn.ModuleDict({f"expert_{n}": nn.Linear(3, 3) for n in range(NUMBER)})

    def forward(self, x, index, weights):
        out = torch.zeros_like(x)
        mask = F.one_hot(index, NUMBER).permute(2, 1, 0)
        for number in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
            position, token = torch.where(mask[number].squeeze(0))
            current = x[None, token].reshape(-1, 3)
            current = self.named[f"expert_{number[0]}"](current) * weights[token, position, None]
            out.index_add_(0, token, current)
        return out


class Order(Experts):
    """What one iteration leaves is what the next begins with."""

    def forward(self, x, index, weights):
        out, count = x.sum(), 0
        for number in (F.one_hot(index, NUMBER).sum((0, 1)) > 0).nonzero(as_tuple=True)[0]:
            out = out * weights[0, 0] + number
            count += 1
        return out, torch.tensor(count) + 0


class WrittenAfterwards(Experts):
    """The places are those of when they were found."""

    def forward(self, x, index, weights):
        flags = torch.zeros(NUMBER, dtype=torch.int64)
        flags[1] = index[0, 0] + 1
        found = flags.nonzero()
        flags.fill_(1)
        out = x.sum()
        for place in found:
            flags[place[0]] = 0
            out = out + place[0] + flags.sum()
        return out


class WrittenInside(Experts):
    def forward(self, x, index, weights):
        flags = (F.one_hot(index, NUMBER).sum((0, 1)) > 0).to(torch.int64)
        out = x.sum()
        for place in flags.nonzero():
            flags.fill_(0)
            out = out * 2 + place[0]
        return out, flags


class NestedLoops(Experts):
    def forward(self, x, index, weights):
        out = x.sum()
        for place in (x[0] > 0).nonzero():
            for other in (x[1] > 0).nonzero():
                out = out * 1.5 + x[other[0], place[0]] * 2
        return out


class Scaled(torch.autograd.Function):
    """What is done to inputs shows whether they need gradients."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, gradient):
        x, scale = ctx.saved_tensors
        return gradient * scale * 2, gradient * x if ctx.needs_input_grad[1] else None


class FunctionAfterwards(Experts):
    """What experts add is not sure to have gradients; the sum with what is sure has."""

    def forward(self, x, index, weights):
        hidden = self.experts[0](x)
        found = super().forward(hidden, index, weights)
        hidden = hidden + found
        return Scaled.apply(hidden, hidden.sigmoid()), hidden.requires_grad


class FunctionOfWhatIsNotSure(Experts):
    """Only a branch that runs gives the result gradients, by a view of it too."""

    def forward(self, x, index, weights):
        x = x.detach()
        total, rows = torch.zeros_like(x), torch.zeros_like(x)
        for number in (F.one_hot(index, NUMBER).sum((0, 1)) > 2).nonzero():
            total.add_(self.experts[number[0]](x))
            rows[0].add_(self.experts[number[0]](x)[0])
        scaled = [Scaled.apply(part, part * 2) for part in (total * 3, rows * 3)]
        return *scaled, *(part.requires_grad for part in scaled)


class SwallowedErrors(Experts):
    """After a ``with`` block, what it binds may be as an iteration before has left it."""

    def forward(self, x, index, weights):
        out = torch.zeros_like(x)
        mask = F.one_hot(index, NUMBER).permute(2, 1, 0)
        for number in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
            number = number[0]
            with torch.no_grad():
                position, token = torch.where(mask[number])
            current = self.experts[number](x[token]) * weights[token, position, None]
            out.index_add_(0, token, current)
        return out


MODULES = [
    Experts,
    Spared,
    Rejecting,
    Modules,
    Numbers,
    Named,
    Order,
    NestedLoops,
    FunctionAfterwards,
    SwallowedErrors,
]


class Leaves(Experts):
    def forward(self, x, index, weights):
        out = x.sum()
        for number in (F.one_hot(index, NUMBER).sum((0, 1)) > 0).nonzero():
            out = out + self.experts[number](x).sum()
            if number[0] > 1:
                break
        return out


class Appends(Experts):
    def forward(self, x, index, weights):
        found = []
        for number in (F.one_hot(index, NUMBER).sum((0, 1)) > 0).nonzero():
            found.append(self.experts[number](x))
        return torch.stack(found).sum(0), len(found)


class WritesPlace(Experts):
    """An iterated row is a view of what ``nonzero`` has given."""

    def forward(self, x, index, weights):
        places = (F.one_hot(index, NUMBER).sum((0, 1)) > 0).nonzero()
        out = x.sum()
        for number in places:
            out = out + number[0]
            number += 1
        return out, places


class ReturnsPlace(Experts):
    def forward(self, x, index, weights):
        places = (F.one_hot(index, NUMBER).sum((0, 1)) > 0).nonzero()
        last = places
        for number in places:
            last = number
        return places, last


class AfterLoop(Experts):
    def forward(self, x, index, weights):
        kept = x
        for number in (F.one_hot(index, NUMBER).sum((0, 1)) > 0).nonzero():
            kept = self.experts[number](x)
        return kept, number * 2


class ReadsIterationBefore(Experts):
    """A later iteration reads what one before, if any, has bound; so does what comes after the loop."""

    def forward(self, x, index, weights):
        out = x.sum()
        for number in (F.one_hot(index, NUMBER).sum((0, 1)) > 0).nonzero():
            number = number[0]
            if out is not None:
                with contextlib.suppress(ZeroDivisionError):
                    1 / (len(self.experts) - NUMBER)
                    last = x
            try:
                out = out + last.sum()
            except UnboundLocalError:
                last = self.experts[number](x)
        return out, last


class BreakAfterLoop(Experts):
    """A break takes all locals with it that the rest may read."""

    def forward(self, x, index, weights):
        kept = x
        for number in (F.one_hot(index, NUMBER).sum((0, 1)) > 0).nonzero():
            last = kept * 2
            kept = self.experts[number](x)
        with open(os.devnull):
            kept = kept + 1
        return kept, last


BROKEN = [
    WrittenAfterwards,
    WrittenInside,
    Leaves,
    Appends,
    WritesPlace,
    ReturnsPlace,
    AfterLoop,
    FunctionOfWhatIsNotSure,
    ReadsIterationBefore,
    BreakAfterLoop,
]


def inputs():
    """Tokens of some experts, of all, and of one."""
    generator = torch.Generator().manual_seed(1)
    for rows, chosen in ((5, (0, 2)), (5, (0, 1, 2)), (7, (2,)), (5, (1, 2))):
        x = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
        place = torch.randint(len(chosen), (rows, 2), generator=generator)
        weights = torch.rand(rows, 2, generator=generator, dtype=torch.float64)
        yield x, torch.tensor(chosen)[place], weights


def outcome(model, call, arguments, *, train):
    """Results and gradients, None for parameters that have none."""
    given = [a.clone() for a in arguments]
    for tensor in given:
        tensor.requires_grad_(train and tensor.is_floating_point())
    model.zero_grad()
    with torch.set_grad_enabled(train):
        found = call(*given)
    results = list(found) if isinstance(found, tuple) else [found]
    if not train:
        return results
    tensors = [result for result in results if isinstance(result, torch.Tensor)]
    total = sum(result.sum() for result in tensors if result.requires_grad)
    if isinstance(total, torch.Tensor):
        total.backward()
    return results + [p.grad for p in [*given, *model.parameters()]]


def require_equal(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other
            continue
        assert isinstance(one, torch.Tensor)
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)
def test_one_graph_runs_the_branches_of_the_places_that_are_found(kind, train):
    torch.manual_seed(0)
    model = kind().double()
    compiled = weft.compile(copy.deepcopy(model), fullgraph=True)
    log = CompileLog()
    with observe(log):
        for arguments in inputs():
            found = outcome(compiled, compiled, arguments, train=train)
            require_equal(found, outcome(model, model, arguments, train=train))
    assert len(log.graphs) <= 2  # the second for another number of rows


@pytest.mark.parametrize("kind", [Spared, Rejecting], ids=lambda kind: kind.__name__)
def test_a_place_that_raises_raises_eagers_error_where_it_is_hit(kind):
    torch.manual_seed(0)
    model = kind().double()
    compiled = weft.compile(copy.deepcopy(model))
    x, index, weights = next(inputs())
    for place in (0, NUMBER, 1):
        index[2, 1] = place
        found, wanted = [], []
        for call, results in ((compiled, found), (model, wanted)):
            try:
                results += outcome(call, call, (x, index, weights), train=True)
            except (IndexError, ValueError) as error:
                results += [type(error), str(error)]
        require_equal(found, wanted)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_loops_that_are_not_kept_break_and_are_eager(kind, train):
    torch.manual_seed(0)
    model = kind().double()
    compiled = weft.compile(copy.deepcopy(model))
    for arguments in inputs():
        found = outcome(compiled, compiled, arguments, train=train)
        require_equal(found, outcome(model, model, arguments, train=train))


def test_what_a_loop_returns_of_its_places_is_theirs():
    """A row of the places is a view of them: written to after the call, it shows there."""

    def program(x):
        places = (x > 0).nonzero()
        last = places[:0]
        for place in places:
            last = place
        return places, last

    compiled = weft.compile(program)
    for x in (torch.tensor([1.0, -1.0, 2.0]), torch.tensor([-1.0, 3.0, 1.0])):
        results = []
        for function in (compiled, program):
            places, last = function(x)
            last.fill_(7)
            results.append(places)
        torch.testing.assert_close(*results)


def test_more_branches_than_compile_soon(monkeypatch):
    """All calls of a loop are refused then, unless the whole is to be one graph."""
    monkeypatch.setattr("weft_bytecode_capture.symbolic.regions.loops.candidates._MAX_BRANCHES", 8)

    def sum_of_places(x):
        out = x.sum()
        for place in (x > 0).nonzero():
            out = out * 2 + place[0]
        return out

    def program(x):
        return sum_of_places(x) + sum_of_places(x * 2 - 1)

    x = torch.tensor([1.0, -1.0, 0.4, 3.0, -2.0])
    for fullgraph in (False, True):
        with observe(CompileLog()) as log:
            found = weft.compile(program, fullgraph=fullgraph)(x)
        torch.testing.assert_close(found, program(x))
        assert bool(log.graph_breaks) is not fullgraph


def test_more_places_than_branches_are_kept_for():
    def program(x):
        out = x.sum()
        for place in (x > 0).nonzero():
            out = out + place[0]
        return out

    compiled = weft.compile(program)
    x = torch.full((400,), -1.0)
    x[[3, 399]] = 1.0
    torch.testing.assert_close(compiled(x), program(x))


def test_rows_whose_length_data_decides_are_no_places():
    def program(x):
        total = x.sum() * 0
        for row in torch.unique(x).unsqueeze(0):
            total = total + row.sum()
        return total

    compiled = weft.compile(program)
    for values in ([3.0], [3.0, 1.0, 3.0], [2.0, 4.0, 8.0, 4.0]):
        x = torch.tensor(values)
        torch.testing.assert_close(compiled(x), program(x))

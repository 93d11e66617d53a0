"""Branches on sizes that data decides, in training too: one graph for all counts, equal to eager.

Float64 throughout, so that results and gradients are compared to the last digits.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import nn
from weft.report import CompileLog, observe


class Rows(nn.Module):
    """``rows`` are those of which the first number is above zero."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)


class IfAny(Rows):
    def forward(self, x):
        rows, out = x[x[:, 0] > 0], x * 2
        if rows.numel() > 0:
            out = out + self.linear(rows).sum(0)
        return out


class EarlyReturn(Rows):
    def forward(self, x):
        rows = x[x[:, 0] > 0]
        if rows.shape[0] == 0:
            return x.sum() * 0
        return self.linear(rows).pow(2).mean()


class Length(Rows):
    def forward(self, x):
        indices, loss = (x[:, 0] > 0).nonzero().flatten(), x.pow(2).sum()
        if len(indices):
            loss = loss + self.linear(x[indices]).sum()
        return loss


class ElseZero(Rows):
    def forward(self, x):
        rows = x[x[:, 0] > 0]
        if rows.shape[0] > 0:
            loss = F.mse_loss(self.linear(rows), rows * 2)
        else:
            loss = torch.zeros((), dtype=x.dtype)
        return loss + self.linear(x).mean()


class NoGradientElsewhere(Rows):
    """Without rows the parameters have no gradients: None, not zeros."""

    def forward(self, x):
        rows, out = x[x[:, 0] > 0], torch.zeros_like(x)
        if rows.size(0) != 0:
            out[x[:, 0] > 0] = self.linear(rows)
        return out


class Targets(Rows):
    def forward(self, x):
        hidden = self.linear(x)
        kept = torch.nonzero(x[:, 0] > 0, as_tuple=True)[0]
        if not kept.numel():
            return hidden.sum() * 0
        return F.cross_entropy(hidden[kept], (x[kept, 2] > 0).long())


class NestedBranches(Rows):
    def forward(self, x):
        rows, out = x[x[:, 0] > 0], x * 1
        if rows.shape[0] > 0:
            if rows.shape[0] > 2:
                out = out + self.linear(rows).mean(0)
            else:
                out = out - rows.sum(0)
        return out


class Mixture(nn.Module):
    """Experts that skip where they have no tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 4)) for _ in range(4)
        )

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number in range(4):
            (indices,) = torch.where(chosen == number)
            if indices.numel() == 0:
                continue
            found = self.experts[number](x[indices]) * weights[indices, None]
            out.index_add_(0, indices, found)
        return out


MODULES = [IfAny, EarlyReturn, Length, ElseZero, NoGradientElsewhere, Targets]
MODULES += [NestedBranches, Mixture]


def inputs():
    generator = torch.Generator().manual_seed(1)
    some = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    signs = [some[:, 0], -some[:, 0].abs(), some[:, 0].abs()]
    found = [torch.cat([first[:, None], some[:, 1:]], 1) for first in signs]
    one = found[1].clone()
    one[2, 0] = 1.0
    return [*found, one, some[:1].expand(6, 4).clone(), found[1]]


def outcome(module, x, needs_gradient):
    """What a call gives, and the gradients."""
    x = x.clone().requires_grad_(needs_gradient)
    module.zero_grad(set_to_none=True)
    result = module(x)
    if result.requires_grad:
        (result * torch.arange(result.numel()).view(result.shape)).sum().backward()
    return result, [x.grad, *(p.grad for p in module.parameters())]


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("needs_gradient", [False, True], ids=["plain", "of inputs"])
@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)
def test_one_graph_for_all_counts(kind, needs_gradient, training):
    torch.manual_seed(0)
    plain = kind().double()
    module = copy.deepcopy(plain)
    compiled = weft.compile(module, fullgraph=True)
    with observe(CompileLog()) as log, torch.set_grad_enabled(training):
        for x in inputs():
            found, gradients = outcome(compiled, x, needs_gradient)
            wanted, wanted_gradients = outcome(plain, x, needs_gradient)
            torch.testing.assert_close(found, wanted)
            assert found.requires_grad is wanted.requires_grad
            assert found.stride() == wanted.stride()
            for gradient, other in zip(gradients, wanted_gradients, strict=True):
                assert (gradient is None) is (other is None)
                if other is not None:
                    torch.testing.assert_close(gradient, other)
    assert len(log.graphs) == 1


OPERATORS = {
    "first": lambda rows, w: rows[0],
    "sixth": lambda rows, w: rows[5],
    "three": lambda rows, w: rows.narrow(0, 0, 3).sum(0),
    "largest": lambda rows, w: rows.max(0).values,
    "pairs": lambda rows, w: rows.reshape(2, -1).sum(1),
    "as many": lambda rows, w: (rows + torch.ones(6, 4, dtype=rows.dtype)).sum(),
    "row of another": lambda rows, w: w[rows[:, 0].abs().long()].sum(0),
    "part": lambda rows, w: rows[rows[:, 1] > 0].sum(0),
    "normalized": lambda rows, w: F.batch_norm(rows, None, None, training=True).pow(3).sum(0),
    "sorted": lambda rows, w: rows.sort(0).values.cumsum(0).sum(),
    "products": lambda rows, w: (rows @ rows.mT).softmax(-1).sum(),
    "written": lambda rows, w: rows.mul_(w[0]).sum(0),
}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_in_a_branch(name, training):
    """Whether there is one graph or a break, results and errors are eager's."""
    operator = OPERATORS[name]

    def program(x, w):
        rows, out = x[x[:, 0] > 0], w[0] * 2
        if rows.shape[0] > 0:
            out = out + operator(rows, w)
        return out

    compiled = weft.compile(program)
    for x in inputs():
        results = []
        for function in (compiled, program):
            w = torch.full((4, 4), 0.5, dtype=torch.float64, requires_grad=training)
            try:
                result = function(x.clone(), w)
            except Exception as error:
                results.append((type(error), str(error)))
                continue
            if result.requires_grad:
                result.sum().backward()
            results.append((result.detach(), w.grad))
        found, wanted = results
        if isinstance(wanted[0], torch.Tensor):
            torch.testing.assert_close(found, wanted)
        else:
            assert found == wanted


def test_whether_a_written_tensor_has_gradients_is_asked():
    """Which depends on data where only one branch writes some: a break, and eager's answer."""

    def program(x, w):
        out = torch.zeros(4)
        if x.sum() > 0:
            out.add_(w)
        return out * 2 if out.requires_grad else out - 1

    compiled = weft.compile(program)
    w = torch.ones(4, requires_grad=True)
    for sign in (1, -1, 1):
        x = torch.full((3,), float(sign))
        found, wanted = compiled(x, w), program(x, w)
        torch.testing.assert_close(found, wanted)
        assert found.requires_grad is wanted.requires_grad


def test_gradients_written_to_a_callers_tensor_in_one_branch():
    """Its history afterwards is eager's."""

    def program(x, w):
        if w.sum() > 0:
            x.add_(w * 2)
        return x * 3

    compiled = weft.compile(program)
    for sign in (1, -1, 1):
        w = torch.full((4,), float(sign), requires_grad=True)
        found, wanted = torch.zeros(4), torch.zeros(4)
        torch.testing.assert_close(compiled(found, w), program(wanted, w))
        torch.testing.assert_close(found, wanted)
        assert found.requires_grad is wanted.requires_grad

"""The first call of modules that know their sizes from their input: parameters, random numbers, classes."""

import pytest
import torch
from torch import nn
from weft_bytecode_capture import CaptureOptions, capture, compile_frames


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU())
        self.head = nn.LazyLinear(2)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.head(self.body(x).flatten(1))


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.LazyLinear(2)

    def forward(self, x):
        return self.head(nn.functional.dropout(x, 0.5))


class Own(nn.modules.lazy.LazyModuleMixin, nn.Linear):
    """One whose parameters depend on what is in its input."""

    cls_to_become = nn.Linear

    def __init__(self):
        super().__init__(0, 0)
        self.weight = nn.UninitializedParameter()

    def initialize_parameters(self, x):
        if self.has_uninitialized_params():
            with torch.no_grad():
                self.weight.materialize((2, x.shape[-1]))
                self.weight.fill_(float(x.sum()))
                self.bias = nn.Parameter(torch.zeros(2))


IMAGES = torch.ones(2, 3, 6, 6)
IN_ONE_GRAPH = [(Model, IMAGES), (lambda: nn.LazyLinear(3), torch.ones(2, 4))]
OTHERS = [(Dropping, torch.ones(2, 8)), (Own, torch.ones(2, 4))]


def run(make, x, compile_):
    torch.manual_seed(3)
    module = make()
    called = compile_(module)
    found = [called(x).detach() for _ in range(3)]
    kinds = [type(part) for part in module.modules()]
    return found, module.state_dict(), kinds, torch.rand(2), getattr(module, "calls", None)


@pytest.mark.parametrize(("make", "x"), [*IN_ONE_GRAPH, *OTHERS])
def test_as_eager(make, x):
    def compiled(module):
        return compile_frames(module, lambda graph_module, inputs: graph_module.forward)

    mine, plain = run(make, x, compiled), run(make, x, lambda module: module)
    for left, right in zip(mine[0], plain[0], strict=True):
        torch.testing.assert_close(left, right)
    assert list(mine[1]) == list(plain[1])
    assert all(map(torch.equal, mine[1].values(), plain[1].values()))
    assert mine[2] == plain[2]
    assert torch.equal(mine[3], plain[3])
    assert mine[4] == plain[4]


@pytest.mark.parametrize(("make", "x"), IN_ONE_GRAPH)
def test_without_a_break(make, x):
    options = CaptureOptions(fullgraph=True)
    module = make()
    compiled = compile_frames(module, lambda graph_module, _: graph_module.forward, options)
    torch.testing.assert_close(compiled(x), module(x))


def test_an_input_that_does_not_fit():
    with pytest.raises(RuntimeError, match=r"Expected 3D .* or 4D"):
        capture(nn.Sequential(nn.LazyConv2d(2, 3)))(torch.ones(2))

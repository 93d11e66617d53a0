"""``torch.distributions`` in captured functions: constructed, sampled and asked, in one graph."""

import pytest
import torch
from torch import distributions
from weft_bytecode_capture import capture
from weft_bytecode_capture.symbolic.graph.purity import has_effect

POSITIVE = lambda x: x.exp() + 0.1  # noqa: E731
MAKERS = {
    "Normal": lambda x: distributions.Normal(x, POSITIVE(x)),
    "Categorical": lambda x: distributions.Categorical(logits=x),
    "Categorical of probabilities": lambda x: distributions.Categorical(probs=POSITIVE(x)),
    "Bernoulli": lambda x: distributions.Bernoulli(logits=x),
    "Gumbel": lambda x: distributions.Gumbel(torch.tensor(0.0), torch.tensor(1.0)).expand(x.shape),
    "Laplace": lambda x: distributions.Laplace(x, 1.0),
    "Uniform": lambda x: distributions.Uniform(x - 1, x + 2.0),
    "Exponential": lambda x: distributions.Exponential(POSITIVE(x)),
    "Independent": lambda x: distributions.Independent(distributions.Normal(x, 1.0), 1),
    "LogNormal": lambda x: distributions.LogNormal(x, 1.0),
    "OneHotCategorical": lambda x: distributions.OneHotCategorical(logits=x),
    "Gamma": lambda x: distributions.Gamma(POSITIVE(x), 1.0),
    "Poisson": lambda x: distributions.Poisson(POSITIVE(x)),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("gradients", [False, True])
def test_one_graph(name, gradients) -> None:
    make = MAKERS[name]

    def function(x):
        made = make(x)
        drawn = made.sample()
        return drawn, made.log_prob(drawn), made.mean, made.batch_shape

    captured = capture(function)
    for rows in (2, 3, 4):
        x = torch.linspace(-1, 1, rows * 3).view(rows, 3).requires_grad_(gradients)
        torch.manual_seed(rows)
        result = captured(x)
        torch.manual_seed(rows)
        wanted = function(x)
        assert result.result[3] == wanted[3]
        for mine, plain in zip(result.result[:3], wanted[:3], strict=True):
            torch.testing.assert_close(mine, plain, equal_nan=True)
            assert mine.requires_grad == plain.requires_grad
        assert not result.breaks, result.breaks


def test_what_is_drawn_from_constants_differs_by_call() -> None:
    def function(x):
        factor = distributions.Beta(torch.tensor(1.0), torch.tensor(1.0)).sample().item()
        distributions.Dirichlet(torch.ones(3)).sample()  # nobody reads it, and the state has moved
        first = int(torch.randint(3, (1,)))
        return x[:first] * int(16 * factor), torch.rand(2)

    captured = capture(function)
    for seed in range(4):
        torch.manual_seed(seed)
        wanted = function(torch.ones(4))
        torch.manual_seed(seed)
        torch.testing.assert_close(captured(torch.ones(4)).result, wanted, rtol=0, atol=0)


def test_every_operator_that_draws_is_known_to() -> None:
    asked = {
        "_fused_sdp_choice",
        "_nested_tensor_softmax_with_shape",
    }  # a question, and of no dense tensor
    graph = torch.fx.Graph()
    operators = torch._C._dispatch_get_all_op_names()
    for name in {each[6:].split(".")[0] for each in operators if each.startswith("aten::")}:
        packet = getattr(torch.ops.aten, name)
        overloads = [getattr(packet, each) for each in packet.overloads()]
        if name in asked or not any(torch.Tag.nondeterministic_seeded in o.tags for o in overloads):
            continue
        assert has_effect(graph.call_function(packet)), name
        if callable(getattr(torch, name, None)):
            assert has_effect(graph.call_function(getattr(torch, name))), name
        if hasattr(torch.Tensor, name):
            assert has_effect(graph.call_method(name)), name


def test_wrong_parameters_raise_as_in_eager() -> None:
    def function(x):
        return distributions.Normal(x, x - 10).sample()

    with pytest.raises(ValueError, match="invalid values"):
        capture(function)(torch.ones(2))
    bad = capture(lambda x: distributions.Normal(0.0, x).sample())
    assert bad(torch.ones(2)).result.shape == (2,)
    with pytest.raises(ValueError, match="invalid values"):
        bad(-torch.ones(2))


class Twice(property):
    """A property of a class of its own, which reads as any other."""


class Negated(property):
    def __get__(self, instance, owner=None):
        return -super().__get__(instance, owner)


class Held:
    def __init__(self, x):
        self.x = x

    @Twice
    def doubled(self):
        return self.x * 2

    @doubled.setter
    def doubled(self, value):
        self.x = value / 2

    @Negated
    def negated(self):
        return self.x + 1


def test_subclasses_of_property() -> None:
    def function(x):
        held = Held(x)
        held.doubled = held.doubled + 4
        return held.x, held.doubled, held.negated, isinstance(Held.doubled, Twice)

    result = capture(function)(torch.arange(3.0))
    wanted = function(torch.arange(3.0))
    assert all(torch.equal(a, b) for a, b in zip(result.result[:3], wanted[:3], strict=True))
    assert result.result[3] is wanted[3] is True

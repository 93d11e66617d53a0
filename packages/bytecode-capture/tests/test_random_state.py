"""Random numbers and gradients' flags: seeds, generators, ``requires_grad_``, parameters made inside."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from differential import outcome, run_graph, same
from weft_bytecode_capture import capture, compile_frames

WEIGHT = torch.nn.Parameter(torch.ones(3))
GENERATOR = torch.Generator().manual_seed(1)


def seed_between(x):
    first = torch.rand(3)
    torch.manual_seed(5)
    return first, torch.rand(3), x + first


def seed_before_the_end(x):
    drawn = torch.rand(3)
    torch.manual_seed(5)
    return x + drawn


def generator_made_inside(x):
    generator = torch.Generator().manual_seed(3)
    drawn = torch.rand(3, generator=generator) + x
    return drawn, torch.randn(2, generator=generator), torch.randperm(4, generator=generator)


def generator_from_outside(x):
    first = torch.rand(3, generator=GENERATOR)
    order = torch.randperm(5, generator=GENERATOR)
    GENERATOR.manual_seed(7)
    return first + x, order, torch.rand(2, generator=GENERATOR)


def generator_as_argument(x, generator=GENERATOR):
    return torch.bernoulli(torch.full((6,), 0.5), generator=generator), x * 2


def generator_of_sizes_that_vary(x):
    rows, columns = x.shape
    noise = (
        torch.randn(x.shape, generator=GENERATOR)
        + torch.rand(rows * 2, columns, generator=GENERATOR)[:rows]
    )
    whole = torch.randint(rows, 10, (columns,), generator=GENERATOR, dtype=torch.int32)
    return (
        noise * x,
        whole,
        torch.randperm(rows + 1, generator=GENERATOR),
        torch.rand((), generator=GENERATOR) * x,
    )


def filled_by_a_generator(x):
    made = torch.empty_like(x, dtype=torch.float64).normal_(1.0, 2.0, generator=GENERATOR)
    again = x.detach().clone()
    same_one = again.uniform_(generator=GENERATOR)
    return made, same_one is again, again.mul_(2), x.new_empty(2).random_(5, generator=GENERATOR)


def drawn_tensor_written(x):
    noise = torch.rand(2, 3, generator=GENERATOR)
    noise[0] += 1
    other = torch.rand(2, 3, generator=GENERATOR).mul_(noise)
    return noise, other, x + noise[:1]


def generator_that_is_returned(x):
    generator = torch.Generator().manual_seed(3)
    drawn = torch.rand(3, generator=generator)
    return x + drawn, generator.get_state(), torch.rand(2, generator=generator)


def drawn_before_an_error(x):
    GENERATOR.manual_seed(x.shape[0])
    drawn = torch.rand(3, generator=GENERATOR)
    try:
        drawn = drawn + x @ torch.ones(5)
    except RuntimeError as error:
        return str(error)[:10], drawn, x * drawn
    return drawn


def negative_size(x):
    drawn = torch.rand(3, generator=GENERATOR)
    return x + drawn, torch.rand(1 - x.shape[0], generator=GENERATOR)


def seed_in_a_branch(x):
    torch.manual_seed(x.shape[0])
    if x.sum() > 3:
        torch.manual_seed(1)
    return torch.rand(2) + x.sum()


def seed_after_dropout(x):
    y = F.dropout(x, 0.5)
    torch.manual_seed(4)
    return y, torch.rand(2)


def state_kept(x):
    state = torch.get_rng_state()
    first = torch.rand(3)
    torch.set_rng_state(state)
    return first, torch.rand(3), x + first


def forked(x):
    with torch.random.fork_rng():
        torch.manual_seed(9)
        first = torch.rand(3)
    return first, torch.rand(3) + x.sum()


def seeds_asked(x):
    return torch.initial_seed() == torch.random.initial_seed(), torch.rand(2), x * 2


def seeded_draws(x):
    torch.manual_seed(11)
    noise = torch.nn.init.normal_(torch.empty(3))
    return F.dropout(x, 0.5), noise, torch.bernoulli(torch.full((4,), 0.5)), torch.randn_like(x)


def from_distributions(x):
    torch.manual_seed(2)
    normal = torch.distributions.Normal(0.0, 1.0).sample((3,))
    return torch.multinomial(x.softmax(-1), 2), normal


def random_numbers_of_python(x):
    random.seed(3)
    return x * random.random(), random.randint(0, 9)


def layer_made_inside(x):
    torch.manual_seed(0)
    return torch.nn.Linear(3, 4)(x)


def requires_grad_of_a_result(x):
    y = (x * 2).requires_grad_()
    return y, (y * y).sum(), y.is_leaf


def gradient_of_a_result(x):
    y = (x.detach() * 2).requires_grad_()
    (y * y).sum().backward()
    return y.grad, y


def requires_grad_of_an_input(x):
    x.requires_grad_()
    return (x * 3).sum(), x.requires_grad


def requires_grad_off(x):
    x = x.detach().requires_grad_(True)
    y = x * 2
    x.requires_grad_(False)
    return y, x * 3, x


def requires_grad_by_attribute(x):
    x.requires_grad = True
    return x * 2, x.requires_grad


def detached_in_place(x):
    y = x * WEIGHT
    same_one = y.detach_()
    return y, same_one is y, y.requires_grad, y.is_leaf, y * WEIGHT


def parameter_made_inside(x):
    parameter = torch.nn.Parameter(x.detach() * 2)
    frozen = torch.nn.Parameter(torch.zeros(3), requires_grad=False)
    return parameter, parameter * 3, type(parameter), parameter.requires_grad, x + frozen


def leaves_made_inside(x):
    zeros = torch.zeros(3, requires_grad=True)
    ones = x.new_ones(3, requires_grad=True)
    with torch.no_grad():
        numbers = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    ((zeros + numbers) * ones * x.detach()).sum().backward()
    leaves = (zeros, ones, numbers)
    return [leaf.grad for leaf in leaves], [leaf.is_leaf for leaf in leaves], zeros * x


def fitted_inside(x):
    weight = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = ((x.detach() @ weight - 1) ** 2).mean()
        loss.backward()
        optimizer.step()
    return weight, loss.item()


def module_made_inside(x):
    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))
            self.register_buffer("shift", torch.zeros(3))

        def forward(self, x):
            return x * self.weight + self.shift

    module = Scale()
    return module(x), [name for name, _ in module.named_parameters()]


FUNCTIONS = [
    *(seed_between, seed_before_the_end, generator_made_inside, generator_from_outside),
    *(generator_as_argument, state_kept, forked, seeds_asked, seeded_draws, from_distributions),
    *(random_numbers_of_python, layer_made_inside, requires_grad_of_a_result),
    *(gradient_of_a_result, requires_grad_of_an_input, requires_grad_off),
    *(requires_grad_by_attribute, detached_in_place, parameter_made_inside, module_made_inside),
    *(leaves_made_inside, fitted_inside, generator_of_sizes_that_vary, filled_by_a_generator),
    *(drawn_tensor_written, generator_that_is_returned, drawn_before_an_error, negative_size),
    *(seed_in_a_branch, seed_after_dropout),
]
NAMES = {function.__name__: function for function in FUNCTIONS}


def observed(function, number, needs_gradient):
    """What a call gives, its argument, and where the generators stand behind it."""
    x = torch.arange(6.0).reshape(2, 3)[: 1 + number % 2].clone().requires_grad_(needs_gradient)
    torch.manual_seed(number)
    GENERATOR.manual_seed(number)
    random.seed(number)
    found = outcome(function, (x,))
    return found, torch.rand(2), GENERATOR.get_state(), random.random()


# Every run has each function with a gradient and with none asked for nor recorded, a few in the other ways.
CASES = [
    pytest.param(
        name,
        needs_gradient,
        around,
        marks=pytest.mark.slow
        if place % 4 and needs_gradient != (around is torch.enable_grad)
        else (),
    )
    for place, name in enumerate(NAMES)
    for needs_gradient in (False, True)
    for around in (torch.enable_grad, torch.no_grad)
]


@pytest.mark.parametrize(("name", "needs_gradient", "around"), CASES)
def test_as_in_eager(name, needs_gradient, around):
    function = NAMES[name]
    compiled = compile_frames(function, run_graph)
    with around():
        for number in (0, 1, 2, 3, 3):
            plain = observed(function, number, needs_gradient)
            found = observed(compiled, number, needs_gradient)
            assert same(found, plain), f"{found} is not {plain}"


ONE_GRAPH = [
    *(
        generator_made_inside,
        generator_from_outside,
        generator_of_sizes_that_vary,
        filled_by_a_generator,
    ),
    *(drawn_tensor_written, seeded_draws, from_distributions),
]


@pytest.mark.parametrize("function", ONE_GRAPH)
@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_generators_and_seeds_break_nothing(function, around):
    captured = capture(function)
    with around():
        for number in (0, 1, 2, 3):
            plain = observed(function, number, False)
            results = []

            def called(x, results=results):
                results.append(captured(x))
                return results[0].result

            assert same(observed(called, number, False), plain)
            assert not results[0].breaks, results[0].breaks
            assert number < 2 or not results[0].graphs


KINDS = {
    "seed_between": "state of a random number generator",
    "state_kept": "state of a random number generator",
    "requires_grad_off": "change of requires_grad",
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_breaks(name):
    breaks = capture(NAMES[name])(torch.ones(2, 3)).breaks
    assert breaks[0].kind == KINDS[name]
    assert breaks[0].hints


@pytest.mark.parametrize("function", [requires_grad_of_an_input, leaves_made_inside])
def test_gradients_without_breaks(function):
    assert not capture(function)(torch.ones(2, 3)).breaks


@pytest.mark.parametrize("with_gradients", [False, True])
def test_in_place_detachment_is_in_the_graph(with_gradients):
    with torch.set_grad_enabled(with_gradients):
        found = capture(detached_in_place)(torch.ones(2, 3))
    assert len(found.graphs) == 1
    assert not found.breaks


def test_building_a_layer_of_torch_compiles_nothing():
    def recurrent(x):
        layer = torch.nn.LSTM(3, 4, 2)
        for parameter in layer.parameters():
            torch.nn.init.constant_(parameter, 0.1)
        return layer(x)[0]

    result = capture(recurrent)(torch.ones(5, 2, 3))
    files = [report.location.file for report in result.reports]
    assert files == [__file__] * len(files)


def test_sizes_of_what_is_drawn_compile_nothing_again():
    def drawn(x, y, n):
        noise = torch.randn(2 * y.shape[0], n * 3, generator=GENERATOR) + x
        return noise, torch.rand(n + 1, generator=GENERATOR), random.randint(0, n)

    captured = capture(drawn)
    for n in (2, 3, 4, 5):
        arguments = torch.ones(1), torch.ones(n + 1, 2), n
        GENERATOR.manual_seed(n)
        random.seed(n)
        result = captured(*arguments)
        GENERATOR.manual_seed(n)
        random.seed(n)
        assert same(result.result, drawn(*arguments))
        assert n < 4 or not result.graphs
        assert not result.breaks


@pytest.mark.parametrize(
    "draw",
    [
        lambda n: torch.rand(n - 3, generator=GENERATOR),
        lambda n: torch.randint(0, n - 3, (2,), generator=GENERATOR),
        lambda n: torch.zeros(n).normal_(0, n - 4, generator=GENERATOR),
        lambda n: random.randint(0, n - 4),
        lambda n: random.sample(range(4), n - 3),
    ],
)
def test_draws_that_raise_do_so_where_they_stand(draw):
    def drawn(x, n, noted):
        noted.append(n)
        try:
            return x + 1, draw(n)
        except (RuntimeError, ValueError) as error:
            return x - 1, str(error)

    compiled = compile_frames(drawn, run_graph)
    for n in (5, 6, 7, 2, 3, 4, 5):
        outcomes = []
        for function in (drawn, compiled):
            GENERATOR.manual_seed(n)
            random.seed(n)
            noted = []
            outcomes.append((function(torch.ones(2), n, noted), noted, random.random()))
        assert same(outcomes[1], outcomes[0])

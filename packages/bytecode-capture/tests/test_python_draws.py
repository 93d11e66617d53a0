"""``random`` and ``numpy.random`` in captured code: eager's numbers, and eager's streams behind the call."""

import math
import random

import numpy as np
import pytest
import torch
from differential import same
from weft_bytecode_capture import CaptureOptions, capture

LAYERS = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3)).requires_grad_(False)
OWN = random.Random(3)
OWN_OF_NUMPY = np.random.default_rng(3)
OTHER_OF_NUMPY = np.random.RandomState(4)


def scaled(x):
    return x * random.random() + random.uniform(2, 1) + random.randint(1, 5)


def seeded(x):
    before = random.random()
    random.seed(len(x))
    first = random.random(), random.randint(0, 9), random.gauss(0, 1)
    random.seed("text")
    OWN.seed(3, version=2)
    return x * before + random.random() * OWN.random(), first


def seeded_and_raising(x):
    random.seed(4)
    share = random.random()
    try:
        random.seed(a=7)
        random.randint(3, 1)
    except ValueError as error:
        return x * share + random.random(), str(error)


def distributions(x):
    drawn = [
        random.gauss(0, 1),
        random.betavariate(1, 2),
        random.expovariate(1.5),
        random.randrange(2, 9, 3),
    ]
    return x * drawn[0] + drawn[1] * drawn[2] - drawn[3] - random.getrandbits(5), drawn


def flipped(x):
    if random.random() < 0.5:
        x = x.flip(1)
    return x + 1


def layers_left_out(x):
    for layer in LAYERS:
        if random.uniform(0, 1) < 0.5:
            continue
        x = layer(x)
    return x


def none_left_out(x):
    for layer in LAYERS:
        if random.uniform(0, 1) < 0.0 or np.random.uniform() >= 1.0:
            continue
        x = layer(x)
    return x


def unused(x):
    random.random()
    np.random.rand()
    return x + 1


def of_drawn_lengths(x):
    length = random.choice([2, 3])
    start = np.random.randint(0, 4 - length + 1)
    other = random.randint(start, 3)
    return x[start : start + length], x[other], length, x * random.uniform(0.5, random.random())


def the_larger_share(x):
    share = np.random.beta(0.75, 0.75)
    share = max(share, 1 - share)
    scale = min(max(random.gauss(0, 1), -0.5), 0.5)
    return x * share + (1 - share) * scale, share, f"{scale:.3f}"


def chosen(x):
    weights = (0.5, 1.0, 2.0)
    return x * random.choice(weights) + random.choice(range(2, 9, 3)) + [3, 4][random.randint(0, 1)]


def shuffled(x):
    places = [0, 1, 2, 3]
    random.shuffle(places)
    columns = random.sample(range(4), 2)
    return (
        x[places] + x[places, :][:, [0, columns[0], 2, 1]],
        x[:, columns],
        places,
        random.choices([1, 2], k=3),
    )


def cropped(x):
    i, j = random.randint(0, 2), np.random.randint(0, 2)
    return x[i : i + 2, j : j + 2], x[i]


def mixed(x):
    share = np.random.beta(0.4, 0.4)
    order = torch.from_numpy(np.random.permutation(4))
    return share * x + (1 - share) * x[order], share


def arrays(x):
    noise = torch.from_numpy(np.random.randn(4, 4)).float()
    return x + noise * float(np.random.rand()), torch.tensor(np.random.normal(0, 1, size=(2,)))


def of_other_generators(x):
    x = x * OWN.random() + OWN_OF_NUMPY.random() + OTHER_OF_NUMPY.rand()
    return x + OWN.randint(0, 3) + torch.from_numpy(OWN_OF_NUMPY.standard_normal(4))


def seeds_of_torch(x):
    return x + torch.rand(4) * random.random() + torch.rand(4)


def errors(x):
    try:
        random.randint(3, 1)
    except ValueError as error:
        return x + random.random(), str(error)
    return x


def functions_of_draws(x):
    share, scale = random.betavariate(1.0, 1.0), random.uniform(0.5, 2)
    ratio = math.exp(random.uniform(math.log(0.3), math.log(3.3)))
    numbers = [
        math.sqrt(1 - share),
        round(scale, 1),
        scale // 0.3,
        scale % 0.1,
        10**share,
        share / scale,
    ]
    whole = [
        int(8 * scale),
        round(ratio * 3),
        2 ** random.randint(0, 3),
        math.floor(ratio),
        int(ratio),
    ]
    return x * ratio + sum(whole), numbers, whole, x[: int(4 * math.sqrt(share))]


def cut_out(x):
    share = random.betavariate(1.0, 1.0)
    side = int(4 * math.sqrt(1 - share))
    row, column = random.randrange(4), random.randrange(4)
    top, bottom = max(row - side // 2, 0), min(row + side // 2, 4)
    left, right = max(column - side // 2, 0), min(column + side // 2, 4)
    x = x.clone()
    x[top:bottom, left:right] = 0
    return x, 1 - (bottom - top) * (right - left) / x.numel()


ONE_GRAPH = [
    functions_of_draws,
    cut_out,
    scaled,
    seeded,
    seeded_and_raising,
    distributions,
    flipped,
    layers_left_out,
    none_left_out,
    unused,
    cropped,
    mixed,
    arrays,
]
ONE_GRAPH += [
    the_larger_share,
    of_drawn_lengths,
    chosen,
    shuffled,
    of_other_generators,
    seeds_of_torch,
    errors,
]


def seen(function, x):
    """Results of three calls, and what all generators give after them."""
    for generator in (random, OWN):
        generator.seed(5)
    np.random.seed(5)
    OTHER_OF_NUMPY.seed(6)
    OWN_OF_NUMPY.bit_generator.state = np.random.PCG64(7).state
    torch.manual_seed(5)
    found = []
    for _ in range(3):
        try:
            found.append(function(x))
        except (ArithmeticError, IndexError, ValueError) as error:
            found.append(str(error))
    after = [
        random.random(),
        OWN.random(),
        np.random.rand(),
        OTHER_OF_NUMPY.rand(),
        OWN_OF_NUMPY.random(),
    ]
    return found, after, torch.rand(2)


def check(function, **options):
    x = torch.randn(4, 4)
    captured = capture(function, options=CaptureOptions(assume_decisions=None, **options))
    for _ in range(2):
        assert same(seen(lambda x: captured(x).result, x), seen(function, x))


@pytest.mark.parametrize("function", ONE_GRAPH)
def test_in_one_graph(function):
    check(function, fullgraph=True)


def test_a_probability_of_zero_needs_no_branch():
    (graph,) = capture(none_left_out)(torch.randn(4, 4)).graphs
    assert "cond" not in graph.graph_module.code


def seeded_between(x):
    x = x * random.random()
    random.seed(3)
    np.random.seed(4)
    return x * random.random() + np.random.rand()


def state_kept(x):
    state = random.getstate()
    first = random.random()
    random.setstate(state)
    return x * first - x * random.random()


def other_things_chosen(x):
    return x * random.choice([1, 2.0, 3]), random.choice("abc"), random.choice([x, x + 1])


def other_things_shuffled(x):
    names = ["a", "b", "c"]
    random.shuffle(names)
    return x, names, random.sample(names, 2)


def of_a_tensors_number(x):
    return x * random.uniform(0, x.sum().item())


def in_a_long_loop(x):
    for _ in range(20):
        x = x * random.uniform(0.9, 1.1)
    return x


def functions_that_may_raise(x):
    drawn = random.random()
    try:
        root = math.sqrt(random.uniform(-1, 1))
    except ValueError as error:
        return x * drawn, str(error)
    return x * drawn, root, math.log(random.uniform(0.5, 1)), 1 / random.randint(1, 2)


def functions_that_raise(x):
    x = x * random.random()
    return x * math.log(random.randint(-2, 1)), 1 // random.randint(0, 1)


def on_one_side(x):
    return x * random.random() if x.sum() > 0 else x + np.random.rand()


def fails_behind(x):
    x = x * random.random() + np.random.rand()
    return x[torch.tensor([int(x.abs().sum()) + 9])] + random.random()


def by_the_system(x):
    return x + 0 * random.SystemRandom().random()


@torch.library.custom_op("weft_tests::python_draws", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x * random.random()


@noisy.register_fake
def _noisy(x):
    return torch.empty_like(x)


def around_an_operator_that_draws(x):
    return noisy(x * random.random()) * random.random()


@pytest.mark.parametrize(
    "function",
    [
        seeded_between, state_kept, other_things_chosen, other_things_shuffled, of_a_tensors_number,
        in_a_long_loop, on_one_side, fails_behind, functions_that_may_raise, functions_that_raise,
        by_the_system, around_an_operator_that_draws,
    ],
)  # fmt: skip
def test_as_eager(function):
    check(function)


def test_an_error_draws_what_eager_draws():
    def looked_up(x, index):
        x = x * random.random()
        y = x[index]
        return y + random.random() + np.random.rand()

    def after(function, index):
        random.seed(2)
        np.random.seed(2)
        try:
            function(torch.ones(3), index)
        except IndexError:
            pass
        else:
            assert index < 3
        return random.random(), np.random.rand()

    captured = capture(looked_up)
    for index in (1, 5, 2, 7):
        place = torch.tensor(index)
        assert after(captured, place) == after(looked_up, place)
    assert len(capture(looked_up)(torch.ones(3), torch.tensor(1)).graphs) == 1


def test_under_inference_mode_and_with_gradients():
    weight = torch.ones(4, requires_grad=True)

    def loss(x):
        return (x * weight * random.random()).sum() * np.random.rand()

    captured = capture(loss, options=CaptureOptions(fullgraph=True))
    gradients = []
    for function in (loss, lambda x: captured(x).result):
        random.seed(1)
        np.random.seed(1)
        (gradient,) = torch.autograd.grad(function(torch.ones(4)), weight)
        with torch.inference_mode():
            gradients.append((gradient, function(torch.ones(4)).item()))
    assert same(*gradients)

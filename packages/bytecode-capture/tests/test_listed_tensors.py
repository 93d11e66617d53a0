"""``torch.tensor`` of lists that hold tensors of the graph: dtypes, nesting, devices."""

import collections
import random
import warnings

import pytest
import torch
from weft_bytecode_capture import capture

VALUES = [
    lambda x: x.sum(),
    lambda x: x.argmax(),
    lambda x: (x > 0).any(),
    lambda x: x.sum().double(),
    lambda x: x.max().half(),
    lambda x: x.argmin().to(torch.int16),
    lambda x: 3,
    lambda x: 2.5,
    lambda x: True,
    lambda x: x.shape[0],
    lambda x: x.argmax().item(),
]
DTYPES = [None, torch.float32, torch.float64, torch.int64, torch.bool]


def random_nesting(generator):
    """A list, a list of lists or of tuples, as positions in VALUES."""
    rows = generator.choice([0, 1, 2, 3])
    choose = lambda: generator.randrange(len(VALUES))  # noqa: E731
    columns = generator.choice([1, 2, 3])
    return [[choose() for _ in range(columns)] for _ in range(rows)] or [choose()]


@pytest.mark.parametrize("seed", range(24))
def test_as_eager(seed) -> None:
    generator = random.Random(seed)
    nesting, dtype = random_nesting(generator), generator.choice(DTYPES)
    make = generator.choice([torch.tensor, torch.as_tensor])
    keywords = {} if dtype is None else {"dtype": dtype}

    def listed(numbers, x):
        if isinstance(numbers, list):
            return (
                tuple([listed(n, x) for n in numbers])
                if seed % 2
                else [listed(n, x) for n in numbers]
            )
        return VALUES[numbers](x)

    def function(x):
        return make(listed(nesting, x), **keywords) + x.sum() * 0

    captured = capture(function)
    for size in (3, 5):
        x = torch.randn(size, generator=torch.Generator().manual_seed(seed)).requires_grad_(
            seed % 3 == 0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = outcome(function, x)
            found = outcome(lambda x: captured(x).result, x)
        assert type(found) is type(wanted), (found, wanted)
        if isinstance(wanted, torch.Tensor):
            assert found.dtype == wanted.dtype and found.requires_grad == wanted.requires_grad
            torch.testing.assert_close(found, wanted)


def outcome(function, x):
    try:
        return function(x)
    except Exception as error:
        return error


def test_one_graph() -> None:
    def function(x):
        counts = [row.argmax() + 1 - len(row) for row in x]
        return torch.tensor([counts, [x.sum().long(), 3]]).unsqueeze(1)

    result = capture(function)(torch.randn(2, 4))
    assert not result.breaks and result.result.shape == (2, 1, 2)


def test_numbers_that_data_decides() -> None:
    def function(x):
        chosen = x[x > 0]
        n, total = chosen.shape[0], x.sum().item()
        return (
            torch.tensor([n, 3]),
            torch.tensor([total, n, 2.0]),
            torch.tensor(n),
            torch.tensor(n, dtype=torch.float64),
            torch.tensor([[n], [n - 1]]),
            torch.tensor(total),
        )

    captured = capture(function)
    for seed, size in enumerate((5, 8, 3, 3)):
        x = torch.randn(size, generator=torch.Generator().manual_seed(seed))
        result = captured(x)
        assert not result.breaks and len(result.graphs) == (seed < 2)
        for found, wanted in zip(result.result, function(x), strict=True):
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_numbers_that_data_decides_may_be_too_large(dtype) -> None:
    def function(x):
        return torch.tensor([int(x.sum().item()), 1], dtype=dtype)

    captured = capture(function)
    for last in (3.0, 2.0**40):
        x = torch.tensor([1.0, last])
        wanted, found = outcome(function, x), outcome(lambda x: captured(x).result, x)
        assert type(found) is type(wanted) and str(found) == str(wanted)


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor, torch.asarray])
def test_of_a_tensor(make) -> None:
    """``as_tensor`` of a tensor is that tensor, with its gradient; ``tensor`` copies."""

    def function(x):
        y = x.sum()
        made = make(y)
        return made, made is y, make([1.0, 2.0]) + made

    x = torch.ones(3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, wanted = capture(function)(x).result, function(x)
    assert found[1] == wanted[1]
    for got, want in zip(found[::2], wanted[::2], strict=True):
        assert got.requires_grad == want.requires_grad and torch.equal(got, want)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.Tensor([x[0], x[1], 2, True]),
        lambda x: torch.FloatTensor([[x[0], 1], [x[1].long(), x.argmax()]]),
        lambda x: torch.LongTensor([x[0].long(), torch.tensor(True), 3]),
        lambda x: torch.LongTensor([x[0], 3]),
        lambda x: torch.Tensor([x[:1], x[1:]]),
        lambda x: torch.Tensor([x, x]),
    ],
)
def test_old_constructors_of_lists_of_tensors(make) -> None:
    x = torch.tensor([1.7, 2.2], requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted, found = outcome(make, x), outcome(lambda x: capture(make)(x).result, x)
    assert type(found) is type(wanted) and str(found) == str(wanted)
    if isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype and found.requires_grad == wanted.requires_grad


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor])
@pytest.mark.parametrize("value", [lambda x: 0.5, lambda x: x.sum(), lambda x: x.sum().item()])
def test_of_deques(make, value) -> None:
    def returns(x, outside):
        found = collections.deque(maxlen=4)
        for step in range(6):
            found.appendleft(value(x) * step)
        return make(found) + x, make(outside) * x, list(found)

    outside = collections.deque([1.0, 2.0, 3.0, 4.0])
    for _ in range(2):
        captured = capture(returns)(torch.arange(4.0), outside)
        torch.testing.assert_close(captured.result, returns(torch.arange(4.0), outside))
        assert not captured.breaks
        outside.rotate()

"""Results have eager's strides: behind writes, branches and loops, and where there is no element."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft

T = torch.Tensor


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    weft.reset()
    yield
    weft.reset()


def matrices() -> Iterator[T]:
    """Row by row, column by column, with gaps in rows, between rows, in columns; a part that begins late."""
    values = torch.arange(1.0, 97.0)
    yield values[:24].view(4, 6)
    yield values[:24].view(6, 4).t()
    yield values[:48].view(4, 12)[:, ::2]
    yield values[:48].view(4, 12)[:, :6]
    yield values[:48].view(12, 4)[::2].t()
    yield values[:96].view(8, 12)[1::2, 1::2]
    yield values[:64].view(4, 16)[:, 1:12:2]


def laid_out(value: T) -> tuple[Any, ...]:
    """Where elements lie; of a dim of one element the stride means nothing."""
    return value.shape, [s for n, s in zip(value.shape, value.stride(), strict=True) if n > 1]


def check(function: Callable[..., T], operands: Iterable[T], dynamic: bool | None = False) -> None:
    """Values and strides are as in eager, and so is what is written."""
    compiled = weft.compile(function, dynamic=dynamic, options={"strict": True})
    for given in operands:
        own, other = (
            torch.empty_strided(given.shape, given.stride()).copy_(given) for _ in range(2)
        )
        expected, found = function(own), compiled(other)
        assert laid_out(found) == laid_out(expected), given.stride()
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(other, own)


def written_slice(x: T) -> T:
    x.mul_(2)
    return x.slice_scatter(x[:1] * 3, 0, 1, 2)


def written_row(x: T) -> T:
    x[x > 20] = 0.5
    return x.select_scatter(x.select(0, 0) * 2, 0, -1)


def written_diagonal(x: T) -> T:
    x.add_(1)
    return x.diagonal_scatter(x.diagonal() * 2)


def written_part(x: T) -> T:
    part = x.chunk(2, 1)[0]
    part.mul_(-1)
    return part.select_scatter(part[0] * 2, 0, 1)


@pytest.mark.parametrize(
    "function",
    [written_slice, written_row, written_diagonal, written_part],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_scatters_into_what_was_written(function: Callable[[T], T], dynamic: bool) -> None:
    check(function, matrices(), dynamic)


def sorted_in_a_loop(x: T) -> T:
    y = x
    for _ in range(25):
        x[x > 20] = 2.0
        y = x.sort(0)[0]
    return y


def added_in_a_loop(x: T) -> T:
    for _ in range(25):
        x.mul_(0.9)
        y = x + 1
    return y


def part_in_a_loop(x: T) -> T:
    for _ in range(25):
        y = (x * 2).split(2, 1)[-1]
    return y


def columns_in_a_loop(x: T) -> T:
    for _ in range(25):
        y = (x * 2)[1::2, ::3]
    return y


def part_in_a_branch(x: T) -> T:
    return (x * 2)[:, ::2] if x.sum() > 400 else (x * 3)[:, ::2]


@pytest.mark.parametrize(
    "function",
    [sorted_in_a_loop, added_in_a_loop, part_in_a_loop, columns_in_a_loop, part_in_a_branch],
    ids=lambda f: f.__name__,
)
def test_results_of_kept_regions(function: Callable[[T], T]) -> None:
    check(function, matrices())


def images_of_rank(rank: int) -> list[T]:
    """In several orders of the dims, and with gaps."""
    sizes = {3: (2, 3, 8), 4: (2, 3, 5, 4), 5: (2, 3, 4, 5, 2)}[rank]
    dims = list(range(rank))
    images = []
    for order in ([*dims], [0, *dims[2:], 1], dims[::-1], [*dims[:-2], dims[-1], dims[-2]]):
        lying = torch.arange(240.0)[: torch.Size(sizes).numel()].view([sizes[d] for d in order])
        images.append(lying.permute([order.index(d) for d in dims]))
    return [*images, torch.ones(*sizes[:-1], 2 * sizes[-1])[..., ::2]]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "by dims"])
@pytest.mark.parametrize("by_factor", [True, False])
def test_resized_images(dynamic: bool, mode: str, by_factor: bool) -> None:
    """All images of a rank in one program; strides are read in it, and are those of its results."""
    linear = {3: "linear", 4: "bilinear", 5: "trilinear"}
    for rank in linear:
        how: dict[str, Any] = {"scale_factor": 2} if by_factor else {"size": (3,) * (rank - 2)}
        how["mode"] = linear[rank] if mode == "by dims" else mode

        def resized(*images: T, how: dict[str, Any] = how) -> list[T]:
            return [F.interpolate(x, **how) for x in images]

        def laid_out_anew(*images: T, resized: Any = resized) -> list[T]:
            return [y.as_strided(y.shape, y.stride()) * 1 for y in resized(*images)]

        images = images_of_rank(rank)
        for function in (resized, laid_out_anew):
            compiled = weft.compile(function, dynamic=dynamic, options={"strict": True})
            for expected, found in zip(function(*images), compiled(*images), strict=True):
                assert laid_out(found) == laid_out(expected), expected.stride()
                torch.testing.assert_close(found, expected)


def empties() -> list[T]:
    return [
        torch.zeros(0, 3, 7, 3).contiguous(memory_format=torch.channels_last),
        torch.zeros(2, 0, 7, 3).contiguous(memory_format=torch.channels_last),
        torch.zeros(7, 4)[:0].t(),
        torch.zeros(4, 6)[:, :0],
        torch.zeros(4, 0),
        torch.zeros(3, 1, 0).expand(3, 5, 0),
        torch.zeros(4, 6, 2)[:, ::2, :0].transpose(0, 2),
    ]


ON_NOTHING: dict[str, Callable[[T], T]] = {
    "where": lambda x: torch.where(x > 0, x, x),
    "sum": lambda x: x + x,
    "scaled": lambda x: x * 2,
    "compared": lambda x: x == x.detach(),
    "degrees": torch.deg2rad,
    "rounded": lambda x: torch.floor_divide(x, torch.ones(())),
    "copied": lambda x: x.to(torch.float64),
    "clamped": lambda x: x.clamp(0, 1),
}


@pytest.mark.parametrize("name", ON_NOTHING)
def test_strides_of_nothing(name: str) -> None:
    function = ON_NOTHING[name]

    def strides(x: T) -> tuple[int, ...]:
        return function(x).stride()

    compiled = weft.compile(strides, dynamic=False, options={"strict": True})
    for given in empties():
        assert compiled(given) == strides(given), given.stride()


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
@pytest.mark.parametrize("dynamic", [False, True])
def test_losses_of_images_of_labels(loss: Callable[..., T], dynamic: bool) -> None:
    def losses(x: T, labels: T) -> T:
        return loss(x, labels, reduction="none")

    labels = torch.arange(24).view(2, 3, 4) % 5
    compiled = weft.compile(losses, dynamic=dynamic, options={"strict": True})
    for lying in (labels, labels.mT.contiguous().mT, labels[:, :, :1].expand(2, 3, 4)):
        for given in (torch.randn(2, 5, 3, 4), torch.randn(2, 3, 4, 5).permute(0, 3, 1, 2)):
            found, expected = compiled(given, lying), losses(given, lying)
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dynamic", [False, True])
def test_classes_of_labels(dynamic: bool) -> None:
    def strides(labels: T) -> tuple[Any, ...]:
        y = F.one_hot(labels, 6)
        return y.stride(), y * 2

    labels = torch.arange(24).view(2, 3, 4) % 6
    compiled = weft.compile(strides, dynamic=dynamic, options={"strict": True})
    for lying in (labels, labels.mT.contiguous().mT, labels.permute(2, 0, 1), labels[:, :1]):
        (found, value), (expected, wanted) = compiled(lying), strides(lying)
        assert (found, value.stride()) == (expected, wanted.stride()), lying.stride()
        torch.testing.assert_close(value, wanted)


def with_dims_of_one() -> Iterator[T]:
    """Dims of one element whose strides are not those of a contiguous tensor or an image."""
    yield torch.arange(1.0, 10.0).view(3, 1, 3, 1).permute(3, 2, 1, 0)
    yield torch.arange(1.0, 25.0).view(4, 1, 3, 2).permute(1, 2, 0, 3)
    yield torch.arange(1.0, 8.0).view(7, 1).t()
    yield torch.arange(1.0, 8.0).as_strided((7, 1), (1, 7))
    yield torch.arange(1.0, 25.0).view(6, 4)[:, 1:2]
    yield torch.arange(1.0, 9.0).as_strided((1, 2, 4), (1, 4, 1))


ON_DIMS_OF_ONE: dict[str, Callable[[T], T]] = {
    "scaled": lambda x: x * 2,
    "by a tensor": lambda x: x * torch.tensor(2.0),
    "added": lambda x: x + x,
    "angle": lambda x: torch.atan2(torch.tensor(3), x),
    "sign": lambda x: torch.copysign(x, torch.tensor(-1.0)),
    "step": lambda x: x.heaviside(x),
    "rounded": lambda x: x // 2,
    "both": lambda x: x.logical_and(x),
    "compared": lambda x: x > 3,
    "positive": torch.relu,
    "filled": lambda x: x.masked_fill(x > 3, 1),
    "chosen": lambda x: torch.where(x > 3, x, 1.0),
    "finite": torch.nan_to_num,
    "exponential": torch.exp,
    "rolled": lambda x: (x * 2).roll(1, -1),
    "flipped": lambda x: x.flip(0),
    "zeros": torch.zeros_like,
    "squares": lambda x: F.mse_loss(x, x + 1, reduction="none"),
    "columns": lambda x: x[:, torch.tensor([0, 0])],
    "put": lambda x: x.index_put((torch.tensor([0]),), x[0]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ON_DIMS_OF_ONE)
def test_strides_of_dims_of_one(name: str, dynamic: bool) -> None:
    function = ON_DIMS_OF_ONE[name]

    def strides(x: T) -> tuple[Any, ...]:
        y = function(x)
        return y.stride(), y * 1

    for given in with_dims_of_one():
        compiled = weft.compile(strides, dynamic=dynamic, options={"strict": True})
        (found, value), (expected, wanted) = compiled(given), strides(given)
        assert (found, value.stride()) == (expected, wanted.stride()), given.stride()
        torch.testing.assert_close(value, wanted)


def test_strides_of_as_many_rows_as_data_says() -> None:
    def strides(x: T) -> tuple[int, ...]:
        return (x.nonzero() * 2).stride()

    compiled = weft.compile(strides, options={"strict": True})
    for x in (torch.arange(9.0), torch.ones(5), torch.ones(3, 4)):
        assert compiled(x) == strides(x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.dropout(x, 0.5),
        lambda x: torch.dropout(x, 0.5, True),
        lambda x: torch.feature_dropout(x, 0.5, True),
        torch.nn.Dropout(0.3),
    ],
    ids=["function", "operator", "features", "module"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_of_nothing_is_its_operand(function: Callable[[T], T], dtype: torch.dtype) -> None:
    compiled = weft.compile(lambda x: function(x), options={"strict": True})
    for size in (7, 2, 3):
        x = torch.zeros(size, 0, 2, dtype=dtype)
        assert function(x) is x
        assert compiled(x) is x


LAZY: dict[str, Callable[[T], T]] = {
    "ihfft": lambda z: torch.fft.ihfft(z.real),
    "ifft": lambda z: torch.fft.ifft(z.real),
    "conjugate of a product": lambda z: (z * 2).conj(),
    "its row": lambda z: (z * 2).conj()[1:],
    "adjoint": lambda z: (z + 1).mH,
    "imaginary part": lambda z: (z * 2).conj().imag,
    "copied": lambda z: (z * 2).conj().clone(),
    "resolved": lambda z: (z * 2).conj().resolve_conj(),
}


@pytest.mark.parametrize(("name", "dynamic"), itertools.product(LAZY, (False, True)))
def test_results_are_as_lazy_as_eagers(name: str, dynamic: bool) -> None:
    function = LAZY[name]
    compiled = weft.compile(function, dynamic=dynamic, options={"strict": True})
    told = []
    for called in (function, compiled):
        z = torch.complex(*torch.arange(1.0, 61.0).view(2, 6, 5)).requires_grad_()
        result = called(z)
        (gradient,) = torch.autograd.grad(result.abs().square().sum(), z)
        told.append((result, gradient))
    (expected, wanted), (found, given) = told
    assert (found.is_conj(), found.is_neg()) == (expected.is_conj(), expected.is_neg())
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(given, wanted)


@pytest.mark.native  # the sign that a kernel gives
@pytest.mark.parametrize(
    ("low", "high"), [(0.0, None), (-0.0, None), (None, 0.0), (-0.0, 0.0), (0, 1)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [5, 64])
def test_zeros_keep_their_sign_where_they_are_clamped(
    low: float | None, high: float | None, dtype: torch.dtype, size: int
) -> None:
    x = torch.tensor([-0.0, 0.0, 1.0, -1.0, 0.5], dtype=dtype).repeat(13)[:size]
    found = weft.compile(lambda x: x.clamp(low, high), options={"strict": True})(x)
    expected = x.clamp(low, high)
    assert torch.equal(found, expected)
    assert torch.equal(found.signbit(), expected.signbit())


@pytest.mark.parametrize("function", [torch.fmin, torch.fmax])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_the_first_of_two_zeros_is_taken(function: Any, dtype: torch.dtype) -> None:
    x = torch.tensor([-0.0, 0.0] * 9, dtype=dtype)
    expected, found = function(x, -x), weft.compile(lambda x, y: function(x, y))(x, -x)
    assert torch.equal(found.signbit(), expected.signbit())


@pytest.mark.parametrize("dim", [None, 0, 1, -1])
@pytest.mark.parametrize("function", [torch.unique, torch.unique_consecutive])
def test_distinct_slices_lie_as_eagers(function: Any, dim: int | None) -> None:
    x = torch.tensor([[[1, 1], [2, 2]], [[1, 1], [1, 0]], [[1, 1], [2, 2]]])
    for operand in (x, x.transpose(0, 2)):
        expected = function(operand, return_inverse=True, return_counts=True, dim=dim)
        found = weft.compile(function)(operand, return_inverse=True, return_counts=True, dim=dim)
        assert [part.stride() for part in found] == [part.stride() for part in expected]
        torch.testing.assert_close(found, expected)


def test_places_of_distinct_numbers_are_integers() -> None:
    x = torch.tensor([2.0, 1.0, 2.0, 1.0, 0.5])
    expected = torch.unique(x, return_inverse=True, return_counts=True)
    found = weft.compile(torch.unique)(x, return_inverse=True, return_counts=True)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dynamic", [False, True])
def test_pooled_rows(dynamic: bool) -> None:
    """Without gradients eager has a kernel of its own on the CPU, which gives rows one behind the other."""
    rows = torch.arange(210.0).sin().view(2, 7, 15).mT
    check(lambda x: F.max_pool1d(x, 2, ceil_mode=True), [rows, rows[:, 1:]], dynamic)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.adaptive_avg_pool2d(x, 1),
        lambda x: (F.adaptive_avg_pool2d(x, 1) * 2, x.mean((2, 3), keepdim=True)),
        lambda x: (x.sum((2, 3), keepdim=True) + 1).as_strided((2, 1), (3, 7)),
        lambda x: F.adaptive_max_pool2d(x, 1),
    ],
)
def test_dims_of_one_element_in_training(function: Callable[[T], Any]) -> None:
    """Their strides tell whether an image is channels-last; what results lead to is eager's too."""
    compiled = weft.compile(function)
    for columns in (4, 5):
        told = []
        for called in (function, compiled):
            image = torch.arange(24.0 * columns).view(2, 3, 4, columns).sin()
            x = image.to(memory_format=torch.channels_last).requires_grad_()
            results = called(x)
            parts = results if isinstance(results, tuple) else (results,)
            sum((part * part).sum() for part in parts).backward()
            told.append(([part.stride() for part in parts], [*parts, x.grad]))
        assert told[1][0] == told[0][0]
        torch.testing.assert_close(told[1][1], told[0][1])

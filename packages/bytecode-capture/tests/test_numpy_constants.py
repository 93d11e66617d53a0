"""Arrays that captured code makes of constants, and conversions between tensors and arrays."""

import numpy as np
import pytest
import torch
from weft_bytecode_capture import capture

X = torch.arange(12.0).reshape(3, 4)


def positions(x):
    rows, columns = x.shape
    angles = np.arange(rows)[:, None] / np.power(
        10000, 2 * (np.arange(columns)[None] // 2) / columns
    )
    angles[:, 0::2] = np.sin(angles[:, 0::2])
    angles[:, 1::2] = np.cos(angles[:, 1::2])
    return x + torch.from_numpy(angles).float()


def of_old_constructors(x):
    rows = np.array([[p / (j + 1) for j in range(4)] for p in range(3)])
    mask = np.triu(np.ones((3, 4)), k=1).astype("uint8")
    hidden = torch.from_numpy(mask) == 0
    return x + torch.FloatTensor(rows), torch.DoubleTensor(rows) * 2, x.masked_fill(hidden, 0.5)


def of_an_old_constructor_that_shares(x):
    a = np.ones(4, dtype=np.float32)
    t = torch.FloatTensor(a)
    t += x[0]
    return t, a


def schedule(x):
    times = np.linspace(0, 1, 4)
    betas = np.clip(times**2 * 0.5, 0.01, 0.4)
    alphas = np.cumprod(1.0 - betas)
    return x * torch.tensor(alphas, dtype=torch.float32), [float(v) for v in times], alphas.shape


def written(x):
    mask = np.zeros((3, 4), dtype=bool)
    mask[1] = True
    mask[:, 0] |= True
    part = mask[2]
    part[3] = True
    return x * torch.tensor(mask), int(mask.sum()), mask.any(axis=0).tolist(), len(mask)


def in_place(x):
    a = np.ones(4)
    b = a
    a += 2
    a *= np.arange(4)
    a[a > 5] = -1
    return x + torch.tensor(b, dtype=torch.float32), b is a, a.dtype, (a == b).all()


def returned(x):
    a = np.arange(4)
    a[0] = 9
    return x + 1, a, np.stack([a, a]), np.float32(2.5), a.mean()


def of_parts(x):
    grid = np.meshgrid(np.arange(2), np.arange(3), indexing="ij")
    one, two = np.split(np.arange(4), 2)
    rows = [row * 2 for row in np.eye(2)]
    return (
        x + sum(part.sum() for part in grid),
        one.copy(),
        np.where(two > 2, two, 0),
        rows,
        sorted(two),
    )


def with_tensors(x):
    row = x[0].numpy()
    window = np.hanning(4).astype(np.float32)
    return torch.from_numpy(np.multiply(row, window) + window * 2), row.shape


def joined(x):
    a, b = x.numpy(), np.ones((3, 4), np.float32)
    c = np.concatenate([a, a * 2, b], axis=1)
    d = np.stack((a, b))
    e = np.where(a > 3, a, 0)
    f = np.where(a > 3, a, a * 2) + np.clip(a, 1, 5.5) + np.clip(a, None, 2)
    return c, d, torch.from_numpy(e), f, c.dtype, e.dtype


def over_rows(x):
    a = x.numpy()
    rows = [torch.tensor(row.max()) for row in a]
    first, *rest = a
    return rows, torch.from_numpy(first), len(rest), [float(v) for v in np.ones(2)]


def converted(x):
    a = np.asarray(x)
    b = np.array(x)
    c = torch.from_numpy(b)
    c += 1
    return torch.from_numpy(a) * 2, c, x


def converted_and_written(x):
    y = x + 1
    a = np.asarray(y)
    y += 1
    return torch.from_numpy(a)


def in_another_order(x):
    a = x.t().numpy()
    found = np.concatenate([a, a]), np.where(a > 1, a, 0), np.clip(a, 1, 2), np.stack([a, a])
    return tuple(torch.from_numpy(part) for part in found), [
        torch.from_numpy(f).stride() for f in found
    ]


def shared(x):
    a = np.ones(4)
    part = a[1:]
    t = torch.from_numpy(a)
    part[0] = 5
    a[3] = 7
    return x + t.float(), a


def shared_and_written(x):
    a = np.ones(4, dtype=np.float32)
    t = torch.as_tensor(a)
    t += x[0]
    b = np.ones(4)
    u = torch.as_tensor(b, dtype=torch.float64)
    u += 1
    return t, a, u, b


def views_returned(x):
    a = np.arange(6)
    return x + 1, a, a.reshape(2, 3)


def caught(x):
    try:
        np.ones(3) + np.ones(4)
    except ValueError as error:
        return x, str(error)
    return None


def in_a_long_loop(x):
    total = np.zeros(20)
    for i in range(20):
        total[i] = i * 2
        x = x + i
    return x + torch.tensor(total).sum()


IN_ONE_GRAPH = [
    positions, schedule, of_old_constructors, written, in_place, returned, of_parts, with_tensors, converted,
    caught, converted_and_written, joined, over_rows,
]  # fmt: skip


def same(left, right):
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, np.ndarray):
        kinds = (left.dtype, left.flags.writeable) == (right.dtype, right.flags.writeable)
        return kinds and left.strides == right.strides and np.array_equal(left, right)
    return type(left) is type(right) and left == right


@pytest.mark.parametrize(
    "function",
    [
        *IN_ONE_GRAPH,
        of_an_old_constructor_that_shares,
        in_another_order,
        shared,
        shared_and_written,
        views_returned,
        in_a_long_loop,
    ],
)
def test_as_eager(function) -> None:
    captured = capture(function)
    for _ in range(3):
        assert same(captured(X.clone()).result, function(X.clone()))


@pytest.mark.parametrize("function", IN_ONE_GRAPH)
def test_no_break(function) -> None:
    assert not capture(function)(X.clone()).breaks


def test_each_call_has_arrays_of_its_own() -> None:
    captured = capture(returned)
    first, second = (captured(X).result[1] for _ in range(2))
    first[1] = 100
    assert second[1] == 1
    assert captured(X).result[1][1] == 1


def test_views_that_are_returned_share_their_memory() -> None:
    captured = capture(views_returned)
    for _ in range(2):
        _, a, b = captured(X).result
        a[0] = 7
        assert b[0, 0] == 7


def test_an_array_of_a_tensor_shares_its_memory() -> None:
    def function(x):
        return np.asarray(x), np.array(x)

    x = torch.ones(3)
    one, two = capture(function)(x).result
    x += 1
    assert one[0] == 2 and two[0] == 1

"""NumPy in captured code: scalars, arrays from outside and of tensors, arrays of constants."""

from __future__ import annotations

import pytest
import torch
from differential import check, run_graph, same
from weft_bytecode_capture import CaptureOptions, compile_frames

np = pytest.importorskip("numpy")

ARRAY = np.array([1.0, 2.0, 3.0], dtype=np.float32)


def scalars(x, s, n):
    d = np.sqrt(x.shape[-1])
    return x * s, s + 1, float(s), x[:n], x.sum(0).repeat(n), n * 2, x / d, d, s.dtype, 2 * s


def made_inside(x, s, n):
    return (
        x * np.sqrt(2.0),
        x * np.float32(3),
        np.pi * x,
        np.prod([2, 3]),
        int(np.ceil(x.shape[0] / 2)),
    )


def shapes(x, s, n):
    return x.reshape(int(np.prod(x.shape))), torch.zeros(n), x.new_ones(n + 1)


def arrays_of_constants(x, s, n):
    a = np.array([1.0, 2.0, 3.0], dtype=np.float32)
    steps = torch.tensor(np.linspace(0, 1, 3), dtype=torch.float32)
    return (
        x * torch.from_numpy(a),
        x * steps,
        torch.from_numpy(np.zeros((2, 2), np.float32)),
        np.arange(4.0),
    )


def array_from_outside(x, s, n):
    return x * torch.from_numpy(ARRAY), x * torch.as_tensor(ARRAY), torch.tensor(ARRAY), ARRAY.shape


def of_a_tensor(x, s, n):
    a = x.numpy()
    b = np.sin(a) * 2 + a.mean(axis=0) - 1
    return (
        torch.from_numpy(b) + x,
        b,
        a,
        a.sum(),
        a.max(axis=1),
        a[0],
        a[:, 1:],
        a.T,
        a.reshape(3, 2),
    )


def of_arrays(x, s, n):
    return (
        np.maximum(ARRAY, ARRAY[::1] * 0.5),
        ARRAY**2,
        ARRAY > 1.5,
        ARRAY / 2,
        1 - ARRAY,
        np.exp(ARRAY),
    )


def reductions(x, s, n):
    a = x.numpy()
    return (
        np.sum(a),
        a.mean(),
        a.prod(axis=1),
        a.min(axis=(0, 1)),
        a.sum(axis=1, keepdims=True),
        a.copy(),
    )


TABLES = {
    kind: np.linspace(0.9, 0.1, 4).astype(kind) for kind in (np.float32, np.float64, np.float16)
}
STEPS = np.array([2, 0, 1, 3])
TAKEN = np.array([True, False, True, True])


def numbers_of_arrays(x, s, n):
    found = []
    for table in TABLES.values():
        a = table[int(n)]
        found += [
            a * x,
            x - a,
            a - x,
            a / x,
            x / a,
            x**a,
            a**x,
            a < x,
            a >= x,
            a.item() * x,
            float(a) * x,
        ]
        found += [x.half() * a, x.long() * a, x.double() + a]
    step = STEPS[int(n)]
    found += [
        x * step,
        x.long() - step,
        x[:, : int(step)],
        int(step) + 1,
        x.narrow(0, 0, step.item()),
    ]
    return found


def denoising_step(x, s, n):
    a = TABLES[np.float64][int(n)]
    before = TABLES[np.float64][int(n) - 1] if n > 0 else 1.0
    sigma = ((1 - before) / (1 - a) * (1 - a / before)) ** 0.5
    noise = (x - a**0.5 * x) / np.sqrt(1 - a)
    return before**0.5 * x + np.sqrt(1 - before - sigma**2) * noise + sigma * x


def alike(found, expected):
    if isinstance(expected, (tuple, list)):
        return len(found) == len(expected) and all(map(alike, found, expected))
    if type(found) is not type(expected):
        return False
    if isinstance(expected, torch.Tensor):
        return found.dtype == expected.dtype and torch.allclose(found, expected, equal_nan=True)
    if isinstance(expected, (np.ndarray, np.generic)):
        same_layout = found.dtype == expected.dtype and found.shape == expected.shape
        return same_layout and np.allclose(found, expected)
    return found == expected


PROGRAMS = [
    scalars, made_inside, shapes, arrays_of_constants, array_from_outside, of_a_tensor, of_arrays, reductions,
    numbers_of_arrays, denoising_step,
]  # fmt: skip


@pytest.mark.parametrize("function", PROGRAMS)
def test_one_graph(function):
    compiled = compile_frames(function, run_graph, CaptureOptions(fullgraph=True))
    for scalar, count in ((np.float32(2.5), np.int64(2)), (np.float64(0.5), 1), (2.0, np.int32(2))):
        if function is not scalars or isinstance(scalar, np.generic):
            x = torch.arange(6.0).reshape(2, 3) + 1
            assert alike(compiled(x, scalar, count), function(x, scalar, count))


def test_arrays_share_memory_with_tensors():
    def function(x, a):
        y = torch.from_numpy(a)
        y.add_(1)
        return x.numpy(), y

    compiled = compile_frames(function, run_graph, CaptureOptions(fullgraph=True))
    x, a = torch.ones(2, 3), np.zeros(3, dtype=np.float32)
    for _ in range(2):
        array, y = compiled(x, a)
        array[0, 0] += 1
        a[1] += 5
        assert y[1] == a[1]
    assert a.tolist() == [2.0, 12.0, 2.0]
    assert x[0, 0] == 3


def test_layout_and_scalars_are_guarded():
    def function(x, a, s):
        return x + torch.from_numpy(a).sum() * s

    compiled = compile_frames(function, run_graph, CaptureOptions(recompile_limit=32))
    x = torch.ones(3)
    for a in (
        np.ones(3),
        np.ones(4, dtype=np.float32),
        np.ones((4, 4))[::2],
        np.asfortranarray(np.ones((2, 3))),
    ):
        for s in (np.float32(2), np.float32(3), np.float64(3), 3.0):
            assert torch.equal(compiled(x, a, s), function(x, a, s))


def read_only(x):
    a = np.ones(3, dtype=np.float32)
    a.flags.writeable = False
    return x + torch.tensor(a)


@pytest.mark.parametrize(
    "function",
    [
        read_only,
        lambda x: (x > 1).numpy().sum(),
        lambda x: np.sort(x.numpy()),
        lambda x: x.sum().numpy(),
        lambda x: torch.tensor(np.float64(2.0)),
        lambda x: torch.tensor([np.float64(2.0), 1.0]),
        lambda x: np.add.reduce(x.numpy()),
        lambda x: x.numpy() + np.float64(1),
        lambda x: x.numpy().astype(np.float64),
        lambda x: x.numpy()[[0, 1]],
        lambda x: x * 2 if TABLES[np.float32][0] > 0.5 else x,
        lambda x: x * 2 if TAKEN[1] else x,
        lambda x: (x * TAKEN[0], x.long() + TAKEN[0], bool(TAKEN[1])),
        lambda x: (x[STEPS[1]], x[: STEPS[0]], torch.full((2,), TABLES[np.float64][1])),
        lambda x: (x.numpy() + 1, np.random.seed(0), np.random.rand(2)),
        lambda x: x.clone().requires_grad_().numpy(),
    ],
)
def test_breaks_behave_as_python(function):
    compiled = compile_frames(function, run_graph)
    x = torch.arange(3.0)
    try:
        expected = function(x)
    except RuntimeError as error:
        with pytest.raises(RuntimeError) as found:
            compiled(x)
        assert found.value.args == error.args  # noqa: PT017 - not what is tested
        return
    for _ in range(2):
        assert alike(compiled(x), expected)


NUMBERS = (
    np.bool_(True),
    np.int64(3),
    np.uint8(4),
    np.float16(0.5),
    np.float32(1.5),
    np.float64(2),
    np.complex64(1 + 1j),
    np.complex128(1 + 1j),
)
USES_OF_NUMBERS = {
    "full": lambda x, v: torch.full((2,), v),
    "fill": lambda x, v: x.fill_(v),
    "tensor": lambda x, v: torch.tensor(v),
    "add": lambda x, v: (x + v, v + x, x.long() + v),
    "power": lambda x, v: (x**v, v**x),
    "where": lambda x, v: torch.where(x > 0, x, v),
    "clamp": lambda x, v: x.clamp(v),
    "arange": lambda x, v: torch.arange(v),
    "alpha": lambda x, v: torch.add(x, 1, alpha=v),
    "assigned": lambda x, v: (x.__setitem__(0, v), x),
    "index": lambda x, v: x[v],
    "keepdim": lambda x, v: x.sum(0, keepdim=v),
    "compared": lambda x, v: (x == v, x < v),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("use", USES_OF_NUMBERS)
def test_numbers_are_what_torch_takes_them_for(use):
    check(USES_OF_NUMBERS[use], [(torch.ones(2), v) for v in NUMBERS], fullgraph=False)


def dtypes_compared(x, s, n):
    """A dtype is compared with what names it, from either side."""
    d = x.numpy().dtype
    classes = [
        d == np.float32,
        np.float32 == d,
        d != np.float64,
        d in (float,),
        d in (int, np.float32),
    ]
    return x * sum(classes), classes, d == "f4", d == np.dtype("f8"), d < np.float64, d == s.dtype


def scalars_with_sequences(x, s, n):
    """A scalar is compared with each element of a list or tuple."""
    return x + 1, list(s == [2, 1, n]), list([s, 1] == s), list(s < (1, 3))


@pytest.mark.parametrize("function", [dtypes_compared, scalars_with_sequences])
def test_operators_that_convert_the_other_operand(function):
    compiled = compile_frames(function, backend=run_graph)
    for scalar, number in ((np.float32(2), 3), (np.float32(3), 2)):
        x = torch.ones(3)
        expected, found = function(x, scalar, number), compiled(x, scalar, number)
        assert torch.equal(found[0], expected[0])
        assert found[1:] == expected[1:]


def scheduled(x, y, schedule, step, weight):
    momentum = schedule[step]
    x.mul_(momentum).add_((1 - momentum) * y, alpha=schedule[0])
    decayed = (1 - weight) / 2 + weight**2
    shown = [f"{weight:.2f} {weight}", repr(decayed), float(weight), weight.item(), decayed > 0.3]
    return x * weight + decayed, y / decayed, decayed, -weight, type(decayed), shown, schedule[step]


def test_scalars_that_vary_are_symbols():
    """Of a schedule, by a step; what is computed of a scalar is one, as NumPy makes it."""
    schedule = np.linspace(0.9, 1.0, 6)
    reports = []
    compiled = compile_frames(scheduled, run_graph, CaptureOptions(), None, reports.append)
    for step in range(5):
        x, y, weight = torch.arange(3.0), torch.ones(3), np.float64(0.1 * step + 0.2)
        plain = scheduled(x.clone(), y, schedule, step, weight)
        found = compiled(x.clone(), y, schedule, step, weight)
        assert same(found[:-1], plain[:-1])
        assert found[-1] == plain[-1]
    assert len(reports) == 2
    assert not [report for report in reports if report.graph_break is not None]


def test_scalars_at_the_edges():
    """Division by zero, roots of negative numbers and infinities are NumPy's, not Python's."""

    def f(x, weight, divisor):
        return (
            x + 1,
            weight / divisor,
            weight**0.5,
            -weight * divisor,
        )

    calls = [
        (0.25, 3.0),
        (0.5, 0.0),
        (-4.0, 0.5),
        (np.inf, 1.0),
        (0.0, -0.0),
    ]
    with np.errstate(all="ignore"):
        check(f, [(torch.ones(2), *map(np.float64, call)) for call in calls])


def test_smaller_and_larger_of_arrays_and_numbers():
    def f(x):
        array = x.sin().numpy()
        larger = np.maximum(array, 0.2)
        return torch.from_numpy(np.minimum(0.5, larger)) + 1, np.arctan2(larger, 1.0) * 2

    for given in (torch.arange(4.0), torch.tensor([float("nan"), -0.0])):
        found, plain = compile_frames(f, run_graph, CaptureOptions(fullgraph=True))(given), f(given)
        torch.testing.assert_close(found[0], plain[0], equal_nan=True)
        np.testing.assert_allclose(found[1], plain[1], rtol=1e-6)

"""Numbers and sizes that depend on data, through every stage: equal to eager on empty, full and NaN data."""

from __future__ import annotations

import contextlib
import os

import pytest
import torch
import torch.nn.functional as F
import weft
import weft_aot_autograd
import weft_functionalize
import weft_loop_ir
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from weft_bytecode_capture import compile_frames

from .staged_backend import by_operators

torch.manual_seed(0)
X = torch.randn(10)
COUNTS = torch.tensor([3, 1, 0, 2, 4, 1, 1, 0, 2, 3])
ROWS = torch.randn(10, 4)
GAPS = torch.where(torch.arange(10) % 2 == 0, torch.nan, X)
CALLS = [
    (X, COUNTS, ROWS),
    (-X.abs(), COUNTS * 0, ROWS),
    (X.abs() + 1, COUNTS * 0 + 1, -ROWS),
    (GAPS, COUNTS, ROWS.t().contiguous().t()),
]


def outcome(function, arguments):
    """What a call gives and leaves in its arguments; an exception is its type and text."""
    given = [a.clone() for a in arguments]
    try:
        return function(*given), given
    except Exception as error:
        return (type(error), str(error)), given


def assert_same(found, wanted):
    assert type(found) is type(wanted), (found, wanted)
    if isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
    elif isinstance(wanted, (tuple, list)):
        assert len(found) == len(wanted)
        for left, right in zip(found, wanted, strict=True):
            assert_same(left, right)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-4, nan_ok=True)
    else:
        assert found == wanted


def number(x, counts, rows):
    n = counts.max().item()
    return x * n + n // 2, x[:n], rows[n:].sum(0), torch.zeros(n, 3) + n, n * 2


def float_number(x, counts, rows):
    f = x[0].item()
    return torch.full((3,), f), x.clamp(max=f), x * (f * 2.0 - 1), f


def created(x, counts, rows):
    n = counts.max().item()
    return torch.arange(n) * 2, torch.ones(n, n).triu(), torch.zeros(2, n, 3).transpose(0, 1) + n


def parts(x, counts, rows):
    n = counts[0].item()
    y = x.clone()
    y[:n] = 7.0
    y[n] = 8.0
    return y, rows.narrow(0, 0, n) * 2, F.pad(x, (0, n)), x.repeat(n), x[:1].expand(n) + 1


def element(x, counts, rows):
    return rows[counts.sum().item()] + 1  # is not there in the first call


def masks(x, counts, rows):
    part = x[x > 0]
    return part * 2, part.sum(), part.mean(), part.softmax(0), part.shape[0], part[part > 1]


def rows_of_a_mask(x, counts, rows):
    part = rows[x > 0]
    return (part @ torch.ones(4, 3)).relu().mean(-1), F.layer_norm(part, (4,)).t().contiguous()


def reductions(x, counts, rows):
    part = rows[x > 0]
    return part.max(1), part.prod(1), part.any(1), part.all(0), part.sum(0), part.cumsum(0)


def largest(x, counts, rows):
    return x[x > 0].max(), x[x > 0].argmin()  # raises where there is none


def masks_of_one_size(x, counts, rows):
    kept = x > 0
    return x[kept] + counts[kept], torch.stack([x[kept], counts[kept].float()])


def masks_of_different_sizes(x, counts, rows):
    return x[x > 0] + x[x < 0]  # raises where the sizes differ


def written_by_mask(x, counts, rows):
    x[x > 0] *= 2
    y = rows[x > 0]
    y.mul_(2)
    y[:1] = 1.0
    return y, x.sum()


def searched(x, counts, rows):
    values, found = torch.unique(counts, return_counts=True)
    return values * found, x.nonzero().sum(0), torch.where(x > 0), x[:0].nonzero()


def repeated(x, counts, rows):
    return torch.repeat_interleave(rows, counts, dim=0) + 1, torch.cat([x[x > 0], x]).sort()


def halves(x, counts, rows):
    return x[x > 0].reshape(2, -1) * 2  # raises for an odd number


def experts(x, counts, rows):
    result = torch.zeros_like(rows)
    for expert in range(4):
        chosen = torch.nonzero(counts == expert).squeeze(1)
        result = result.index_add(0, chosen, rows[chosen] * (expert + 1))
    return result


def packed(x, counts, rows):
    kept = torch.arange(4) < counts.clamp(max=4)[:, None]
    together = rows[kept]
    apart = torch.zeros_like(rows)
    apart[kept] = together * 2
    return together, apart


def suppressed(x, counts, rows):
    scores, order = x.sort(descending=True)
    boxes = order[scores > 0.1]
    distance = (boxes[:, None] - boxes[None, :]).abs()
    return boxes, distance.sum(), (distance < 2).sum(1)


def most_likely(x, counts, rows):
    chances, order = x.softmax(0).sort(descending=True)
    kept = chances.cumsum(0) - chances < 0.7
    return order[kept], chances[kept] / chances[kept].sum()


def counted(x, counts, rows):
    n = counts.sum().item()
    torch._check(n <= x.shape[0])  # holds in the third call only
    torch._check(n >= 1)
    total = x[0] * 0
    for k in range(n):
        total = total + x[k] * k
    return total, n


def rolled(x, counts, rows):
    n = counts[3].item()
    return x.roll(n), rows.roll(-n, 0), rows.roll((n, 1, n), (0, 1, 1)), x * n


PROGRAMS = [
    number,
    float_number,
    created,
    parts,
    element,
    masks,
    rows_of_a_mask,
    reductions,
    largest,
]
PROGRAMS += [masks_of_one_size, masks_of_different_sizes, written_by_mask, searched, repeated]
PROGRAMS += [halves, experts, packed, suppressed, most_likely, counted, rolled]


# Before torch 2.13, fake tensors give a part up to such a number a size of its own: a break.
NOT_WHOLE = {number, parts, written_by_mask} if torch.__version__ < "2.13" else set()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_programs_are_one_graph_equal_to_eager(program):
    compiled = weft.compile(program, fullgraph=program not in NOT_WHOLE)
    for arguments in CALLS:
        assert_same(outcome(compiled, arguments), outcome(program, arguments))


def bound(functional, stage):
    """``stage`` as a function of the user inputs, with the tensors that the program holds bound."""

    def run(*users):
        every = dict(functional.lifted) | dict(
            zip(functional.user_input_indices, users, strict=True)
        )
        return stage(*(every[position] for position in range(len(every))))

    return run


@pytest.mark.parametrize(
    "program", [p for p in PROGRAMS if p not in NOT_WHOLE], ids=lambda f: f.__name__
)
def test_stages_agree(program):
    """The functional graph, the decomposed one, its loops and their schedule in one arena."""
    programs = []

    def backend(graph_module, inputs):
        functional = weft_functionalize.functionalize(graph_module, inputs)
        forward = weft_aot_autograd.trace_inference(functional).graph_module
        loops = weft_loop_ir.lower(forward)
        schedule = weft_loop_ir.schedule(loops)
        programs.append(schedule)
        stages = [
            functional.graph_module,
            forward,
            lambda *inputs: weft_loop_ir.evaluate(loops, inputs),
            lambda *inputs: weft_loop_ir.evaluate(schedule, inputs, use_arena=True),
        ]
        runs = [weft_functionalize.wrap(functional, bound(functional, stage)) for stage in stages]

        def run(*inputs):
            copies = [[i.clone() for i in inputs] for _ in runs[1:]]
            results = [list(one(*copy)) for one, copy in zip(runs, copies, strict=False)]
            last = runs[-1](*inputs)
            for found in results:
                assert_same(found, list(last))
            return last

        return run

    compiled = compile_frames(program, backend)
    for arguments in CALLS:
        assert_same(outcome(compiled, arguments), outcome(program, arguments))
    assert programs


VALUES = st.lists(
    st.sampled_from([-2.0, -0.0, 0.5, 1.0, 3.0, float("nan"), float("inf")]), max_size=9
)
STEPS = {
    "keep": lambda t, n: t[t > 0],
    "drop": lambda t, n: t[~(t > 1)],
    "first": lambda t, n: t[:n],
    "rest": lambda t, n: t[n:],
    "scaled": lambda t, n: t * n + 1,
    "positions": lambda t, n: torch.nonzero(t).squeeze(1).to(t.dtype),
    "sums": lambda t, n: t.cumsum(0),
    "joined": lambda t, n: torch.cat([t, t.new_zeros(n)]),
    "twice": lambda t, n: torch.stack([t, t * 2]).reshape(-1),
    "sorted": lambda t, n: t.sort().values,
}


def run_steps(names, t, number):
    n = number.item()
    for name in names:
        t = STEPS[name](t, n)
    return t, t.sum(), t.shape[0] + n


@settings(
    max_examples=int(os.environ.get("WEFT_EXAMPLES", "12")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    names=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4),
    calls=st.lists(st.tuples(VALUES, st.integers(0, 4)), min_size=1, max_size=4),
)
def test_random_chains_agree_with_eager(names, calls):
    compiled = weft.compile(run_steps)
    for values, n in calls:
        arguments = (torch.tensor(values, dtype=torch.float32), torch.tensor(n))
        found, wanted = (
            outcome(lambda *a, f=f: f(names, *a), arguments) for f in (compiled, run_steps)
        )
        assert_same(found, wanted)


def test_small_dtypes_are_read_natively():
    def scaled(t):
        return torch.ones(3) * t[1].item()

    for dtype in (
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.bfloat16,
        torch.float16,
        torch.float64,
    ):
        values = torch.tensor([1, 3, 5], dtype=dtype)
        assert_same(weft.compile(scaled, fullgraph=True)(values), scaled(values))


def test_gradients_of_what_data_rolls():
    def aggregated(values, delays):
        out = torch.zeros_like(values)
        for delay in delays:
            out = out + values.roll(shifts=-int(delay), dims=1).cumsum(1)
        return out

    compiled = weft.compile(aggregated, fullgraph=True)
    for numbers in ([0, 3], [5, -2], [-9, 100], [7, 14]):
        values = torch.randn(2, 7, 3, dtype=torch.float64, requires_grad=True)
        given = values, torch.tensor(numbers)
        found, wanted = compiled(*given), aggregated(*given)
        assert_same(found, wanted)
        assert found.stride() == wanted.stride()
        gradients = [torch.autograd.grad(r.square().sum(), values) for r in (found, wanted)]
        assert_same(*gradients)


@pytest.mark.parametrize("backend", ["weft", by_operators])
def test_no_row_is_chosen_of_none(backend):
    """A mask of a tensor without rows, which a count of boxes may leave: the program takes it as it is."""

    def function(x):
        rows = (x > 0).nonzero()
        if rows.shape[0] == 10:
            return "all of them"
        return rows[rows[:, 0] == x.argmax()] * 2, x[x > 0][rows[:, 0] >= rows.sum()]

    compiled = weft.compile(function, backend=backend)
    log = weft.CompileLog()
    with weft.observe(log):
        for x in (X, -X.abs(), X.neg(), X * 0):
            assert_same(compiled(x), function(x))
    assert len(log.conversions) == 1  # what it assumes of the number of rows held in every call


def test_gradients_beside_counts_of_two_masks():
    """Of the second nothing else is read, after a number of the first."""

    def scaled(x, weights):
        first = x[x > 0].shape[0]
        scaled = x * weights - first
        return (scaled * scaled).sum() * x[x < 0.5].shape[0]

    compiled = weft.compile(scaled, fullgraph=True)
    for sign in (1, -1):
        x, weights = (sign * X).requires_grad_(), torch.ones(10, requires_grad=True)
        found = torch.autograd.grad(compiled(x, weights), [x, weights])
        wanted = torch.autograd.grad(scaled(x, weights), [x, weights])
        assert_same(list(found), list(wanted))


def test_gradients_are_right():
    def loss(x, weights):
        n = (x > 0).sum().item()
        return (x[x > 0] * weights[:n]).sum()

    compiled = weft.compile(loss)
    for sign in (1, -1):
        x, weights = (sign * X).requires_grad_(), torch.ones(10, requires_grad=True)
        found = torch.autograd.grad(compiled(x, weights), [x, weights])
        wanted = torch.autograd.grad(loss(x, weights), [x, weights])
        assert_same(list(found), list(wanted))


@pytest.mark.parametrize("passes", [True, False])
def test_a_bound_that_is_nan(passes, monkeypatch):
    """Torch's releases differ in what ``clamp`` with one such bound gives: ``passes`` is 2.11's choice."""
    monkeypatch.setattr(weft_loop_ir.lowering.activations, "CLAMP_PASSES_NAN_BOUND", passes)

    def clamped(x):
        bound = x[0].item()
        return x.clamp(max=bound), x.clamp(min=bound), x.clamp(-1.0, bound)

    compiled = weft.compile(clamped, fullgraph=True)
    x = torch.tensor([0.5, 2.0, -3.0, torch.nan])
    assert_same(compiled(x), clamped(x))
    x[0] = torch.nan
    one_bound = x if passes else torch.full_like(x, torch.nan)
    assert_same(compiled(x), (one_bound, one_bound, torch.full_like(x, torch.nan)))


@pytest.mark.parametrize("value", [0.0, 2.0])
def test_indices_of_a_scalar_beside_gradients(value):
    """They are (u0, 0): however many there are, no elements."""

    def program(x):
        return torch.nonzero(x), x * 2

    x = torch.tensor(value, requires_grad=True)
    found = weft.compile(program)(x)
    found[1].backward()
    assert_same(list(found), list(program(x)))
    assert x.grad == 2


def test_rows_of_one_at_most_lose_their_dim() -> None:
    """Of a mask over one element, ``unbind`` gives parts of no dim as it does for other numbers."""

    def program(x: torch.Tensor) -> object:
        (part,) = x[x > 0.5].unbind(0)
        return part * 2, part.dim(), part.cummax(0)[0]

    compiled = weft.compile(program)
    for value in (0.75, 2.0):
        x = torch.tensor([value], dtype=torch.float64)
        assert str(compiled(x)) == str(program(x))


def repeated_rows(x, counts):
    """What stretches texts to sounds: rows repeated as data says, at the beginning of each own result."""
    longest = counts.sum(1).max()
    out = torch.zeros((x.shape[0], longest, x.shape[2]))
    for i, (rows, times) in enumerate(zip(x, counts, strict=True)):
        repeated = torch.repeat_interleave(rows, times, dim=0)
        out[i, : repeated.shape[0]] = repeated
    return out


def rows_of_a_buffer(x, counts):
    out = x.new_zeros(12, x.shape[2])
    chosen = x[0].repeat_interleave(counts[0], dim=0)
    out[: chosen.shape[0]] = chosen
    return out * 2


@pytest.mark.parametrize("function", [repeated_rows, rows_of_a_buffer])
@pytest.mark.parametrize("trained", [False, True])
def test_rows_as_data_says_at_the_beginning_of_others(function, trained) -> None:
    compiled, log = weft.compile(function), weft.CompileLog()
    x = torch.randn(2, 4, 3)
    calls = [torch.randint(0, 4, (2, 4)) for _ in range(4)]
    calls += [
        torch.tensor([[0, 1, 0, 0], [0, 0, 0, 0]]),
        torch.tensor([[0, 0, 0, 0], [1, 1, 0, 4]]),
    ]
    with weft.observe(log):
        for counts in calls:
            given = [x.clone().requires_grad_(trained) for _ in range(2)]
            found, wanted = compiled(given[0], counts), function(given[1], counts)
            torch.testing.assert_close(found, wanted)
            if trained:
                found.sin().sum().backward(), wanted.sin().sum().backward()
                torch.testing.assert_close(given[0].grad, given[1].grad)
    if torch.__version__ >= "2.13":  # before, what is written has a size of its own for each part
        assert len(log.graphs) == 1 and not log.graph_breaks
    with pytest.raises(RuntimeError) if function is rows_of_a_buffer else contextlib.nullcontext():
        compiled(x, torch.full((2, 4), 5))

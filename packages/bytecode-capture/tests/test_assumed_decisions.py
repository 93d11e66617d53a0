"""Decisions on data that no region holds: as in the first call, checked, and a break once they differ."""

import math

import pytest
import torch
from torch import nn
from weft_bytecode_capture import CaptureOptions, capture

OPTIONS = CaptureOptions(assume_decisions=None, read_contents=False)
norm = nn.BatchNorm1d(1).eval()


def early_return(x):
    places = (x > 0).nonzero()
    if places.numel() == 0:
        return x, "none"
    return x[places[:, 0]].sum() + x, "some"


def written_behind_a_loop(x):
    y, product = x.sin(), x
    for _ in range(25):
        product = product * 0.9
        y = y + product
    product **= 2
    return product if y.sum() > 0 else {"all": product}


def best(x):
    chosen = x[x > 0]
    values, _ = chosen.topk(min(3, chosen.shape[0]))
    return values * 2


def other_sizes(x):
    if (x > 0).any():
        return x[:2], 1
    return x, "none"


def number(x):
    count = (x > 0).sum().item()
    return (x * 2, count) if count else x[:1]


def normalized(x):
    y = norm(x[:, None])[:, 0].relu_()
    if y.max() > 0:
        return y[:2]
    return {"all": y}


def behind_a_branch(x):
    counts = (x * 20).long().relu()
    if counts.sum() == 0:
        counts[counts < 0] = 1
    chosen = x.repeat_interleave(counts)
    if chosen.shape[0] > 5:
        return chosen.sum(), "many"
    return x, "few"


table = nn.Embedding(8, 4)
heads = nn.MultiheadAttention(4, 2, dropout=0.1).eval()


def behind_attention(x):
    y = table((x > 0).long())[None]
    y = nn.functional.scaled_dot_product_attention(y, y, y)[0]
    y, weights = heads(y, y, y)
    if (weights.sum() * x.sign()).sum() > 0:
        return y.sum() + x, "some"
    return x, "none"


def behind_chance(x):
    drawn = x.new_ones(5).multinomial(3)
    if (x[:3].relu() * 2).sum() > 0:
        return x[drawn.sort().values.clamp(max=0)] + 1, "some"
    return x, "none"


decoder = nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0).eval()
causal = nn.Transformer.generate_square_subsequent_mask(3)


def flags_of_operators(x):
    flag = (x.sum() > 0).item()
    y, places = torch.sort(x, descending=flag)
    rows = x[:3, None, None].expand(3, 1, 4)
    decoded = decoder(rows, rows, tgt_mask=torch.where(x.sum() > 0, causal, 0.0))
    return y, places, x.std(correction=1, keepdim=bool(x.max() > 0)), decoded


def in_callee(x):
    return [early_return(x), early_return(-x.abs())]


def in_between(x, seen):
    seen.append("before")
    if x.max() > 0:
        seen.append("in")
        return x[:1]
    seen.append("else")
    return x


def logged_loss(x):
    loss = x.mean().item()
    if not math.isfinite(loss) or math.isnan(x.sum()):
        return "diverged"
    try:
        root = math.sqrt(loss)
    except ValueError as error:
        return str(error), x
    kept = (
        math.exp(loss),
        root,
        math.log(loss),
        round(loss, 3),
        math.tanh(root),
        math.sin(loss) * 2 - 1,
    )
    arithmetic = loss / x.shape[0], 1 / loss, loss**2, loss // 2, loss % 3 + root, -math.log1p(loss)
    arithmetic += min(math.exp(loss), 1e5), max(0.5, math.exp(loss), loss), min(root, 0.1)
    return x * loss, kept, arithmetic, f"{root:.3f}", math.isinf(loss), root > 0.1


def used_after_all(x):
    root = math.sqrt(x.abs().sum())
    return x * root, root


FUNCTIONS = [early_return, best, other_sizes, number, normalized, in_callee, logged_loss]
FUNCTIONS += [behind_a_branch, behind_attention, behind_chance, flags_of_operators]


def calls():
    """Positive and negative tensors, in an order in which decisions stay, change and change back."""
    generator = torch.Generator().manual_seed(3)
    for length, sign in ((6, 1), (7, 1), (8, 1), (9, 1), (6, -1), (7, 1), (8, -1), (9, 1), (5, -1)):
        yield sign * (torch.rand(length, generator=generator) + 0.1)


def same(left, right) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right) and left.shape == right.shape
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return type(left) is type(right) and left == right


@pytest.mark.parametrize("function", FUNCTIONS)
def test_as_eager_whatever_the_data_decides(function) -> None:
    captured = capture(function, options=OPTIONS)
    for number_of_call, x in enumerate(calls()):
        result = captured(x.clone())
        assert same(result.result, function(x.clone()))
        if number_of_call < 4:
            assert not result.breaks, result.breaks
            assert number_of_call < 2 or not result.graphs


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_differed_is_not_relied_on_again(function) -> None:
    captured = capture(function, options=OPTIONS)
    reports = [len(captured(x).reports) for _ in range(3) for x in calls()]
    assert sum(reports[-9:]) == 0


def test_a_decision_behind_a_write_to_what_a_loop_gives() -> None:
    captured = capture(written_behind_a_loop, options=OPTIONS)
    for x in (torch.ones(3), -torch.ones(3)):
        assert same(captured(x).result, written_behind_a_loop(x))


def test_numbers_that_python_makes_are_used_in_graphs_too() -> None:
    captured = capture(used_after_all, options=OPTIONS)
    assert all(same(captured(x).result, used_after_all(x)) for x in calls())


@pytest.mark.parametrize("value", [0.0, -1.0, 1e200, math.inf, math.nan])
def test_errors_of_pythons_functions_are_those_of_eager(value) -> None:
    functions = (
        math.exp, math.log, math.sqrt, math.sin, math.isnan, lambda v: v**2, lambda v: v**0.5,
        lambda v: 1 / v, lambda v: round(v, 2), lambda v: v // 3, lambda v: v % -2.5, lambda v: v % 0,
    )  # fmt: skip
    for function in functions:
        captured = capture(lambda x, f=function: (x + 1, f(x.sum().item())), options=OPTIONS)
        for x in (torch.tensor([2.0]).double(), torch.tensor([value]).double()):
            try:
                wanted = repr(function(x.item()))
            except (ArithmeticError, ValueError) as error:
                with pytest.raises(type(error)) as found:
                    captured(x)
                assert found.value.args == error.args  # noqa: PT017 - not what is tested
            else:
                assert repr(captured(x).result[1]) == wanted


def test_effects_are_those_of_the_way_taken() -> None:
    captured = capture(in_between, options=OPTIONS)
    for x in calls():
        found, wanted = [], []
        assert same(captured(x, found).result, in_between(x, wanted))
        assert found == wanted


def test_every_call_fits_one_graph_under_fullgraph() -> None:
    captured = capture(early_return, options=CaptureOptions(assume_decisions=None, fullgraph=True))
    results = [captured(x) for x in calls()]
    assert all(same(r.result, early_return(x)) for r, x in zip(results, calls(), strict=True))
    assert sum(len(r.graphs) for r in results) <= 2


def test_gradients() -> None:
    captured = capture(early_return, options=OPTIONS)
    for x in calls():
        mine, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
        captured(mine).result[0].square().sum().backward()
        early_return(plain)[0].square().sum().backward()
        torch.testing.assert_close(mine.grad, plain.grad)


def loop(x):
    while x.sum() > 1 and len(x) > 1:
        x = x[:-1]
    return x


def writes(x):
    x.add_(1)
    return x[:1] if x.max() > 0 else (x,)


def draws(x):
    y = torch.dropout(x, 0.5, True)
    return y[:1] if y.max() > 0 else (y,)


def trains(x):
    y = nn.functional.batch_norm(x[:, None], torch.zeros(1), torch.ones(1), training=True)
    return y[:1] if y.max() > 0 else (y,)


def chance(x):
    y = x * torch.rand_like(x)
    return y[:1] if y.max() > 0 else (y,)


@pytest.mark.parametrize("function", [loop, chance, writes, draws])
def test_what_cannot_be_tried_breaks(function) -> None:
    """A little may be written, and dropout drops nothing where a decision is tried."""
    captured = capture(function, options=OPTIONS)
    for number_of_call, x in enumerate(calls()):
        mine, plain = x.clone(), x.clone()
        torch.manual_seed(0)
        result = captured(mine)
        torch.manual_seed(0)
        assert same(result.result, function(plain)) and same(mine, plain)
        assert number_of_call or bool(result.breaks) is (function in (loop, chance))


def test_statistics_made_in_the_graph_may_be_written() -> None:
    captured = capture(trains, options=OPTIONS)
    for x in calls():
        assert same(captured(x).result, trains(x))


def test_no_assumption_where_none_is_asked_for() -> None:
    result = capture(other_sizes)(torch.ones(3))
    assert [b.kind for b in result.breaks] == ["branch on a tensor's value"]


ran = []


@torch.library.custom_op("weft_assumed_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("weft_assumed_tests::noted", mutates_args=("x",))
def noted(x: torch.Tensor) -> None:
    ran.append(x.shape)


@noted.register_fake
def _(x):
    return None


def by_custom_operator(x):
    y = doubled(x)
    return y[:1] if y.max() > 0 else (y,)


def by_writing_operator(x):
    y = x * 2
    noted(y)
    return y[:1] if y.max() > 0 else (y,)


def test_operators_that_do_more_than_compute_run_once_a_call() -> None:
    captured = capture(by_writing_operator, options=OPTIONS)
    for x in calls():
        ran.clear()
        assert same(captured(x).result, by_writing_operator(x))
        assert len(ran) == 2
    result = capture(by_custom_operator, options=OPTIONS)(torch.ones(3))
    assert not result.breaks and same(result.result, by_custom_operator(torch.ones(3)))


# -- errors that handlers may go on after --------------------------------------------------------------


class Suppressed:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        return isinstance(error, ValueError)


def validated(x):
    drawn = torch.rand(3) + x
    if not (drawn > 0).all():
        raise ValueError("not positive")
    return drawn.log()


def in_a_block(x):
    y = x - 1
    with Suppressed():
        y = validated(x)
    return y.sum(), y


def in_a_handler(x):
    try:
        y, kind = validated(x), "valid"
    except ValueError as error:
        y, kind = x + torch.rand(3), str(error)
    return y * 2, kind


@pytest.mark.parametrize("function", [in_a_block, in_a_handler])
def test_errors_of_what_is_drawn_are_not_expected(function) -> None:
    compiled = capture(function, options=CaptureOptions(assume_decisions=True))
    for number, value in enumerate((1.0, 2.0, -3.0, -3.0, 1.0)):
        x = torch.full((3,), value)
        torch.manual_seed(number)
        wanted, after = function(x), torch.rand(1)
        torch.manual_seed(number)
        result = compiled(x)
        assert same(result.result, wanted)
        assert torch.equal(torch.rand(1), after)
        if number == 0:
            assert not result.breaks

"""Programs that write through views: results, inputs, identity and sharing are eager's."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import Tensor
from weft_functionalize import bind, functionalize, wrap


def write_select(x: Tensor) -> Any:
    x[1].add_(2)
    return x * 2


def write_slice_with_step(x: Tensor) -> Any:
    x[:, ::2].mul_(3)
    return x.clone()


def write_narrow_of_transpose(x: Tensor) -> Any:
    x.transpose(0, 1).narrow(0, 1, 2).fill_(7)
    return x.sum(1)


def write_view_chain(x: Tensor) -> Any:
    y = x * 1
    y.view(-1)[2:9].view(7, 1).squeeze(1).unsqueeze(0).add_(1)
    return (y,)


def write_permuted(x: Tensor) -> Any:
    y = x.clone()
    y.permute(1, 0)[0].zero_()
    y.t()[1:].sin_()
    return y, y.t()


def write_diagonal(x: Tensor) -> Any:
    x.diagonal(1).fill_(-1)
    return (x.diagonal(),)


def write_split_and_unbind(x: Tensor) -> Any:
    left, right = x.split(2, 1)
    right.add_(left)
    x.unbind(0)[2].mul_(2)
    return left, right


def write_chunk(x: Tensor) -> Any:
    a, b = x.chunk(2, dim=1)
    a.copy_(b)
    return (a + b,)


def write_lists(x: Tensor) -> Any:
    rows = [x[0], x[1], x[2]]
    torch._foreach_mul_(rows, 2.0)
    torch._foreach_addcdiv_(rows[1:], torch._foreach_exp(rows[1:]), [x.sum(), x.max()], 0.5)
    return torch._foreach_norm(rows)


def write_unfold(x: Tensor) -> Any:
    x.unfold(1, 2, 2).add_(1)
    return x.unfold(0, 2, 1).clone()


def write_as_strided(x: Tensor) -> Any:
    y = x + 0
    y.as_strided((2, 2), (5, 1), 1).mul_(-1)
    z = y[1:]
    z.add_(1)
    return y, z.as_strided((2,), (3,), 2)


def copy_broadcasts_and_converts(x: Tensor) -> Any:
    y = torch.zeros_like(x, dtype=torch.int32)
    y.copy_(x[0] * 10)
    return (y,)


def swap(x: Tensor, y: Tensor) -> Any:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)
    return ()


def comparison_in_place(x: Tensor) -> Any:
    x.ge_(0)
    return (x,)


def masked_and_indexed(x: Tensor) -> Any:
    x.masked_fill_(x > 0, 5.0)
    x.index_put_((torch.tensor([0, 2]),), torch.tensor(-1.0))
    x.index_put_((x < 0,), torch.tensor(2.0), accumulate=True)
    return (x,)


def scatters(x: Tensor) -> Any:
    y = x.clone()
    index = torch.tensor([[0, 1, 2, 0]])
    y.scatter_(0, index, 9.0)
    y.scatter_add_(0, index, x[:1])
    y.index_add_(0, torch.tensor([1, 1]), x[:2])
    y.index_fill_(1, torch.tensor([3]), 4.0)
    return (y,)


def out_variant(x: Tensor) -> Any:
    y = torch.empty_like(x)
    torch.add(x, 1, out=y)
    torch.mul(y, 2, out=y)
    return (y,)


def metadata_of_an_intermediate(x: Tensor) -> Any:
    y = x * 2
    before = y[0]
    y.t_()
    y.unsqueeze_(0)
    y[0, 1].fill_(3)
    y.squeeze_(0)
    return y, before


def returns_inputs_and_views(x: Tensor, y: Tensor) -> Any:
    x.add_(1)
    row = x[0]
    return x, row, row, x.t(), y, y.detach(), 3, None


def intermediates_that_share(x: Tensor) -> Any:
    y = x.exp()
    y[0].zero_()
    return y[1:], y.t(), y, y


def copies_that_do_not_share(x: Tensor) -> Any:
    y = torch.empty_like(x)
    y.copy_(x)
    z = y.clone()
    return y, z, z[1:]


def view_of_a_version_with_other_strides(x: Tensor) -> Any:
    y = torch.zeros_like(x)
    y.copy_(x.t().contiguous().t())
    return y.view(12), y.view(2, 6)


def chunks_of_complex(x: Tensor) -> Any:
    z = torch.view_as_complex(x.view(3, 2, 2).clone())
    torch.real(z).mul_(2)
    torch.imag(z)[0].fill_(1)
    z.mul_(1j)
    return torch.view_as_real(z), z.abs()


def no_operations(x: Tensor) -> Any:
    return (x,)


ONE_INPUT = [
    write_select,
    write_slice_with_step,
    write_narrow_of_transpose,
    write_view_chain,
    write_permuted,
    write_diagonal,
    write_split_and_unbind,
    write_chunk,
    write_lists,
    write_unfold,
    write_as_strided,
    copy_broadcasts_and_converts,
    comparison_in_place,
    masked_and_indexed,
    scatters,
    out_variant,
    metadata_of_an_intermediate,
    intermediates_that_share,
    copies_that_do_not_share,
    view_of_a_version_with_other_strides,
    chunks_of_complex,
    no_operations,
]


@pytest.mark.parametrize("program", ONE_INPUT, ids=lambda p: p.__name__)
@pytest.mark.parametrize("values", ["normal", "special"])
def test_one_input(check: Any, program: Any, values: str) -> None:
    x = torch.randn(3, 4)
    if values == "special":
        x[0, 0], x[1, 1], x[2, 2], x[0, 3] = torch.nan, torch.inf, -torch.inf, -0.0
    check(program, x)


@pytest.mark.parametrize(
    "index", [0, (slice(None), 1), (slice(0, 2), [0, 2]), ..., (None, 1), (slice(None), [1, 3])]
)
def test_item_assignment(check: Any, index: Any) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(operator.setitem, (x, index, 7.0))
    graph.output((x, graph.call_function(operator.getitem, (x, index))))
    check(torch.fx.GraphModule(torch.nn.Module(), graph), torch.randn(3, 4))


@pytest.mark.parametrize("program", [swap, returns_inputs_and_views])
def test_two_inputs(check: Any, program: Any) -> None:
    check(program, torch.randn(3, 4), torch.randn(3, 4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64])
def test_dtype_of_the_written_tensor_stays(check: Any, dtype: torch.dtype) -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        x.add_(1)
        x.mul_(y)
        return x * 2, x.t()

    y = torch.full((3, 4), 3, dtype=torch.int64 if dtype is torch.int64 else torch.float32)
    check(program, torch.arange(12).view(3, 4).to(dtype), y)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 0, 2)])
def test_empty_and_scalar(check: Any, shape: tuple[int, ...]) -> None:
    def program(x: Tensor) -> Any:
        x.add_(1)
        y = x.reshape(-1)
        y.mul_(2)
        return y, x.sum()

    check(program, torch.ones(shape))


def test_strided_inputs(check: Any) -> None:
    def program(x: Tensor) -> Any:
        x[0].add_(1)
        return x * 2, x.reshape(-1)

    check(program, torch.randn(4, 3).t())
    check(program, torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))


def test_version_counter_advances_once() -> None:
    import weft_functionalize

    module = torch.fx.symbolic_trace(write_select)
    functional = weft_functionalize.functionalize(module, [torch.ones(3, 4)])
    x = torch.ones(3, 4)
    run = weft_functionalize.wrap(
        functional, weft_functionalize.bind(functional, functional.graph_module)
    )
    run(x)
    assert x._version == 1


def test_storage_offset_may_differ_between_calls() -> None:
    import weft_functionalize

    def program(x: Tensor) -> Any:
        x[1].add_(1)
        return (x[0],)

    functional = weft_functionalize.functionalize(
        torch.fx.symbolic_trace(program), [torch.ones(3, 4)]
    )
    memory = torch.zeros(24)
    x = memory[12:].view(3, 4)
    run = weft_functionalize.bind(functional, functional.graph_module)
    (row,) = weft_functionalize.wrap(functional, run)(x)
    assert memory[16:20].eq(1).all()
    assert memory[:16].eq(0).all()
    assert row.data_ptr() == x.data_ptr()


def test_inputs_that_overlap_in_a_call_run_eagerly() -> None:
    import weft_functionalize

    def program(x: Tensor, y: Tensor) -> Any:
        x.add_(1)
        return (y * 2,)

    example = [torch.ones(3), torch.ones(3)]
    functional = weft_functionalize.functionalize(torch.fx.symbolic_trace(program), example)
    run = weft_functionalize.bind(functional, functional.graph_module)
    memory = torch.zeros(4)
    (result,) = weft_functionalize.wrap(functional, run)(memory[:3], memory[1:])
    assert result.tolist() == [2.0, 2.0, 0.0]


def test_calls_are_told_apart_before_and_called_then(monkeypatch: pytest.MonkeyPatch) -> None:
    import weft_functionalize.runtime

    def program(x: Tensor, y: Tensor, n: int) -> Any:
        x.add_(y)
        return x * n, y[1:]

    example = [torch.ones(3), torch.ones(3), 2]
    functional = weft_functionalize.functionalize(torch.fx.symbolic_trace(program), example)
    run: Any = wrap(functional, bind(functional, functional.graph_module))
    memory = torch.arange(5.0)
    for written, other in ((memory[:3], memory[2:]), (memory[:3], memory[:3])):
        assert not run.runs_program(written, other, 2)
    for begin in range(2):
        given = [torch.arange(4.0)[begin:][:3].clone(), torch.ones(3), 2]
        wanted = program(*(wanted_given := [given[0].clone(), *given[1:]]))
        assert run.runs_program(*given)
        with monkeypatch.context() as patch:
            patch.delattr(weft_functionalize.runtime, "_storages")  # it is not looked at again
            found = run.call_program(*given)
        torch.testing.assert_close(tuple(found), wanted)
        torch.testing.assert_close(given[0], wanted_given[0])
        assert found[1].data_ptr() == given[1][1:].data_ptr()


@pytest.mark.parametrize("of_input", [True, False])
def test_one_of_several_views_is_not_to_be_written(of_input: bool) -> None:
    """Autograd refuses writes to what ``split``, ``chunk`` and ``unbind`` give, where it records them."""

    def program(x: Tensor) -> Any:
        y = x if of_input else x * 1
        parts, columns, rows = y.split(2), y.chunk(2, 1), y.unbind(0)
        return parts[0], parts[1], columns[1], rows[2], y.narrow(0, 0, 2), y

    x = torch.rand(4, 3, requires_grad=True)
    given = x * 1
    functional = functionalize(torch.fx.symbolic_trace(program), [given])
    run = wrap(functional, bind(functional, functional.graph_module))
    for number, wanted in enumerate(program(given)):
        outcomes = []
        for results in (run(x * 1), program(x * 1)):
            try:
                outcomes.append(results[number].add_(1))
            except RuntimeError as error:
                outcomes.append("returns multiple views" in str(error))
        torch.testing.assert_close(*outcomes)
        with torch.no_grad():
            torch.testing.assert_close(run(x * 1)[number].add_(1), wanted + 1)
    plain = run(x.detach().clone())[0].add_(1)
    torch.testing.assert_close(plain, x.detach()[:2] + 1)


@pytest.mark.parametrize("change", ["unsqueeze_", "squeeze_", "t_"])
def test_one_of_several_results_changes_its_metadata(change: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        value = x.max(0, keepdim=True)[0]
        getattr(value, change)(*([0] if change == "unsqueeze_" else []))
        return value

    graph = torch.fx.symbolic_trace(program)
    functional = functionalize(graph, [torch.randn(2, 5)])
    (call,) = functional.graph_module.graph.find_nodes(
        op="call_function", target=torch.ops.aten.max.dim
    )
    assert [tuple(value.shape) for value in call.meta["val"]] == [(1, 5), (1, 5)]


@pytest.mark.parametrize(
    "name", ["cumsum", "cumprod", "sum", "nansum", "prod", "mean", "std", "var"]
)
@pytest.mark.parametrize("given", [torch.float32, torch.float64, torch.float16])
def test_out_of_another_dtype(check: Any, name: str, given: torch.dtype) -> None:
    """What is computed is computed in the dtype of ``out``: sums of floats into integers, for one."""
    floating = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    whole = (torch.int16, torch.int64) if name in ("cumsum", "cumprod", "sum", "prod") else ()
    x = (torch.arange(20.0).reshape(5, 4) * 0.37 % 2.9).to(given)
    for dtype in floating + whole:
        out = torch.zeros(getattr(torch, name)(x, 0).shape, dtype=dtype)
        check(lambda x, out: getattr(torch, name)(x, 0, out=out), x, out)

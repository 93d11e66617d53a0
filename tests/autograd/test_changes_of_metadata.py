"""Methods that change what a tensor is, not its elements, on tensors from everywhere, beside eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import weft

Change = Callable[[torch.Tensor], object]
HELD = SimpleNamespace()

CHANGES: dict[str, Change] = {
    "squeeze_": lambda x: x.squeeze_(),
    "squeeze_(0)": lambda x: torch.ops.aten.squeeze_(x, 0),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "t_": lambda x: x.transpose_(0, 1) if x.dim() > 2 else x.t_(),
    "swapaxes_": lambda x: x.swapaxes_(0, -1),
    "swapdims_": lambda x: x.swapdims_(0, -1),
    "there and back": lambda x: x.unsqueeze_(0).squeeze_(0),
    "resize_": lambda x: x.resize_(x.numel()),
    "resize_, larger": lambda x: x.resize_(7, 3).zero_(),
    "set_": lambda x: x.set_(torch.ones(2, 2, dtype=x.dtype)),
    "as_strided_": lambda x: x.as_strided_((1,), (1,)),
    "data": lambda x: setattr(x, "data", x.detach() * 2),
    "detach_": lambda x: x.detach_(),
    "requires_grad_": lambda x: x.requires_grad_(),
    "requires_grad": lambda x: setattr(x, "requires_grad", True),
}


def of_an_argument(change: Change, x: torch.Tensor) -> Any:
    before = x * 2
    change(x)
    return x, before, x + 1, x.is_leaf, x.requires_grad, x.shape


def before_a_write(change: Change, x: torch.Tensor) -> Any:
    change(x)
    x.mul_(2)
    return x.sum()


def after_a_write(change: Change, x: torch.Tensor) -> Any:
    x.mul_(2)
    change(x)
    return x.sum()


def of_a_view(change: Change, x: torch.Tensor) -> Any:
    view = x.view(x.shape)
    change(view)
    view.mul_(2)
    return view, x * 1


def of_a_result(change: Change, x: torch.Tensor) -> Any:
    y = x * 2
    change(y)
    return y, y + 1


def of_a_result_with_a_view(change: Change, x: torch.Tensor) -> Any:
    y = x * 2
    view = y.view(-1)
    change(y)
    return y, view, y + 1


def of_one_of_several_results(change: Change, x: torch.Tensor) -> Any:
    values, indices = torch.topk(x, 2)
    change(values)
    return values, indices, values + 1


def in_a_loop(change: Change, x: torch.Tensor) -> Any:
    y = x.sum()
    for _ in range(12):
        change(x)
        y = y + x.sum() * 0.5
    return y, x


def of_a_result_in_a_loop(change: Change, x: torch.Tensor) -> Any:
    y = x.sum()
    for i in range(12):
        z = x * i
        change(z)
        y = y + z.sum() * 0.5
    return y


def of_a_tensor_kept_over_a_loop(change: Change, x: torch.Tensor) -> Any:
    y, z = x.sum(), x * 1
    for _ in range(12):
        change(z)
        y = y + z.sum() * 0.5
    return y, z


def in_a_branch(change: Change, x: torch.Tensor) -> Any:
    y = x * 2
    if y.sum() > 0:
        change(y)
        change(x)
    return y + 1


def without_gradients(change: Change, x: torch.Tensor) -> Any:
    y = x * 3
    with torch.no_grad():
        change(y)
        change(x)
    return x * 2, y


def where_errors_are_caught(change: Change, x: torch.Tensor) -> Any:
    y = x * 3
    try:
        change(y)
        change(x)
        return x * 2, y
    except RuntimeError as error:
        return str(error), x + 1, y


def of_an_attribute(change: Change, x: torch.Tensor) -> Any:
    HELD.tensor = x
    change(HELD.tensor)
    return HELD.tensor * 2


def of_a_detached_one(change: Change, x: torch.Tensor) -> Any:
    detached = x.detach()
    change(detached)
    return detached, x * 1


def of_what_views_are_made_of(change: Change, x: torch.Tensor) -> Any:
    y = x * 2
    whole, part = y.view(-1), y.flatten()[:2]
    change(y)
    return whole, part * 2, y


def of_what_a_column_is_of(change: Change, x: torch.Tensor) -> Any:
    y = x * 2
    column, pair = y[:, 1], y[:, 1:].diagonal()
    change(y)
    return column, pair * 2, y


PROGRAMS = (
    of_what_views_are_made_of, of_what_a_column_is_of,
    of_an_argument, before_a_write, after_a_write, of_a_view, of_a_result, of_a_result_with_a_view,
    of_one_of_several_results, in_a_loop, of_a_result_in_a_loop, of_a_tensor_kept_over_a_loop,
    in_a_branch, without_gradients, where_errors_are_caught, of_an_attribute, of_a_detached_one,
)  # fmt: skip

KINDS = ("plain", "leaf", "computed", "part")


def argument(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor of one row, and what a gradient may be taken by."""
    leaf = torch.tensor([[3.0, -1.0, 2.0], [5.0, 4.0, 7.0]], requires_grad=kind != "plain")
    with torch.no_grad():
        row = leaf[:1].clone()
    if kind in ("plain", "leaf"):
        return row.requires_grad_(kind == "leaf"), row
    return (leaf * 2)[:1] if kind == "part" else leaf[:1] * 2, leaf


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors_in(part)


def facts(value: Any) -> Any:
    """What can be seen of a result; strides where they mean something, uninitialised memory nowhere."""
    if isinstance(value, (tuple, list)):
        return [facts(part) for part in value]
    if not isinstance(value, torch.Tensor):
        return value
    strides = [s for s, n in zip(value.stride(), value.shape, strict=True) if n > 1]
    history = value.grad_fn is not None
    return value.shape, strides, value.tolist(), value.is_leaf, value.requires_grad, history


def seen(program: Callable[..., Any], change: Change, kind: str) -> Any:
    """Results, the argument, who shares storage with whom, gradients; or what is raised."""
    x, leaf = argument(kind)
    try:
        results = program(change, x)
    except RuntimeError as error:
        return str(error), facts(x)
    everything = [x, *tensors_in(results)]
    owners = [y.untyped_storage()._cdata for y in everything]
    sharing = [owners.index(owner) for owner in owners]
    return facts(results), facts(x), sharing, gradients(everything, leaf)


def gradients(results: list[torch.Tensor], leaf: torch.Tensor) -> Any:
    roots = [y for y in results if y.requires_grad and y.grad_fn is not None]
    if not roots or not leaf.requires_grad:
        return None
    weights = [torch.arange(1.0, y.numel() + 1).view(y.shape) for y in roots]
    try:
        (gradient,) = torch.autograd.grad(roots, leaf, weights, allow_unused=True)
    except RuntimeError as error:
        return str(error).replace("CompiledFunctionBackward", "").split("Backward0")[-1]
    return gradient if gradient is None else gradient.tolist()


# Each program with a quarter of the changes, each change with all kinds of arguments and sizes.
CASES = [
    (program, name, KINDS[(p + c // 3) % 4], (True, None)[(p + c) % 2])
    for p, program in enumerate(PROGRAMS)
    for c, name in enumerate(CHANGES)
    if (p + c) % 4 == 0
]


@pytest.mark.parametrize(("program", "name", "kind", "dynamic"), CASES)
def test_metadata_is_changed_as_in_eager(
    program: Callable[..., Any], name: str, kind: str, dynamic: bool | None
) -> None:
    change = CHANGES[name]
    compiled = weft.compile(program, dynamic=dynamic)
    assert seen(compiled, change, kind) == seen(program, change, kind)


OF_BASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "transposed": lambda v: (v.T, v.unsqueeze_(0))[0],
    "copied": lambda v: (v.T.contiguous().T, v.unsqueeze_(0))[0],
    "both": lambda v: (v.T, v.unsqueeze_(0)),
    "row": lambda v: (v[0], v.t_()),
    "written": lambda v: (w := v.view(-1), v.unsqueeze_(0), w.mul_(2), v)[-1],
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", OF_BASES)
def test_views_of_what_changes(name: str, gradients: bool) -> None:
    def program(x: torch.Tensor) -> Any:
        return OF_BASES[name](x * 2)

    for shape in ((3, 4), (5, 1)):
        x = torch.randn(shape, requires_grad=gradients)
        torch.testing.assert_close(weft.compile(program)(x), program(x))


@pytest.mark.parametrize("name", ["unsqueeze_", "t_", "swapaxes_", "detach_"])
def test_refusals_of_views_are_caught_inside(name: str) -> None:
    """A later call has a view, of a leaf or of another tensor, where the first had none."""

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        try:
            CHANGES[name](x)
        except RuntimeError:
            return y + 1
        return x * y

    def given() -> list[torch.Tensor]:
        leaf = torch.ones(4, 4, requires_grad=True)
        return [leaf * 2, leaf.expand(2, 4, 4)[1], (leaf * 3).expand(2, 4, 4)[1], leaf[:], leaf * 4]

    compiled = weft.compile(program)
    for found, expected in zip(given(), given(), strict=True):
        y = torch.full((4,), 5.0)
        torch.testing.assert_close(compiled(found, y), program(expected, y))
        assert found.shape == expected.shape
        assert found.requires_grad == expected.requires_grad

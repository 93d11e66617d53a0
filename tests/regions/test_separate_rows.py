"""Tensors that a kept loop puts into lists share memory with one another where eager's do, and only there."""

from __future__ import annotations

import gc
import io
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves
from weft_bytecode_capture import capture

Tensor = torch.Tensor


def states(x: Tensor, n: int) -> list[Tensor]:
    out, h = [], x * 1
    for _ in range(n):
        h = torch.tanh(h) * 0.5 + x
        out.append(h)
    return out


def plain(x: Tensor, n: int) -> Any:
    return states(x, n)


def last_state_too(x: Tensor, n: int) -> Any:
    out, h = [], x * 1
    for _ in range(n):
        h = torch.tanh(h) * 0.5 + x
        out.append(h)
    return out, h


def stacked_too(x: Tensor, n: int) -> Any:
    out = states(x, n)
    return out, torch.stack(out), torch.cat(out)


def some_of_them(x: Tensor, n: int) -> Any:
    out = states(x, n)
    return {"first": out[0], "last": out[-1], "again": out[0]}


def reversed_list(x: Tensor, n: int) -> Any:
    return states(x, n)[::-1]


def part_of_a_row(x: Tensor, n: int) -> Any:
    out = states(x, n)
    return out, out[-1][:2], out[0].view(2, -1)


def part_alone(x: Tensor, n: int) -> Any:
    out = states(x, n)
    return out[-1][:2], out[-1][1:]


def written_after_the_loop(x: Tensor, n: int) -> Any:
    out = states(x, n)
    out[0].add_(1)
    out[-1][:2].mul_(3)
    return out


def two_lists(x: Tensor, n: int) -> Any:
    one, other, h = [], [], x * 1
    for _ in range(n):
        h = torch.tanh(h) * 0.5 + x
        one.append(h + 1)
        other.append(h * 2)
    return one, other


def one_tensor_in_two_lists(x: Tensor, n: int) -> Any:
    one, other, h = [], [], x * 1
    for _ in range(n):
        h = torch.tanh(h) * 0.5 + x
        one.append(h)
        other.append(h)
    return one, other


def the_same_tensor(x: Tensor, n: int) -> Any:
    out, h = [], x * 1
    for _ in range(n):
        out.append(h)
    return out


def rows_of_the_argument(x: Tensor, n: int) -> Any:
    out, rows = [], x.repeat(n, 1)
    for row in rows:
        out.append(row)
    return out, rows


def views_of_one(x: Tensor, n: int) -> Any:
    out, h = [], x * 1
    for _ in range(n):
        h = torch.tanh(h) * 0.5 + x
        out.append(h[:2])
        out.append(h[2:])
    return out


def held_before(x: Tensor, n: int) -> Any:
    out = [x, x * 2]
    for _ in range(n):
        out.append(out[-1] * 0.5 + x)
    return out


def comprehension(x: Tensor, n: int) -> Any:
    return [torch.tanh(x) * i for i in range(n)]


def in_a_dict_and_a_closure(x: Tensor, n: int) -> Any:
    out = states(x, n)
    return {"all": out}, tuple(out), (lambda: out)()[0]


def broken_in_between(x: Tensor, n: int) -> Any:
    out = states(x, n)
    gc.freeze()
    gc.unfreeze()
    out[1].add_(1)
    return out


PROGRAMS = [
    plain, last_state_too, stacked_too, some_of_them, reversed_list, part_of_a_row, part_alone,
    written_after_the_loop, two_lists, one_tensor_in_two_lists, the_same_tensor,
    rows_of_the_argument, views_of_one, held_before,
    comprehension, in_a_dict_and_a_closure, broken_in_between,
]  # fmt: skip


def sharing(values: list[Tensor]) -> list[tuple[bool, bool]]:
    """Of each pair, whether they are one tensor, and whether they are in one storage."""
    places = [value.untyped_storage().data_ptr() for value in values]
    return [
        (left is right, places[i] == places[k])
        for i, left in enumerate(values)
        for k, right in enumerate(values)
    ]


@pytest.mark.parametrize("gradients", [False, True], ids=["plain", "gradients"])
@pytest.mark.parametrize("function", PROGRAMS)
def test_storages_are_eagers(function: Callable[[Tensor, int], Any], gradients: bool) -> None:
    compiled = capture(function)
    for n in (20, 30, 24):
        x = torch.rand(4, generator=torch.Generator().manual_seed(n)).requires_grad_(gradients)
        found = compiled(x, n).result
        got, wanted = tree_leaves(found), tree_leaves(function(x, n))
        torch.testing.assert_close(got, wanted)
        assert sharing([*got, x]) == sharing([*wanted, x])
        if gradients:
            scale = torch.arange(1.0, len(got) + 1)
            mine, theirs = (
                torch.autograd.grad(sum((t * c).sum() for t, c in zip(part, scale, strict=True)), x)
                for part in (got, wanted)
            )
            torch.testing.assert_close(mine, theirs)
        else:
            for left, right in zip(got, wanted, strict=True):
                left.add_(1)
                right.add_(1)
            torch.testing.assert_close(got, wanted)


def test_a_row_is_as_large_as_itself() -> None:
    compiled, x = capture(plain), torch.rand(4)
    report = compiled(x, 20)
    assert [str(n.target) for g in report.graphs for n in g.graph_module.graph.nodes].count(
        "while_loop"
    ) == 1
    rows, wanted = report.result, plain(x, 20)
    sizes = []
    for row in (rows[3], wanted[3]):
        held = io.BytesIO()
        torch.save(row, held)
        sizes.append(len(held.getvalue()))
        assert row.untyped_storage().nbytes() == 16
        assert row.storage_offset() == 0
        assert row._base is None
        row.resize_(8)
    assert sizes[0] == sizes[1]
    gone, kept = weakref.ref(rows[5]), rows[6]
    del rows, report, row
    gc.collect()
    assert gone() is None
    assert kept.untyped_storage().nbytes() == 16

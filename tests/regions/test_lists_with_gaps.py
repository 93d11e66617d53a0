"""Lists to which some iterations append, or several things each: one graph whatever data decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch.utils._pytree import tree_leaves
from weft_bytecode_capture import CaptureOptions, capture

from .test_separate_rows import sharing

Tensor = torch.Tensor
N = 16


def either(x: Tensor) -> Any:
    out = []
    for i in range(N):
        if x[i] > 0:
            out.append(x[i] * 2)
        else:
            out.append(x[i].exp())
    return torch.stack(out)


def some(x: Tensor) -> Any:
    out = []
    for row in x:
        if row > 0:
            out.append(row * 2)
    return out, len(out)


def some_behind_others(x: Tensor) -> Any:
    out = [x.sum(), x.mean()]
    for row in x:
        if row > 0:
            out.append(row * 2)
    return torch.stack(out), out


def in_two_lists(x: Tensor) -> Any:
    positive, others = [], []
    for i, row in enumerate(x):
        if row > 0:
            positive.append(row)
        elif row > -0.5:
            others.append(row * i)
            others.append(row - 1)
    return torch.stack(positive).sum(), torch.stack(others)


def places(x: Tensor) -> Any:
    found = []
    for i in range(N):
        if x[i] > 0:
            found.append(i)
    return found, len(found), found[::-1]


def numbers_and_tensors(x: Tensor) -> Any:
    out = []
    for i in range(N):
        if x[i] > 0:
            out.append((i, x[i] * 2, "kept"))
        if x[i] > 1:
            out.append((-i, x[i], "kept"))
    return out, out[-1]


def several(x: Tensor) -> Any:
    out = []
    for _ in range(40):
        x = x * 0.7
        out.append(x.sum())
        out += [x.min(), x.max()]
        if x.abs().max() < 0.4:
            break
        out.extend((x.mean(), x.norm()))
    return torch.stack(out), out


def in_dicts(x: Tensor) -> Any:
    out = []
    for _ in range(40):
        x = x * 0.7
        out.append({"sum": x.sum(), "both": [x + 1, x * 2]})
        if x.abs().max() < 0.4:
            break
    return out


def the_last_that_there_was(x: Tensor) -> Any:
    out = [x[0]]
    for i in range(1, N):
        if x[i] > out[-1]:
            out.append(x[i])
    return torch.stack(out)


def before_the_end(x: Tensor) -> Any:
    out = []
    for i in range(N):
        if x[i] > 1.2:
            out.append(x[i] * 3)
            break
        if x[i] > 0:
            out.append(x[i])
    return torch.stack(out)


def by_a_function(x: Tensor) -> Any:
    out: list[Tensor] = []

    def keep(row: Tensor) -> None:
        if row > 0:
            out.append(row * 2)

    for row in x:
        keep(row)
    return torch.stack(out)


def read_by_another_loop(x: Tensor) -> Any:
    found, total = [], x.sum() * 0
    for i in range(N):
        if x[i] > 0:
            found.append((i, x[i] * 2))
    for i, row in found:
        total = total + x[i] * row + i
    return total


def as_places(x: Tensor) -> Any:
    found, values = [], []
    for i in range(N):
        if x[i] > 0:
            found.append(i)
            values.append(x[i].item() * 2)
    return (
        x[torch.tensor(found)],
        torch.tensor(found[::-1], dtype=torch.int32),
        torch.tensor(values),
    )


KEPT = [
    either, some, some_behind_others, in_two_lists, places, numbers_and_tensors, several, in_dicts,
    the_last_that_there_was, before_the_end, by_a_function, read_by_another_loop,
    as_places,
]  # fmt: skip


def argument(seed: int, gradients: bool = False) -> Tensor:
    made = torch.randn(N, generator=torch.Generator().manual_seed(seed))
    return made.requires_grad_(gradients)


@pytest.mark.parametrize("gradients", [False, True], ids=["plain", "gradients"])
@pytest.mark.parametrize("function", KEPT)
def test_one_graph_gives_what_eager_does(
    function: Callable[[Tensor], Any], gradients: bool
) -> None:
    compiled = weft.compile(function, fullgraph=True)
    log = weft.CompileLog()
    for seed in range(3):
        x = argument(seed, gradients)
        with weft.observe(log):
            got = tree_leaves(compiled(x))
        wanted = tree_leaves(function(x))
        tensors = [[leaf for leaf in part if isinstance(leaf, Tensor)] for part in (got, wanted)]
        torch.testing.assert_close(*tensors)
        others = [[leaf for leaf in part if not isinstance(leaf, Tensor)] for part in (got, wanted)]
        assert others[0] == others[1]
        assert sharing([*tensors[0], x]) == sharing([*tensors[1], x])
        totals = [sum(t.sum() * (k + 1) for k, t in enumerate(part)) for part in tensors]
        if gradients and tensors[0]:
            torch.testing.assert_close(*(torch.autograd.grad(total, x) for total in totals))
    assert len(log.graphs) == 1


@pytest.mark.parametrize("function", [some, places])
def test_none_of_the_iterations_appends(function: Callable[[Tensor], Any]) -> None:
    compiled = weft.compile(function)
    for x in (argument(0), -torch.ones(N)):
        torch.testing.assert_close(compiled(x), function(x))


def stacked(x: Tensor) -> Any:
    return torch.stack(some(x)[0])


def test_what_needs_an_element_runs_as_written_without_one() -> None:
    compiled = weft.compile(stacked)
    torch.testing.assert_close(compiled(argument(0)), stacked(argument(0)))
    for _ in range(3):
        with pytest.raises(RuntimeError, match="non-empty"):
            compiled(-torch.ones(N))


def a_dict_of_two_names(x: Tensor) -> Any:
    out, last = [], {"x": x[0]}
    for row in x:
        last = {"x": row * 2}
        if row > 0:
            out.append(last)
    last["x"] = x
    return out, last


def an_object_that_each_iteration_makes(x: Tensor) -> Any:
    out = []
    for row in x:
        if row > 0:
            out.append((object(), row))
    return len({id(key) for key, _ in out}), len(out)


@pytest.mark.parametrize("function", [a_dict_of_two_names, an_object_that_each_iteration_makes])
def test_objects_with_an_identity_are_as_in_eager(function: Callable[[Tensor], Any]) -> None:
    compiled = capture(function, options=CaptureOptions(assume_decisions=True))
    for seed in range(2):
        torch.testing.assert_close(compiled(argument(seed)).result, function(argument(seed)))

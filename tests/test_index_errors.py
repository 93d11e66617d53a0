"""An index out of range where the frame cannot run again: it has drawn what the index is made of.

The error has the type and the words of eager's operator, with the index that the program has given.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft
from torch import Tensor
from torch.nn import functional as F
from weft.registry import codegens
from weft_codegen_cpp import CppCodegen

from tests.fuzz.evaluated import EvaluatedCpp

OPERATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "embedding": lambda s, i: F.embedding(i, torch.stack([s, s], 1)),
    "a lookup": lambda s, i: torch.embedding(torch.stack([s, s], 1), i),
    "an overload": lambda s, i: torch.ops.aten.gather.default(s, 0, i),
    "an overload of parts": lambda s, i: torch.ops.aten.index.Tensor(s.expand(2, 3), [None, i]),
    "embedding_bag": lambda s, i: F.embedding_bag(i[None], torch.stack([s, s], 1)),
    "gather": lambda s, i: s.gather(0, i),
    "gather of a last dim": lambda s, i: torch.gather(s.expand(2, 3), -1, i.expand(2, 3)),
    "take": lambda s, i: torch.take(s, i),
    "take_along_dim": lambda s, i: s.take_along_dim(i, 0),
    "scatter": lambda s, i: s.scatter(0, i, s),
    "scatter_add_": lambda s, i: s.clone().scatter_add_(0, i, s),
    "scatter_reduce": lambda s, i: s.scatter_reduce(0, i, s, "sum"),
    "put": lambda s, i: s.put(i, s),
    "index_select": lambda s, i: torch.index_select(s, 0, index=i),
    "index_add": lambda s, i: s.index_add(0, i, s),
    "index_copy": lambda s, i: s.index_copy(0, i, s),
    "index_fill": lambda s, i: s.index_fill(0, i, 2.0),
    "index_reduce": lambda s, i: s.index_reduce(0, i, s, "prod"),
    "multi_margin_loss": lambda s, i: F.multi_margin_loss(torch.stack([s, s, s]), i),
    "index_put": lambda s, i: s.index_put((i,), s),
    "subscript": lambda s, i: s[i],
    "subscript of a later dim": lambda s, i: s.expand(2, 1, 3)[..., None, i],
    "subscripts of two dims": lambda s, i: s.expand(5, 3)[i.abs() % 2, i],
    "assignment": lambda s, i: _assigned(s.clone(), i),
    "one_hot": lambda s, i: F.one_hot(i, 3),
    "nll_loss": lambda s, i: F.nll_loss(torch.stack([s, s, s]), i),
    "cross_entropy": lambda s, i: F.cross_entropy(torch.stack([s, s, s]), i, weight=s),
    "a call in range before": lambda s, i: s.gather(0, torch.arange(3)) + s.flip(0).index_select(0, i),
    "a remainder before": lambda s, i: s.gather(0, i % 3) + s.flip(0).index_select(0, i),
    "repeat_interleave": lambda s, i: s.repeat_interleave(i - 4),
    "bincount": lambda s, i: torch.bincount(i - 9),
}  # fmt: skip
INDICES = (7, 3, -1, -7)


def _assigned(tensor: Tensor, index: Tensor) -> Tensor:
    tensor[index] = 1.0
    return tensor


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=["int64", "int32"])
@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_drawn_indices(operator: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> None:
    compiled = weft.compile(_drawing(operator))
    for index in INDICES:
        assert _outcome(compiled, index, dtype) == _outcome(_drawing(operator), index, dtype)


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_sizes_that_vary(operator: Callable[[Tensor, Tensor], Tensor]) -> None:
    compiled = weft.compile(_drawing(operator), dynamic=True)
    for index in INDICES:
        assert _outcome(compiled, index) == _outcome(_drawing(operator), index)


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_evaluated(
    operator: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(codegens, "cpu", EvaluatedCpp)
    monkeypatch.setattr(CppCodegen, "_library", None)  # no C++ compiler is called
    compiled = weft.compile(_drawing(operator))
    for index in INDICES:
        assert _outcome(compiled, index) == _outcome(_drawing(operator), index)


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_indices_of_what_is_written(operator: Callable[[Tensor, Tensor], Tensor]) -> None:
    def whole(s: Tensor, i: Tensor) -> Tensor:
        s.mul_(2)  # of too much to be put back
        return operator(s[:3], (s[:3] * 0 + i).to(i.dtype))

    compiled = weft.compile(whole)
    for index in INDICES:
        found, expected = (_outcome(f, index, count=10_000) for f in (compiled, whole))
        assert found == expected


@pytest.mark.parametrize("dynamic", [None, True])
def test_indices_at_hand_are_looked_at(dynamic: bool | None) -> None:
    def whole(s: Tensor, i: Tensor) -> object:
        drawn = torch.rand(3)
        earlier = s.gather(0, (i - i) + 2) * s.take(i.clamp(0, 2)) * s[i.abs() // 8]
        return drawn, earlier + s.flip(0).index_select(0, i + 0 * drawn.long())

    compiled = weft.compile(whole, dynamic=dynamic)
    for index in INDICES:
        assert _outcome(compiled, index) == _outcome(whole, index)


def test_the_first_index_that_is_at_hand_is_told() -> None:
    def whole(s: Tensor, i: Tensor) -> object:
        s.mul_(2)
        drawn = torch.rand(3)
        return drawn, s.gather(0, i + 9_999) * s.sin().cumsum(0)[0]

    for index in INDICES:
        found, expected = (_outcome(f, index, count=10_000) for f in (weft.compile(whole), whole))
        assert found == expected


def _drawing(operator: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., object]:
    def whole(s: Tensor, i: Tensor) -> object:
        drawn = torch.rand(3)
        return drawn, operator(s * drawn, i + 0 * drawn.to(i.dtype))

    return whole


def _outcome(
    function: Callable[..., object], index: int, dtype: torch.dtype = torch.int64, count: int = 3
) -> tuple[str, str] | None:
    try:
        function(torch.ones(count), torch.tensor([0, 1, index], dtype=dtype))
    except (RuntimeError, IndexError, ValueError) as error:
        return type(error).__name__, str(error)
    return None

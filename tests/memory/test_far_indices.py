"""Elements and offsets beyond 2**31 and 2**32, of tensors that take little memory: as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor

FAR = (0, 2**31 - 1, 2**31, 2**32 - 2, 2**32 + 5, 2**33)


@pytest.fixture(autouse=True)
def optimized(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts so many elements takes eight times as long otherwise."""
    monkeypatch.delenv("WEFT_UNOPTIMIZED_LENGTH", raising=False)


@pytest.fixture(scope="module")
def memory() -> Tensor:
    """8 GiB, of which the system hands out the pages that are touched."""
    try:
        return torch.empty(2**33 + 64, dtype=torch.int8)
    except RuntimeError as error:
        pytest.skip(f"no such address space: {error}")


def _rows(memory: Tensor) -> Tensor:
    rows = memory.as_strided((4, 2), (2**31, 1))
    rows.copy_(torch.arange(8, dtype=torch.int8).view(4, 2))
    return rows


def _overwrite(x: Tensor) -> Tensor:
    x[:, 1] = 7
    return x.sum(0)


ON_ROWS: dict[str, Callable[[Tensor], Any]] = {
    "pointwise": lambda x: x * 2,
    "transposed": lambda x: x.t().flatten() + 1,
    "reduced": lambda x: x.to(torch.float32).softmax(0).sum(1),
    "joined": lambda x: torch.cat([x, x[2:]]),
    "written": _overwrite,
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ON_ROWS)
def test_rows_far_apart(memory: Tensor, name: str, dynamic: bool) -> None:
    function = ON_ROWS[name]
    want = function(_rows(memory)), _rows(memory) if name != "written" else None
    got = weft.compile(function, dynamic=dynamic)(_rows(memory))
    torch.testing.assert_close(got, want[0])
    if name == "written":
        assert memory.as_strided((4, 2), (2**31, 1))[:, 1].tolist() == [7] * 4


def _put(x: Tensor, places: Tensor) -> Tensor:
    x[places] = 9
    return x[places]


@pytest.mark.parametrize(
    "function",
    [lambda x, p: x[p] * 2, lambda x, p: x.index_select(0, p) + 1, _put],
    ids=["read", "selected", "written"],
)
def test_places_far_apart(memory: Tensor, function: Callable[..., Tensor]) -> None:
    places = torch.tensor(FAR)
    memory[places] = torch.arange(len(FAR), dtype=torch.int8)
    got = weft.compile(function)(memory, places)
    memory[places] = torch.arange(len(FAR), dtype=torch.int8)
    torch.testing.assert_close(got, function(memory, places))


ON_MANY: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[int], int]]] = {
    "largest": (lambda x: (x + 1).amax(), lambda n: 3),
    "sum": (lambda x: x.to(torch.int64).sum(), lambda n: 2 * n),
    "of rows": (lambda x: (x.expand(1, -1) * 1).sum(-1)[0], lambda n: 2 * n),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["largest", "sum"])
def test_more_elements_than_32_bits_count(name: str, dynamic: bool) -> None:
    """Of an expanded tensor; what is between is in no memory."""
    function, want = ON_MANY[name]
    count = 2**31 + 5
    compiled = weft.compile(function, dynamic=dynamic)
    assert int(compiled(torch.tensor([2], dtype=torch.int8).expand(count))) == want(count)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_MANY)
def test_more_elements_than_32_unsigned_bits_count(name: str) -> None:
    function, want = ON_MANY[name]
    count = 2**32 + 3
    compiled = weft.compile(function)
    assert int(compiled(torch.tensor([2], dtype=torch.int8).expand(count))) == want(count)

"""What is read from a tensor and written to positions of it, some of them more than once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

pytestmark = pytest.mark.native

Update = Callable[[torch.Tensor, torch.Tensor], Any]


def put(y: torch.Tensor, i: torch.Tensor) -> None:
    y[i] += y[i]


def put_and_returned(y: torch.Tensor, i: torch.Tensor) -> Any:
    doubled = y[i] * 2
    y[i] = doubled
    return doubled


def put_from_elsewhere(y: torch.Tensor, i: torch.Tensor) -> Any:
    doubled = y[i.flip(0)] * 2
    y[i] = doubled
    return doubled


def put_where_known(y: torch.Tensor, i: torch.Tensor) -> None:
    y[[0, 0, 2]] = y[[0, 0, 2]] * 3


def put_where_rows_meet(y: torch.Tensor, i: torch.Tensor) -> None:
    rows = torch.arange(2)[:, None] + torch.arange(2)
    y[rows] = y[rows] * 3


def accumulated(y: torch.Tensor, i: torch.Tensor) -> Any:
    return y.index_put_((i,), y[i] * 2, accumulate=True)


def added(y: torch.Tensor, i: torch.Tensor) -> Any:
    picked = y.index_select(0, i)
    y.index_add_(0, i, picked * 2)
    return picked


def copied(y: torch.Tensor, i: torch.Tensor) -> None:
    y.index_copy_(0, i, y.index_select(0, i) * 2)


def scattered(y: torch.Tensor, i: torch.Tensor) -> Any:
    places = i[:, None].expand(-1, y.shape[1])
    picked = y.gather(0, places)
    y.scatter_(0, places, picked * 2)
    return picked.sum()


def scattered_and_added(y: torch.Tensor, i: torch.Tensor) -> None:
    places = i[:, None].expand(-1, y.shape[1])
    y.scatter_add_(0, places, y.gather(0, places) * 2)


def combined(y: torch.Tensor, i: torch.Tensor) -> None:
    places = i[:, None].expand(-1, y.shape[1])
    y.scatter_reduce_(0, places, y.gather(0, places) * 2, "prod")
    y.index_reduce_(0, i, y.index_select(0, i) + 1, "amax")


def by_the_transpose(y: torch.Tensor, i: torch.Tensor) -> None:
    y.T[i % 2] += y.T[i % 2]


UPDATES: tuple[Update, ...] = (
    *(put, put_and_returned, put_from_elsewhere, put_where_known, put_where_rows_meet, accumulated),
    *(added, copied, scattered, scattered_and_added, combined, by_the_transpose),
)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("update", UPDATES)
def test_as_in_eager(update: Update, dynamic: bool | None) -> None:
    compiled = weft.compile(update, dynamic=dynamic)
    for positions in ([0, 0, 0], [2, 1, 2], [1, 0, 2], [0, 0, 1, 1]):
        index = torch.tensor(positions)
        outcomes = []
        for function in (compiled, update):
            y = torch.arange(1.0, 25.0).view(3, 8)
            outcomes.append((function(y, index), y))
        torch.testing.assert_close(outcomes[0], outcomes[1])


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 0, 1)])
def test_what_is_read_where_it_is_written_is_not_copied(
    order: tuple[int, ...], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sizes and strides that are symbols, in whichever order the dims lie."""

    def decay(x: torch.Tensor, y: torch.Tensor) -> None:
        x.mul_(0.9).add_(y)

    monkeypatch.setenv("WEFT_DUMP", str(tmp_path))
    x, y = (torch.ones(3, 4, 5).permute(order) for _ in range(2))
    weft.compile(decay, dynamic=True)(x, y)
    torch.testing.assert_close(x, torch.full((3, 4, 5), 1.9).permute(order))
    (schedule,) = tmp_path.glob("*/5_schedule.txt")
    assert "-> x)" in schedule.read_text()

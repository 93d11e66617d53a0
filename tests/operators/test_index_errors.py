"""An index out of range, or before the first where none counts from the end, is eager's error.

Its type, its message, which has the index as it was given, and no change of what eager leaves as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor
from torch.nn import functional as F

pytestmark = pytest.mark.native

ROWS = torch.arange(12.0).reshape(4, 3)

# Of a 4 x 3 tensor and the indices [0, k].
CALLS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "index": lambda x, k: x[k],
    "index of columns": lambda x, k: x[:, k],
    "index_add": lambda x, k: x.index_add(0, k, x[:2]),
    "index_add times": lambda x, k: x.index_add(1, k, x[:, :2], alpha=2),
    "index_copy": lambda x, k: x.index_copy(0, k, x[:2]),
    "index_fill": lambda x, k: x.index_fill(0, k, 2.0),
    "index_put": lambda x, k: x.index_put((k,), x[0]),
    "index_select": lambda x, k: x.index_select(0, k),
    "gather": lambda x, k: x.gather(0, k[:, None]),
    "take": lambda x, k: x.take(k),
    "scatter": lambda x, k: x.scatter(0, k[:, None], 1.0),
    "scatter_add": lambda x, k: x.scatter_add(0, k[:, None], x),
    "scatter_reduce": lambda x, k: x.scatter_reduce(0, k[:, None], x, "amax"),
    "embedding": lambda x, k: F.embedding(k, x),
    "nll_loss": lambda x, k: F.nll_loss(x[:2], k),
    "max_unpool": lambda x, k: F.max_unpool1d(x[None, :1, :2], k[None, None], 2),
    "index_put_": lambda x, k: x.index_put_((k,), x[0] + 1),
    "index_add_": lambda x, k: x.index_add_(0, k, x[:2] + 1),
    "scatter_": lambda x, k: x.scatter_(0, k[:, None], 5.0),
    "written, then read": lambda x, k: x.add_(1).gather(0, k[:, None]),
    "read, then written": lambda x, k: x.gather(0, k[:, None]).exp_(),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_indices(call: Callable[[Tensor, Tensor], Any], dynamic: bool) -> None:
    compiled = weft.compile(call, dynamic=dynamic)
    outcomes = [_outcome(call, k) for k in (1, -1, 12, -13)]
    assert outcomes[0][0] == "given" and outcomes[2][0] != "given"
    assert [_outcome(compiled, k) for k in (1, -1, 12, -13)] == outcomes


def _outcome(function: Callable[[Tensor, Tensor], Any], index: int) -> tuple[str, Any, Any]:
    x, k = ROWS.clone(), torch.tensor([0, index])
    try:
        result = "given", function(x, k).tolist()
    except (IndexError, RuntimeError) as error:
        result = type(error).__name__, str(error)
    return (*result, x.tolist())


# Of a tensor without elements, or zeros, and indices.
ON_NOTHING: dict[str, tuple[tuple[int, ...], Callable[[Tensor, Tensor], Any]]] = {
    "index_select": ((0, 4), lambda x, k: x.index_select(1, k)),
    "rows": ((4, 0), lambda x, k: x.index_select(0, k)),
    "of three dims": ((2, 4, 0), lambda x, k: x.index_select(1, k)),
    "embedding": ((4, 0), lambda x, k: F.embedding(k, x)),
    "what data says": ((2, 4), lambda x, k: x[x[:, 0] > 0].index_select(1, k)),
    "places": ((2, 3, 4, 5), lambda x, k: x.nonzero().index_select(1, k)),
    "gather": ((0, 4), lambda x, k: x.gather(1, k[None][:0])),
    "index": ((0, 4), lambda x, k: x[:, k]),
    "index_fill": ((0, 4), lambda x, k: x.index_fill(1, k, 2.0)),
    "index_add": ((0, 4), lambda x, k: x.index_add(1, k, x[:, :2])),
    "index_copy": ((4, 0), lambda x, k: x.index_copy(0, k, x[:2])),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ON_NOTHING)
def test_indices_of_rows_without_elements(name: str, dynamic: bool) -> None:
    size, call = ON_NOTHING[name]

    def outcome(function: Callable[[Tensor, Tensor], Any], index: int) -> tuple[str, Any]:
        try:
            return "given", function(torch.zeros(size), torch.tensor([0, index])).shape
        except (IndexError, RuntimeError) as error:
            return type(error).__name__, str(error)

    compiled = weft.compile(call, dynamic=dynamic)
    for index in (1, 4, -1, -5):
        assert outcome(compiled, index) == outcome(call, index)


MARGIN_LOSSES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "function": F.multilabel_margin_loss,
    "module": torch.nn.MultiLabelMarginLoss(reduction="none"),
    "operator": lambda x, labels: torch.ops.aten.multilabel_margin_loss(x, labels, 2),
    "operator with mask": lambda x, k: torch.ops.aten.multilabel_margin_loss_forward.default(
        x, k, 1
    ),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("loss", MARGIN_LOSSES.values(), ids=MARGIN_LOSSES)
def test_margin_loss_of_a_few_labels(loss: Callable[[Tensor, Tensor], Any], dynamic: bool) -> None:
    """What stands behind the first -1 is no label; torch's rules count it."""
    compiled = weft.compile(loss, dynamic=dynamic)
    for columns in (3, 5):
        labels = torch.tensor([[0, -1, 1, 1, 1], [-1, 1, 1, 1, 1], [2, 1, -1, 0, 0]])[:, :columns]
        x, y = (
            torch.linspace(0, 1, labels.numel()).view_as(labels).requires_grad_() for _ in range(2)
        )
        outcomes = [compiled(x, labels), loss(y, labels)]
        torch.testing.assert_close(*outcomes)
        for outcome in outcomes:
            (outcome if isinstance(outcome, Tensor) else outcome[0]).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("number", [-0.5, 1.5])
def test_probabilities_out_of_range(number: float) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy(x, y)

    x, y = torch.tensor([0.5, number]), torch.tensor([0.0, 1.0])
    for operands in ((x, y), (y, x)):
        with pytest.raises(RuntimeError) as expected:
            program(*operands)
        with pytest.raises(RuntimeError) as found:
            weft.compile(program)(*operands)
        assert str(found.value) == str(expected.value)


@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
def test_what_an_error_says_of_a_graph_that_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept loop writes to an argument that shares memory with the other: no program is compiled."""
    monkeypatch.delenv("WEFT_STRICT", raising=False)

    def function(x: Tensor, y: Tensor, k: Tensor) -> Tensor:
        for _ in range(25):
            y.mul_(1.1)
        return x.gather(0, k[:, None])

    told = []
    for call in (function, weft.compile(function)):
        x = torch.ones(5, 3)
        with pytest.raises(RuntimeError) as error:
            call(x, x.t(), torch.tensor([0, 9]))
        told.append(str(error.value))
    assert told[1] == told[0]

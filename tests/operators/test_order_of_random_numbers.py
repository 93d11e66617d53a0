"""Random numbers on the CPU fall on the elements that eager gives them to, whatever the strides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import weft

pytestmark = pytest.mark.native

LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.ones(2, 3, 4),
    "transposed": lambda: torch.ones(4, 3, 2).permute(2, 1, 0),
    "gapped": lambda: torch.ones(4, 3, 8)[::2, :, ::2],
    "gapped and transposed": lambda: torch.ones(8, 3, 4)[::2, :, ::2].permute(2, 1, 0),
    "empty": lambda: torch.ones(2, 0, 4),
}
PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bernoulli_": lambda x: x.bernoulli_(0.4),
    "bernoulli_ of one half": lambda x: x.bernoulli_(),
    "bernoulli_ by a tensor": lambda x: x.bernoulli_(x * 0.3),
    "uniform_": lambda x: x.uniform_(),
    "normal_": lambda x: x.normal_(),
    "geometric_": lambda x: x.geometric_(0.3),
    "random_": lambda x: x.random_(0, 9),
    "rand_like": lambda x: torch.rand_like(x),
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout2d": lambda x: F.dropout1d(x, 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
    "dropout of nothing": lambda x: F.dropout(x, 0.0),
}


REFUSED = {("normal_", "gapped"), ("normal_", "gapped and transposed")}


@pytest.mark.filterwarnings("ignore:.*random numbers written with gaps")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_values_layouts_and_identity(
    program: str, layout: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (program, layout) in REFUSED:
        monkeypatch.delenv("WEFT_STRICT")
    function, make = PROGRAMS[program], LAYOUTS[layout]

    def run(called: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        x = make()
        torch.manual_seed(7)
        return x, called(x)

    (x, wanted), (y, found) = run(function), run(weft.compile(function, dynamic=dynamic))
    torch.testing.assert_close((y, found), (x, wanted))
    assert (found is y) == (wanted is x)
    assert found.stride() == wanted.stride() or not wanted.numel()

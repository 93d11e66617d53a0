"""Which buffers hold results that the caller gives to nobody."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from weft_loop_ir import BufferView, lower, schedule, with_private_results


def test_buffers_of_other_results_and_inputs_are_not_private() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, z = x.exp(), x.sin()
        return y, y.t(), z, z.view(-1), x.t()

    made = schedule(lower(make_fx(function, tracing_mode="fake")(torch.randn(3, 4))))
    names = [view.buffer for view in made.outputs if isinstance(view, BufferView)]
    assert names[0] == names[1] != names[2] == names[3]
    assert made.private == frozenset()
    assert with_private_results(made, range(1, 5)).private == {names[2]}
    assert with_private_results(made, range(3, 5)).private == frozenset()
    assert with_private_results(made, range(5)).private == {names[0], names[2]}

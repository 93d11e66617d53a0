"""Programs that note when their steps end."""

from __future__ import annotations

import itertools

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_codegen_cpp import CppCodegen, CppOptions


def compiled(function, inputs, **options):
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    return CppCodegen(CppOptions(**options)).compile(schedule, {})


def test_each_step_has_a_name_a_beginning_and_a_length() -> None:
    def function(x, y):
        return (torch.softmax(x @ y, -1) * 2) @ y, x.sort()[0]

    inputs = torch.randn(64, 64), torch.randn(64, 64)
    program = compiled(function, inputs, timed=True)
    torch.testing.assert_close(program(*inputs), function(*inputs))
    timeline = program.timeline()
    assert len(timeline) == program.kernel_count + program.extern_count
    names = [name for name, _, _ in timeline]
    assert sum("aten.mm" in name for name in names) == 2 and any("softmax" in n for n in names)
    assert timeline[0][1] == 0.0
    for (_, begin, seconds), (_, following, _) in itertools.pairwise(timeline):
        assert seconds >= 0 and begin + seconds == pytest.approx(following)


def test_many_alike_steps_are_timed_each() -> None:
    def function(*tensors):
        return [t.sin().sum(-1).cos() for t in tensors]

    inputs = [torch.randn(8, n) for n in range(40, 80)]
    program = compiled(function, inputs, timed=True)
    torch.testing.assert_close(list(program(*inputs)), function(*inputs))
    assert len(program.timeline()) > 0


def test_others_have_none() -> None:
    program = compiled(lambda x: x.sin(), [torch.ones(3)])
    with pytest.raises(RuntimeError, match="timed=True"):
        program.timeline()

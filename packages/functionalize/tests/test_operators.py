"""Samples of torch's operator database, in place and not, beside eager."""

from __future__ import annotations

import itertools
import operator
import sys
import types
import unittest
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.fx
import weft_functionalize

if "expecttest" not in sys.modules:
    # The database's module imports it for its own tests' base class only.
    stand_in = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules["expecttest"] = stand_in

from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core

# They read the sources of the whole stack, at each operator's samples, to find the unittest test that asks.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

# Random operators of the database seed the generator when they are called, which is when they are traced.
_SEED = 42
_UNINITIALISED = ("empty", "new_empty", "empty_like", "empty_permuted", "empty_strided")
# Fake tensors refuse what eager takes: a broadcast of the written tensor, a length read from a tensor.
_NOT_TRACED = ("addbmm_", "tensor_split", "linalg.cond")


def _variants() -> Iterator[Any]:
    for info in op_db:
        if torch.float32 not in info.dtypes or info.name.startswith(_UNINITIALISED):
            continue
        for name, function in ((info.name, info.op), (f"{info.name}_", info.inplace_variant)):
            if function is not None and hasattr(function, "__name__") and name not in _NOT_TRACED:
                yield pytest.param(info, function, id=f"{name}-{info.variant_test_name}")


def _graph(function: Any, sample: Any) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    graph, inputs = torch.fx.Graph(), []

    def argument(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            inputs.append(value.detach().clone())
            return graph.placeholder(f"input_{len(inputs)}")
        if isinstance(value, (list, tuple)):
            return type(value)(argument(item) for item in value)
        return value

    args = tuple(argument(value) for value in (sample.input, *sample.args))
    kwargs = {name: argument(value) for name, value in sample.kwargs.items()}
    call = graph.call_function(function, args, kwargs)
    with torch.no_grad():
        values = iter([value.clone() for value in inputs])
        plain = torch.fx.node.map_arg((args, kwargs), lambda _: next(values))
        result = function(*plain[0], **plain[1])
    if isinstance(result, (tuple, list)):
        graph.output(
            tuple(graph.call_function(operator.getitem, (call, i)) for i in range(len(result)))
        )
    else:
        graph.output((call,))
    return torch.fx.GraphModule(torch.nn.Module(), graph), inputs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("info", "function"), list(_variants()))
def test_operator(info: Any, function: Any) -> None:
    for sample in itertools.islice(info.sample_inputs("cpu", torch.float32), 2):
        try:
            module, inputs = _graph(function, sample)
        except (RuntimeError, ValueError, IndexError):
            continue  # eager refuses the sample: it is not one for the in-place form
        try:
            functional = weft_functionalize.functionalize(module, inputs)
        except weft_functionalize.Unsupported:
            continue
        want_inputs, got_inputs = [v.clone() for v in inputs], [v.clone() for v in inputs]
        run = weft_functionalize.bind(functional, functional.graph_module)
        with torch.no_grad():
            torch.manual_seed(_SEED)
            want = torch.fx.Interpreter(module).run(*want_inputs)
            torch.manual_seed(_SEED)
            got = weft_functionalize.wrap(functional, run)(*got_inputs)
        for x, y in zip((*want, *want_inputs), (*got, *got_inputs), strict=True):
            torch.testing.assert_close(y, x, equal_nan=True)


def test_the_librarys_batch_norm_is_the_general_one() -> None:
    """On a GPU the dispatcher chooses it; there is a lowering and a gradient for the general one."""

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor, scale: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
            variance = mean.exp()
            return torch.cudnn_batch_norm(x, scale, mean, mean, variance, False, 0.1, 1e-5)[0]

    inputs = [torch.randn(2, 3, 4, 4), torch.randn(3), torch.randn(3)]
    functional = weft_functionalize.functionalize(torch.fx.symbolic_trace(Module()), inputs)
    assert "cudnn" not in functional.graph_module.code
    x, scale, mean = inputs
    wanted = torch.nn.functional.batch_norm(x, mean, mean.exp(), scale, mean)
    torch.testing.assert_close(functional.graph_module(*inputs)[0], wanted)

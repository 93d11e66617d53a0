"""Gradients of torch's operator database through joint trace and partition, beside eager's."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
import torch.fx
import weft_aot_autograd
import weft_functionalize
from gradients_beside_eager import train
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

pytest.importorskip("expecttest", reason="torch's operator database imports it")

from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core

# They read the sources of the whole stack, at each operator's samples, to find the unittest test that asks.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

SAMPLES, SOME_SAMPLES = 3, 2
# The order of sums, and so their rounding, is the processor's; float64 is held to torch's own tolerance.
TOLERANCES = {torch.float32: {"rtol": 1e-3, "atol": 1e-4}}


def program_of(op: Any, sample: Any) -> tuple[torch.fx.GraphModule, list[Tensor]]:
    """A graph of one call that takes the sample's tensors and gives a flat tuple, and these tensors."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def function(*values: Tensor) -> tuple[Any, ...]:
        rest = iter(values)
        filled = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        tensor, args, kwargs = tree_unflatten(filled, spec)
        result = sample.output_process_fn_grad(op.op(tensor, *args, **kwargs))
        return tuple(tree_flatten(result)[0])

    graph = torch.fx.Graph()
    inputs = tuple(graph.placeholder(f"x{i}") for i in range(len(tensors)))
    graph.output(graph.call_function(function, inputs))
    return torch.fx.GraphModule(torch.nn.Module(), graph), tensors


def is_random(node: torch.fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def compiled_program(program: torch.fx.GraphModule, tensors: list[Tensor]) -> Any:
    """``program`` through the stages; for inference where only views of inputs have gradients.

    None where the graph draws random numbers.
    """
    functional = weft_functionalize.functionalize(program, tensors)
    if any(is_random(node) for node in functional.graph_module.graph.nodes):
        return None  # the database seeds the generator when it calls the operator, not in the graph
    if weft_aot_autograd.trace_joint(functional) is not None:
        return train(program, tensors)[0]
    forward = weft_aot_autograd.trace_inference(functional)
    run = weft_functionalize.bind(functional, forward.graph_module)

    def without_gradients(*inputs: Any) -> Any:
        with torch.no_grad():
            return run(*inputs)

    return weft_functionalize.wrap(functional, without_gradients)


def outcome(run: Any, tensors: list[Tensor]) -> list[Any]:
    """Results and gradients of one run on copies of ``tensors``."""
    inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    torch.manual_seed(0)
    results = run(*inputs)
    differentiated = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
    wanted = [t for t in inputs if t.requires_grad]
    torch.manual_seed(1)
    tangents = [torch.randn_like(r) for r in differentiated]
    gradients: tuple[Any, ...] = ()
    if differentiated:
        gradients = torch.autograd.grad(differentiated, wanted, tangents, allow_unused=True)
    return [*results, *gradients]


LEFT_OUT = {
    "empty": "its contents are not defined",
    "empty_like": "its contents are not defined",
    "new_empty": "its contents are not defined",
    "new_empty_strided": "its contents are not defined",
    "as_stridedpartial_views": "reads beyond the sample's tensors, which the test copies",
    "tensor_split": "torch itself can't run it on fake tensors",
    "to_sparse": "a layout that is not strided",
}
# Code generators lay results out as the graph says; plain torch, which runs the graphs here, does not.
if torch.__version__ < "2.12":
    for _name in ("fft.hfft", "fft.irfft"):
        LEFT_OUT[_name] = "the meta function of their gradient gives other strides than the kernel"
DTYPES = (torch.float64, torch.float32)
# Every run has each operator in the first of its dtypes, with some samples; formulas are the same in the
# others, which have all.
CASES = [
    pytest.param(
        op,
        dtype,
        SOME_SAMPLES if number == 0 else SAMPLES,
        id=f"{op.name}{op.variant_test_name}-{str(dtype)[6:]}",
        marks=() if number == 0 else pytest.mark.slow,
    )
    for op in op_db
    if op.supports_autograd and f"{op.name}{op.variant_test_name}" not in LEFT_OUT
    for number, dtype in enumerate(
        dtype for dtype in DTYPES if dtype in op.supported_backward_dtypes("cpu")
    )
]


def check(op: Any, dtype: torch.dtype, count: int) -> None:
    samples = op.sample_inputs("cpu", dtype, requires_grad=True)
    for sample in itertools.islice(samples, count):
        program, tensors = program_of(op, sample)
        try:
            want = outcome(program, tensors)
            compiled = compiled_program(program, tensors)
        except (weft_functionalize.Unsupported, weft_aot_autograd.Unsupported):
            continue
        if compiled is None:
            continue
        got = outcome(compiled, tensors)
        for x, y in zip(want, got, strict=True):
            if isinstance(x, Tensor):
                assert x.requires_grad == y.requires_grad
                torch.testing.assert_close(y, x, equal_nan=True, **TOLERANCES.get(dtype, {}))
            elif y is not None:  # eager gives no gradient where it is known to be zero
                assert not isinstance(y, Tensor) or not y.any()


@pytest.mark.parametrize(("op", "dtype", "count"), CASES)
def test_operator(op: Any, dtype: torch.dtype, count: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(op, dtype, count)

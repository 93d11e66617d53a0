"""Operators with several results of which a program reads some, or none: alone, in a branch, training."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import weft
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten

Function = Callable[[torch.Tensor], Sequence[torch.Tensor]]
Around = Callable[[Function, tuple[int, ...]], Callable[..., Any]]

CASES: dict[str, Function] = {
    "attention": lambda x: [F.scaled_dot_product_attention(x, x, x)],
    "attention's own results": lambda x: aten._scaled_dot_product_flash_attention_for_cpu(x, x, x),
    "attention with dropout": lambda x: [
        F.scaled_dot_product_attention(x, x, x, dropout_p=0.5 if x.requires_grad else 0.0)
    ],
    "max": lambda x: x.max(-1),
    "sort": lambda x: x.sort(-1),
    "topk": lambda x: x.topk(2),
    "var_mean": lambda x: torch.var_mean(x, -1),
    "layer_norm": lambda x: aten.native_layer_norm(x, x.shape[-1:], None, None, 1e-5),
    "svd": lambda x: torch.linalg.svd(x[0, 0], full_matrices=False),
    "slogdet": lambda x: torch.linalg.slogdet(x[..., :8, :8]),
    "cummax": lambda x: x.cummax(-1),
    "max_pool": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "unique": lambda x: torch.unique(x.detach().round(), return_inverse=True, return_counts=True),
    "random numbers": lambda x: [torch.rand(3), torch.randn_like(x), torch.randperm(4)],
}


def _subsets(count: int) -> Iterator[tuple[int, ...]]:
    for length in range(count + 1):
        yield from itertools.combinations(range(count), length)


def _alone(function: Function, used: tuple[int, ...]) -> Callable[..., Any]:
    def program(x: torch.Tensor, flag: torch.Tensor) -> Any:
        results = function(x)
        return (x + 1, *(results[k] for k in used), torch.rand(2))

    return program


def _in_branch(function: Function, used: tuple[int, ...]) -> Callable[..., Any]:
    def program(x: torch.Tensor, flag: torch.Tensor) -> Any:
        y = x * 2
        if flag.sum() > 0:
            results = function(x)
            for k in used:
                y = y + results[k].sum()
        return y, torch.rand(2)

    return program


def _run(program: Callable[..., Any], flag: float, gradients: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(1, 2, 16, 32, requires_grad=gradients)
    results = [r for r in tree_leaves(program(x, torch.full((2,), flag))) if r.numel()]
    found = [r.detach() for r in results]
    if gradients:
        sum(r.sum() for r in results if r.requires_grad).backward()  # type: ignore[union-attr]
        assert x.grad is not None
        found.append(x.grad)
    return found


def _check(name: str, around: Around, gradients: bool) -> None:
    function = CASES[name]
    if name == "svd" and gradients:
        pytest.skip("gradients of a decomposition's parts need all of it")
    subsets = list(_subsets(len(function(torch.randn(1, 2, 16, 32)))))
    chosen = [subsets[0], subsets[(len(name) + gradients) % len(subsets)]]
    for used in dict.fromkeys(chosen):
        _compare(around(function, used), gradients)


@pytest.mark.parametrize(("name", "number"), [(name, k) for k, name in enumerate(CASES)])
def test_none_or_one_of_several_results(name: str, number: int) -> None:
    _check(name, (_alone, _in_branch)[number % 2], number % 4 > 1)


@pytest.mark.native
@pytest.mark.parametrize("used", [(1,), ()], ids=str)
def test_what_attention_gives_beside_its_values(used: tuple[int, ...]) -> None:
    _compare(_alone(CASES["attention's own results"], used), False)


@pytest.mark.slow
@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("around", [_alone, _in_branch])
@pytest.mark.parametrize("name", CASES)
def test_none_or_one_of_several_results_everywhere(
    name: str, around: Around, gradients: bool
) -> None:
    _check(name, around, gradients)


def _compare(program: Callable[..., Any], gradients: bool) -> None:
    compiled = weft.compile(program)
    for flag in (1.0, -1.0):
        got, eager = _run(compiled, flag, gradients), _run(program, flag, gradients)
        torch.testing.assert_close(got, eager, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("around", [_alone, _in_branch])
@pytest.mark.parametrize("name", CASES)
def test_every_subset_of_results(name: str, around: Around) -> None:
    function = CASES[name]
    for used in _subsets(len(function(torch.randn(1, 2, 16, 32)))):
        _compare(around(function, used), False)


@pytest.mark.slow
def test_every_subset_of_results_in_the_database() -> None:
    """All operators of torch's database that give several tensors, their first sample."""
    from torch.testing._internal.common_methods_invocations import op_db

    checked = 0
    failures = []
    for entry in op_db:
        if torch.float32 not in entry.supported_dtypes("cpu") or "empty" in entry.name:
            continue
        if "jiterator" in entry.name and not torch.cuda.is_available():
            continue  # the database says that they run on a processor, and eager that they don't
        sample = next(iter(entry.sample_inputs("cpu", torch.float32)), None)
        if sample is None:
            continue
        eager = entry(sample.input, *sample.args, **sample.kwargs)
        if not isinstance(eager, tuple) or len(eager) < 2 or isinstance(eager[0], tuple):
            continue
        for used in itertools.islice(_subsets(len(eager)), 8):
            checked += 1

            def program(x: Any, used: tuple[int, ...] = used) -> Any:
                results = entry.op(x, *sample.args, **sample.kwargs)  # noqa: B023
                return tuple(results[k] for k in used)

            try:
                torch.manual_seed(0)
                expected = program(sample.input)
                torch.manual_seed(0)
                got = weft.compile(program)(sample.input)
                torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
            except Exception as error:
                failures.append(f"{entry.name} {used}: {type(error).__name__} {str(error)[:200]}")
    assert checked > 100
    assert not failures, "\n".join(failures)

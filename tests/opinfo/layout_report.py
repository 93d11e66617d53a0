"""Where results lie, for the whole operator database: ``python -m tests.opinfo.layout_report --help``.

Strides, storage offsets, contiguity and what a result is a view of, beside eager, for inputs of many layouts.
Schedules are run by the reference evaluator, as no code generator decides any of this.  Prints what differs,
by operator, and counts.  Exits with 1 if anything does.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import weft
import weft.registry
import weft_loop_ir
from torch.utils._pytree import tree_leaves, tree_map
from weft_loop_ir import Schedule

from tests.opinfo.checking import UNDEFINED, Case, Outcome, copy_of, operator_names, same_strides
from tests.opinfo.error_report import IN_PLACE, call
from tests.opinfo.sweeps import command

DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64)


def layout_cases() -> Iterator[Case]:
    """Every operator, and its form in place, in each of :data:`DTYPES` that it takes."""
    for name, op in operator_names().items():
        supported = op.supported_dtypes("cpu")
        if op.name in UNDEFINED - {"empty_like"}:
            continue
        for dtype, dynamic in itertools.product(DTYPES, (False, True)):
            if dtype in supported:
                yield Case(name, dtype, dynamic)
                if op.inplace_variant is not None and dtype == torch.float32:
                    yield Case(name + IN_PLACE, dtype, dynamic)


# -- layouts: each gives a tensor of the same size, or None where it has no such form ----------------------


def _in_order(tensor: torch.Tensor, order: list[int]) -> torch.Tensor:
    """A dense copy whose dims lie in memory in ``order``, outermost first."""
    permuted = tensor.permute(order).contiguous()
    return permuted.permute([order.index(d) for d in range(tensor.dim())])


def _transposed(tensor: torch.Tensor) -> torch.Tensor | None:
    dims = list(range(tensor.dim()))
    if len(dims) < 2:
        return None
    return _in_order(tensor, [*dims[:-2], dims[-1], dims[-2]])


def _reversed(tensor: torch.Tensor) -> torch.Tensor | None:
    dims = list(range(tensor.dim()))
    return _in_order(tensor, dims[::-1]) if len(dims) > 2 else None


def _channels_last(tensor: torch.Tensor) -> torch.Tensor | None:
    dims = list(range(tensor.dim()))
    return _in_order(tensor, [0, *dims[2:], 1]) if len(dims) in (4, 5) else None


def _batch_inside(tensor: torch.Tensor) -> torch.Tensor | None:
    """As channels-last, of three dims: neither reversed nor a transposed matrix."""
    return _in_order(tensor, [1, 2, 0]) if tensor.dim() == 3 else None


def _gapped(tensor: torch.Tensor) -> torch.Tensor | None:
    """Every other element of the last dim, behind one that is left out."""
    if not tensor.dim():
        return None
    wide = tensor.new_zeros((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1))
    return wide[..., 1::2].copy_(tensor)


def _gapped_rows(tensor: torch.Tensor) -> torch.Tensor | None:
    """Rows of a wider matrix, transposed."""
    if tensor.dim() < 2:
        return None
    wide = tensor.new_zeros((*tensor.shape[:-2], tensor.shape[-1], tensor.shape[-2] + 3)).mT
    return wide[..., 2:-1, :].copy_(tensor)


def _expanded(tensor: torch.Tensor) -> torch.Tensor | None:
    if not tensor.dim() or tensor.shape[0] < 2:
        return None
    return tensor[:1].clone(memory_format=torch.contiguous_format).expand(tensor.shape)


def _expanded_last(tensor: torch.Tensor) -> torch.Tensor | None:
    if tensor.dim() < 2 or tensor.shape[-1] < 2:
        return None
    return tensor[..., :1].clone(memory_format=torch.contiguous_format).expand(tensor.shape)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "as given": lambda tensor: tensor,
    "transposed": _transposed,
    "reversed": _reversed,
    "channels last": _channels_last,
    "batch inside": _batch_inside,
    "gapped": _gapped,
    "gapped rows": _gapped_rows,
    "expanded": _expanded,
    "expanded last": _expanded_last,
}


def arranged(layout: str, arguments: Any, first_only: bool) -> Any:
    """The arguments in a layout: all tensors, or the first; None where none of them has that form."""
    change = LAYOUTS[layout]
    count = 0

    def arrange(leaf: Any) -> Any:
        nonlocal count
        if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
            return leaf
        if leaf.is_conj() or leaf.is_neg() or (first_only and count):
            return leaf
        made = change(leaf)
        count += made is not None
        return leaf if made is None else made

    changed = tree_map(arrange, arguments)
    return changed if count else None


# -- comparing ---------------------------------------------------------------------------------------------


class _EvaluatedProgram:
    def __init__(self, schedule: Schedule, constants: Mapping[str, torch.Tensor]) -> None:
        self.source = ""
        self.kernel_count = self.extern_count = 1
        self._schedule, self._constants = schedule, constants

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        rest = iter(inputs)
        every = [
            self._constants[e] if e in self._constants else next(rest)
            for e in self._schedule.inputs
        ]
        return weft_loop_ir.evaluate(self._schedule, every)


class EvaluatedCodegen(weft_loop_ir.Codegen):
    """The code generator's place, taken by the reference evaluator."""

    device_type = "cpu"

    def compile(
        self, schedule: Schedule, constants: Mapping[str, torch.Tensor]
    ) -> _EvaluatedProgram:
        return _EvaluatedProgram(schedule, constants)


def placement(result: Any, arguments: Any) -> list[Any]:
    """What a caller can tell of where tensors lie: a tuple for each."""
    given = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    storages = [t.untyped_storage().data_ptr() for t in given if t.layout == torch.strided]
    found: list[Any] = []
    seen: list[int] = []
    for leaf in tree_leaves(result):
        if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
            continue
        own = leaf.untyped_storage().data_ptr() if leaf.numel() else 0
        formats = [torch.contiguous_format]
        formats += [torch.channels_last] * (leaf.dim() == 4)
        formats += [torch.channels_last_3d] * (leaf.dim() == 5)
        found.append(
            (
                leaf,
                leaf.storage_offset() if leaf.numel() else 0,
                [leaf.is_contiguous(memory_format=f) for f in formats],
                storages.index(own) if own in storages else None,
                seen.index(own) if own and own in seen else None,
            )
        )
        seen.append(own)
    return found


def difference(found: list[Any], expected: list[Any]) -> str:
    """How placements differ; empty if they do not."""
    for place, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        if mine[0].shape != theirs[0].shape or mine[0].dtype != theirs[0].dtype:
            return f"result {place} is {mine[0].shape} where {theirs[0].shape} is expected"
        if not same_strides(mine[0], theirs[0]):
            strides = f"strides {mine[0].stride()} where {theirs[0].stride()} is expected"
            return f"result {place} of {tuple(mine[0].shape)} has {strides}"
        names = ("offset", "contiguity", "argument that it is a view of", "result that it shares")
        for name, one, other in zip(names, mine[1:], theirs[1:], strict=True):
            if one != other:
                return f"result {place} has {name} {one} where {other} is expected"
    return ""


def check_layouts(case: Case, samples: int) -> Outcome:
    """Compare where the results of ``samples`` samples lie, for each of :data:`LAYOUTS` of their tensors."""
    name = case.name.removesuffix(IN_PLACE)
    op = operator_names()[name]
    function = op.op if name == case.name else op.inplace_variant
    torch.manual_seed(0)
    outcome = Outcome()
    met: set[Any] = set()
    every = op.sample_inputs("cpu", case.dtype, requires_grad=False)
    for number, sample in enumerate(itertools.islice(every, samples)):
        arguments = (sample.input, sample.args, sample.kwargs)
        for layout, first_only in itertools.product(LAYOUTS, (False, True)):
            changed = arranged(layout, arguments, first_only)
            key = changed and str([_form(leaf) for leaf in tree_leaves(changed)])
            if changed is None or key in met:
                continue
            met.add(key)
            label = f"sample {number}, {layout}{' first' * first_only}"
            _check(case, function, changed, label, outcome)
    return outcome


def _form(leaf: Any) -> Any:
    return (
        (leaf.shape, leaf.stride())
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided
        else leaf
    )


def _check(case: Case, function: Any, arguments: Any, label: str, outcome: Outcome) -> None:
    own = tree_map(copy_of, arguments)
    try:
        torch.manual_seed(0)
        expected = placement(_run(call, function, own), own)
    except Exception:
        return  # eager refuses it
    weft.reset()
    compiled = weft.compile(call, dynamic=case.dynamic, options={"strict": False})
    own = tree_map(copy_of, arguments)
    try:
        found = placement(_run(compiled, function, own), own)
    except Exception as error:
        outcome.errors.append(f"{label}: {type(error).__name__}: {error}"[:400])
        return
    outcome.samples += 1
    text = difference(found, expected)
    if text:
        outcome.wrong.append(f"{label}: {text}")


def _run(function: Any, operator: Any, arguments: Any) -> Any:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(operator, *arguments)


def evaluate_schedules() -> None:
    """Let the evaluator run what is compiled from now on in this process."""
    weft.register_codegen("cpu", EvaluatedCodegen)


def serve_one(case: Case, samples: int) -> Outcome:
    evaluate_schedules()
    return check_layouts(case, samples)


if __name__ == "__main__":
    command(layout_cases, serve_one, "tests.opinfo.layout_report")

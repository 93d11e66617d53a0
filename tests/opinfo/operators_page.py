"""Writes packages/loop-ir/OPERATORS.md: ``python -m tests.opinfo.operators_page``.

For every operator of torch's operator database, forward and gradient, on a few samples in float32 (else in
the first dtype that it takes): is it lowered to loops as it is, after decomposition, or with calls of torch.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten
from weft_aot_autograd import default_decompositions
from weft_loop_ir import ExternCall, NoLowering, Unsupported

from tests.opinfo.checking import DTYPES, operator_names

PAGE = Path(__file__).parents[2] / "packages" / "loop-ir" / "OPERATORS.md"
SAMPLES = 3

REASONS: tuple[tuple[str, str], ...] = (
    # pattern of the extern operator's name, why it isn't lowered
    (r"linalg_|_linalg|cholesky|triangular_solve|lu_unpack|geqrf|ormqr|householder", "LAPACK"),
    (r"_fft_", "a library transform"),
    (r"mm$|bmm|convolution|attention|_trilinear|cdist|pdist|linear_cross", "a library call"),
    (r"special_|igamma|polygamma|^i0$|digamma", "a series that torch computes as accurately"),
    (r"sort|topk|kthvalue|median|mode|searchsorted|bucketize|unique|hist", "a search, not a loop nest"),
    (r"cum|logcumsumexp|segment", "sequential along a dim"),
    (r"rand|normal|bernoulli|multinomial|fractional|dropout|rrelu", "eager's own random values"),
    (r"complex|conj|polar|real|angle", "complex numbers"),
    (r"_linalg_check|assert", "a check with no result"),
    (r"pool3d|trilinear3d|grid_sampler|bicubic|bilinear|linear1d|_aa|upsample|pad|adaptive_max",
     "a window or a weighted scatter that isn't worth unrolling"),
    (r"put|scatter|index|masked|nonzero|embedding_bag|take|ctc|loss", "an irregular scatter or search"),
)  # fmt: skip


@dataclass
class Row:
    """How one operator is compiled: ``kind`` and the extern operators with their reasons."""

    kind: str
    externs: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        listed = "; ".join(f"`{name}`: {reason}" for name, reason in sorted(self.externs.items()))
        return f"{self.kind} ({listed})" if listed else self.kind


def why(call: ExternCall) -> str:
    """The reason that the page gives for an extern call."""
    if call.reason not in ("no lowering rule", "library"):
        return call.reason
    name = call.operator._schema.name.partition("::")[2]
    views = [v for v in (*call.arguments, *call.keywords.values()) if hasattr(v, "dtype")]
    if any(view.dtype.is_complex for view in views):
        return "complex numbers"
    if call.reason == "library":
        return "a library call"
    return next((reason for pattern, reason in REASONS if re.search(pattern, name)), "rare")


def classify(op: Any, gradient: bool) -> Row:
    """How the operator compiles over its first samples."""
    dtypes = [d for d in DTYPES if d in op.supported_dtypes("cpu")]
    if not dtypes:
        return Row("no such dtype")
    if gradient and (not op.supports_autograd or not dtypes[0].is_floating_point):
        return Row("")
    torch.manual_seed(0)
    samples = op.sample_inputs("cpu", dtypes[0], requires_grad=False)
    rows = [_row(op, sample, gradient) for sample in itertools.islice(samples, SAMPLES)]
    externs = {name: reason for row in rows for name, reason in row.externs.items()}
    order = ("eager", "extern", "decomposed", "lowered", "a view or constant", "")
    kind = min((row.kind for row in rows), key=order.index, default="")
    return Row(kind, externs)


def _row(op: Any, sample: Any, gradient: bool) -> Row:
    used: set[Any] = set()
    graph = _graph(op, sample, gradient, used)
    if graph is None:
        return Row("eager")
    graph.graph.eliminate_dead_code()
    try:
        loop_graph = weft_loop_ir.lower(graph)
    except (Unsupported, NoLowering):
        return Row("eager")
    except ValueError:  # writes in place: weft functionalizes before
        return Row("")
    externs = {
        str(node.operator).removesuffix(".default"): why(node)
        for node in loop_graph.nodes
        if isinstance(node, ExternCall)
    }
    if externs:
        return Row("extern", externs)
    if not loop_graph.nodes:
        return Row("a view or constant")
    return Row("decomposed" if used else "lowered")


def _graph(op: Any, sample: Any, gradient: bool, used: set[Any]) -> Any:
    """The decomposed graph, None where torch itself can't trace it on fake tensors.

    Gradients are for all tensors, or for the first where some of the others have none (running statistics).
    """
    table = {o: _noting(used, o, rule) for o, rule in default_decompositions().items()}
    for first_only in (False, True) if gradient else (False,):
        function, tensors = _function(op, sample, gradient, first_only)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return make_fx(function, tracing_mode="fake", decomposition_table=table)(*tensors)
        except Exception:
            used.clear()
    return None


def _noting(used: set[Any], operator: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*arguments: Any, **keywords: Any) -> Any:
        result = rule(*arguments, **keywords)
        if result is not NotImplemented:
            used.add(operator)
        return result

    return noted


def _function(
    op: Any, sample: Any, gradient: bool, first_only: bool
) -> tuple[Callable[..., Any], list[Any]]:
    """The operator, or its gradient, as a function of the sample's tensors alone."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def function(*given: torch.Tensor) -> Any:
        if gradient:
            given = tuple(
                t.detach().requires_grad_(t.is_floating_point() and not (first_only and number))
                for number, t in enumerate(given)
            )
        rest = iter(given)
        values = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        value, args, kwargs = tree_unflatten(values, spec)
        results = [
            r for r in tree_flatten(op.op(value, *args, **kwargs))[0] if isinstance(r, torch.Tensor)
        ]
        if not gradient:
            return tuple(results)
        results = [r for r in results if r.requires_grad]
        wanted = [t for t in given if t.requires_grad]
        grads = torch.autograd.grad(
            results, wanted, [torch.ones_like(r) for r in results], allow_unused=True
        )
        return tuple(g for g in grads if g is not None)

    return function, tensors


def line(name: str, op: Any) -> str:
    """One line of the page's table."""
    return f"| {name} | {classify(op, False)} | {classify(op, True)} |"


HEAD = """# Operators

How each operator of torch's operator database is compiled, tried on a few samples in float32 with the
decompositions of weft-aot-autograd. Written by `python -m tests.opinfo.operators_page`.

- **lowered**: to loops, as it is.
- **decomposed**: to operators that are lowered.
- **extern**: some of it is a call of torch; which, and why (small matrix products are loops on the CPU).
- **eager**: sizes or numbers depend on data, or torch can't trace it: it stays outside the graph.
- empty: no gradient, or it writes in place, which weft-functionalize rewrites first.

"""


def page(lines: list[str]) -> str:
    """The page with these lines: counts of what they say, then the table."""
    counts = []
    for column, label in ((1, "forward"), (2, "gradient")):
        kinds = Counter(text.split("|")[column + 1].split("(")[0].strip() for text in lines)
        listed = (f"{kinds[kind]} {kind}" for kind in ("lowered", "decomposed", "extern", "eager"))
        counts.append(f"{label}: " + ", ".join(listed))
    table = ["| operator | forward | gradient |", "|---|---|---|", *lines]
    return HEAD + "; ".join(counts).capitalize() + ".\n\n" + "\n".join(table) + "\n"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page([line(name, op) for name, op in sorted(operator_names().items())]))


if __name__ == "__main__":
    main()

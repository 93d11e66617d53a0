"""Scans: what reaches a row from later ones is a linear recurrence, so backward is a scan too, from the end.

With ``y[t] = combine(y[t - 1], x[t])`` the gradient to ``y[t]`` is its own plus the one to ``y[t + 1]`` times
the derivatives of ``combine`` by its left values, which are elementwise: a small matrix for each element.
Affine maps compose associatively.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx

from ..formula_errors import refused_formulas
from ..joint_recorder import JointRecorder
from ..replay import GradientModeInterpreter
from ..unsupported import Unsupported
from .recording import RegionRule, record_region, run_nodes
from .region_function import call_region

MAX_STATES = 4
"""Of scans of more tensors the matrices have too many entries to be worth it."""

Entries = dict[tuple[int, int], torch.Tensor]
"""A matrix for each element, by row and column; those not there are zero."""


def differentiate_scan(
    recorder: JointRecorder, node: torch.fx.Node, args: Sequence[Any], rule: RegionRule
) -> tuple[Any, ...]:
    """The results of an ``associative_scan`` through which gradients flow."""
    module, rows, additional = args
    if any(isinstance(v, torch.Tensor) and v.requires_grad for v in additional):
        raise Unsupported("gradient of a scan to what its function reads besides rows", node.name)
    scan = _Scan(recorder, node, module, additional, rule)
    scan.find_tracked(rows)
    if len(scan.tracked) > MAX_STATES:
        raise Unsupported("gradient of a scan of many tensors", node.name)
    return call_region(scan, rows)


class _Scan:
    """The two scans.  Positions are those of rows, which are those of results."""

    def __init__(
        self,
        recorder: JointRecorder,
        node: torch.fx.Node,
        module: torch.fx.GraphModule,
        additional: Sequence[Any],
        rule: RegionRule,
    ) -> None:
        self.recorder = recorder
        self.node = node
        self.module = module
        self.additional = tuple(additional)
        self.rule = rule
        self.tracked: set[int] = set()  # results that have gradients

    def find_tracked(self, rows: Sequence[torch.Tensor]) -> None:
        """Find the results that have gradients: those of rows that do, and what is combined of these."""
        self.tracked = {k for k, row in enumerate(rows) if row.requires_grad}
        while True:
            with self.recorder.paused(), torch.enable_grad():
                right = [row[0].detach().requires_grad_(row.requires_grad) for row in rows]
                left = [
                    row[0].detach().requires_grad_(k in self.tracked) for k, row in enumerate(rows)
                ]
                made = GradientModeInterpreter(self.module).run(*left, *right, *self.additional)
                found = {k for k, value in enumerate(made) if value.requires_grad}
            if found <= self.tracked:
                return
            self.tracked |= found

    def forward(self, operands: Sequence[Any]) -> tuple[tuple[Any, ...], list[torch.Tensor], None]:
        """Record the scan as it is; its results, and these again for backward."""
        results = self._scan(self.module, operands, self.additional)
        return results, [self.recorder.alias_of(result) for result in results], None

    def _scan(
        self, module: torch.fx.GraphModule, rows: Sequence[torch.Tensor], additional: Sequence[Any]
    ) -> tuple[torch.Tensor, ...]:
        recorder = self.recorder
        with recorder.paused():
            results = [torch.empty(r.shape, dtype=r.dtype, device=r.device) for r in rows]
        arguments = (
            recorder.add_region("combine", module),
            recorder.nodes_in(tuple(rows)),
            recorder.nodes_in(tuple(additional)),
        )
        return recorder.add_region_operator(self.node, arguments, results)

    def backward(
        self,
        operands: Sequence[Any],
        kept: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
    ) -> dict[int, torch.Tensor]:
        """Record the scan from the end; the gradients by row."""
        rows, results = operands, kept
        by_left, by_right = self._derivatives(rows, results)
        reached = {k for k in self.tracked if gradients[k] is not None}
        while True:
            more = {i for j, i in by_left if j in reached} - reached
            if not more:
                break
            reached |= more
        own = {}
        for k in sorted(reached):
            given = gradients[k]
            own[k] = torch.zeros_like(results[k]) if given is None else given
        inside = {(j, i): d for (j, i), d in by_left.items() if j in reached}
        total = self._totals(own, inside) if inside else own
        found = {}
        for i, row in enumerate(rows):
            if not row.requires_grad:
                continue
            terms = [d * total[j][1:] for (j, k), d in by_right.items() if k == i and j in reached]
            if i not in total and not terms:
                continue
            first = total[i][:1] if i in total else torch.zeros_like(row[:1])
            rest = sum(terms[1:], start=terms[0]) if terms else torch.zeros_like(row[1:])
            found[i] = torch.cat([first, rest])
        return found

    def _derivatives(
        self, rows: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> tuple[Entries, Entries]:
        """The derivatives of each result from the second on by the left and by the right values."""
        before, after = [y[:-1].detach() for y in results], [x[1:].detach() for x in rows]
        placeholders = self.module.graph.find_nodes(op="placeholder")
        tracked = sorted(self.tracked)
        own = [k for k, row in enumerate(rows) if row.requires_grad]
        by_left: Entries = {}
        by_right: Entries = {}
        with torch.enable_grad():
            for k in tracked:
                before[k].requires_grad_()
            for k in own:
                after[k].requires_grad_()
            values = [*before, *after, *self.additional]
            environment = dict(zip(placeholders, values, strict=True))
            made = run_nodes(self.module, self.recorder, environment, self.rule)
            variables = [*(before[k] for k in tracked), *(after[k] for k in own)]
            for j in tracked:
                if not made[j].requires_grad:
                    continue
                ones = torch.ones_like(made[j], requires_grad=False)
                with refused_formulas():
                    found = torch.autograd.grad(
                        made[j], variables, ones, retain_graph=True, allow_unused=True
                    )
                pairs = zip([*tracked, *own], found, strict=True)
                for number, (i, derivative) in enumerate(pairs):
                    if derivative is not None:
                        (by_left if number < len(tracked) else by_right)[j, i] = derivative
        return by_left, by_right

    def _totals(self, own: Mapping[int, torch.Tensor], by_left: Entries) -> dict[int, torch.Tensor]:
        """The gradients to results, with what comes through later ones."""
        entries = _closed({(i, j) for j, i in by_left})
        positions = sorted(own)
        last = {k: torch.zeros_like(own[k][:1]) for k in positions}
        factors = []
        for i, j in entries:
            known = by_left.get((j, i))
            factor = torch.zeros_like(own[i][1:]) if known is None else known
            factors.append(torch.cat([factor, last[i]]).flip(0))
        rows = [*factors, *(own[k].flip(0) for k in positions)]
        with self.recorder.paused():
            examples = [torch.empty(r.shape[1:], dtype=r.dtype, device=r.device) for r in rows]
        names = [f"factor_{i}_{j}" for i, j in entries] + [f"gradient_{k}" for k in positions]

        def run(recorder: JointRecorder, values: list[Any]) -> list[Any]:
            return _composed(entries, positions, values[: len(rows)], values[len(rows) :])

        module = record_region(self.recorder, [*examples, *examples], [*names, *names], run)
        made = self._scan(module, rows, ())[len(entries) :]
        return {k: total.flip(0) for k, total in zip(positions, made, strict=True)}


def _closed(entries: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """The elements that matmuls with these have."""
    closed = set(entries)
    while True:
        more = {(i, m) for i, j in closed for k, m in closed if j == k} - closed
        if not more:
            return sorted(closed)
        closed |= more


def _composed(
    entries: Sequence[tuple[int, int]],
    positions: Sequence[int],
    later: Sequence[torch.Tensor],
    earlier: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """The affine map of the rows that are ``later``, then that of those before them."""
    inner = dict(zip(entries, later, strict=False))
    outer = dict(zip(entries, earlier, strict=False))
    results = []
    for i, m in entries:
        terms = [
            outer[i, j] * inner[j, m] for j in positions if (i, j) in outer and (j, m) in inner
        ]
        zero = torch.zeros_like(outer[i, m])
        results.append(sum(terms[1:], start=terms[0]) if terms else zero)
    count = len(entries)
    before = dict(zip(positions, later[count:], strict=True))
    for k, total in zip(positions, earlier[count:], strict=True):
        for j in positions:
            if (k, j) in outer:
                total = total + outer[k, j] * before[j]
        results.append(total)
    return results

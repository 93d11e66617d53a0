"""Whether what a compiled model gives is as right as what eager gives, judged by float64.

A model may be ill-conditioned, as where batch norms see few values or a window's largest element changes:
then neither eager nor weft is near float64.  So what is too far off is asked again at states that differ
by rounding, of parameters and of inputs, where eager, float64 and weft run side by side.  An error of weft's
is in all of them; what jumps is in some, for all three.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

FACTOR = 4.0
"""How many times eager's own distance from float64 a result may lie from it."""

ROUNDING = 2e-6
"""And this share of the largest value, where eager happens to be exact."""

FLOOR = 1e-3
"""Gradients below this share of the model's largest are judged as if they were as large: what cancels to
nothing, as a bias before a norm, is rounding of the gradients that pass there."""

UNJUDGED = 1e-3
"""How far from eager, relatively, where the model has no float64 results that are near eager's."""

UNLIKE = 0.05
"""Where eager is further from float64 than this share, float64 decides something otherwise, as random
numbers; unless either moves as far itself when parameters and inputs are moved by rounding."""

USUAL = 8.0
"""How many times what is usual at moved states a result may lie from float64 at most of them."""


Tensors = tuple[torch.Tensor, torch.Tensor, "torch.Tensor | None"]


@dataclass(frozen=True)
class Observation:
    """Results in the order in which they stand, and gradients by parameter."""

    results: list[torch.Tensor]
    gradients: dict[str, torch.Tensor | None]


@dataclass(frozen=True)
class Trial:
    """What weft, eager and float64 gave for one state; float64 may not take the model."""

    found: Observation
    wanted: Observation
    exact: Observation | None

    def pairs(self) -> Iterator[tuple[str, Tensors]]:
        """Every result and gradient by name: weft's, eager's, float64's; those that one lacks left out."""
        exact = self.exact
        if exact is not None and len(exact.results) != len(self.wanted.results):
            exact = None
        for number, (mine, plain) in enumerate(
            zip(self.found.results, self.wanted.results, strict=False)
        ):
            yield f"result {number}", (mine, plain, exact and exact.results[number])
        for name, gradient in self.wanted.gradients.items():
            mine_gradient = self.found.gradients[name]
            if mine_gradient is not None and gradient is not None:
                exact_gradient = exact and exact.gradients[name]
                yield f"gradient of {name}", (mine_gradient, gradient, exact_gradient)


@dataclass(frozen=True)
class Distances:
    """Of one tensor at one state: weft's and eager's from float64, and how far float64 and eager moved."""

    weft: float
    eager: float
    moved: float = 0.0
    eager_moved: float = 0.0


def distances(near: Trial, trial: Trial) -> dict[str, Distances]:
    """By name what the tensors of ``near``, whose state is ``trial``'s moved by rounding, are apart."""
    unmoved = dict(trial.pairs())
    found = {}
    for name, (mine, plain, exact) in near.pairs():
        if name not in unmoved:
            continue
        _, plain_before, exact_before = unmoved[name]
        every = (
            _distance(mine, exact),
            _distance(plain, exact),
            _distance(exact_before, exact),
            _distance(plain_before, plain),
        )
        if None not in every:
            found[name] = Distances(*every)  # type: ignore[arg-type]
    return found


def difference(trial: Trial, moved: Sequence[Mapping[str, Distances]] = ()) -> str:
    """What is wrong in ``trial``, empty if nothing is; ``moved`` is what :func:`distances` gave."""
    found, wanted = trial.found, trial.wanted
    if len(found.results) != len(wanted.results):
        return f"{len(found.results)} results where eager has {len(wanted.results)}"
    for name, plain in wanted.gradients.items():
        mine = found.gradients[name]
        if (mine is None) is not (plain is None):
            return f"gradient of {name}: {mine} where eager has {plain}"[:300]
    floor = FLOOR * max(map(_largest, wanted.gradients.values()), default=0.0)
    for name, tensors in trial.pairs():
        others = [near[name] for near in moved if name in near]
        told = apart(*tensors, others, floor if name.startswith("gradient") else 0.0)
        if told:
            return f"{name}: {told}"
    return ""


def apart(
    mine: torch.Tensor,
    plain: torch.Tensor,
    exact: torch.Tensor | None,
    moved: Sequence[Distances] = (),
    floor: float = 0.0,
) -> str:
    """What is wrong with one tensor of weft's, empty if nothing is."""
    if (mine.shape, mine.dtype) != (plain.shape, plain.dtype):
        return f"{mine.dtype} {list(mine.shape)} where eager has {plain.dtype} {list(plain.shape)}"
    if not plain.numel():
        return ""
    if not (plain.is_floating_point() or plain.is_complex()):
        return "" if torch.equal(mine, plain) else "other integers"
    if not torch.equal(_flat(mine).isfinite(), _flat(plain).isfinite()):
        return "not finite elsewhere than eager"
    scale = max(_largest(plain), floor, 1e-6)
    own, eager = _distance(mine, exact), _distance(plain, exact)
    if own is not None and eager is not None:
        spread = max((max(d.moved, d.eager_moved) for d in moved), default=0.0)
        if eager <= UNLIKE * scale or spread > UNLIKE * scale:
            return _further([Distances(own, eager), *moved], scale)
    distance = _distance(mine, plain)
    if distance is None or distance <= UNJUDGED * scale:
        return ""
    return f"{distance:.2g} from eager, of {scale:.2g}"


def _further(states: Sequence[Distances], scale: float) -> str:
    """Whether weft is further from float64 than eager by a clear factor; the first state is unmoved.

    It must not be so there, beside the largest of what eager is off by and of what float64 moves by; and
    not at nearly all states, beside what these are typically.
    """
    rounding = ROUNDING * scale
    own, most = states[0].weft, max(max(d.eager, d.moved) for d in states)
    if own > FACTOR * most + rounding:
        return f"{own:.2g} from float64, eager {states[0].eager:.2g}, of {scale:.2g}"
    if len(states) > 1:
        least = sorted(d.weft for d in states)[len(states) // 4]
        usual = statistics.median(max(d.eager, d.moved) for d in states[1:])
        if least > USUAL * usual + rounding:
            return f"{least:.2g} from float64 at most states, eager {usual:.2g}, of {scale:.2g}"
    return ""


def _largest(tensor: torch.Tensor | None) -> float:
    """The largest absolute value among what is finite."""
    if tensor is None or not tensor.numel():
        return 0.0
    values = _flat(tensor)
    return values.where(values.isfinite(), 0.0).abs().max().item()


def _distance(left: torch.Tensor | None, right: torch.Tensor | None) -> float | None:
    """The largest difference of what is finite; None where they can't be compared."""
    if left is None or right is None or left.shape != right.shape:
        return None
    if not left.numel():
        return 0.0
    between = (_flat(left) - _flat(right)).abs()
    return float(between.where(between.isfinite(), 0.0).max())


def _flat(x: torch.Tensor) -> torch.Tensor:
    x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return x.detach().double().flatten()

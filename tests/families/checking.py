"""One model compiled and beside eager, judged by float64: results, gradients, graphs, breaks, fallbacks."""

from __future__ import annotations

import copy
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import weft

FACTOR = 4.0
"""How many times eager's own distance from float64 a result may lie from it."""

ROUNDING = 2e-6
"""And this share of the largest value, where eager happens to be exact."""

FLOOR = 1e-3
"""Gradients below this share of the model's largest are judged as if they were as large: what cancels to
nothing, as a bias before a norm, is rounding of the gradients that pass there."""

UNJUDGED = 1e-3
"""How far from eager, relatively, where the model has no float64 results that are near eager's."""

MOVED = 2.0**-21
"""By which share parameters are moved where a result is too far off: what eager is off by then is rounding
too, as where an activation's sign falls to either side, or another element of a window is the largest."""

MOVES = 3


@dataclass
class Record:
    """What became of a model: ``outcome`` is "right", "wrong", "error" or "no inputs".

    ``graphs`` counts the graphs that each call compiled, ``breaks`` is ``[kind, place, how often]``.
    """

    model: str
    mode: str
    backend: str
    outcome: str = "right"
    detail: str = ""
    graphs: list[int] = field(default_factory=list)
    breaks: list[list[Any]] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def one_graph(self) -> bool:
        """One graph for each compilation, nothing runs eagerly, the third call compiles nothing."""
        return not self.breaks and not self.fallbacks and self.graphs[:1] == [1]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "one_graph": self.one_graph}


def check(
    name: str, model: torch.nn.Module, calls: list[dict[str, Any]], mode: str, backend: str
) -> Record:
    """Run every call compiled and judge it; the first difference decides."""
    record = Record(name, mode, backend)
    model.train(mode == "training")
    plain, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    begin = time.monotonic()
    weft.reset()
    compiled = weft.compile(model, backend=backend)
    log = weft.CompileLog()
    for number, arguments in enumerate(calls):
        wanted = _observe(plain, arguments, mode)
        with weft.observe(log), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            seen = len(log.conversions)
            try:
                found = _observe(compiled, arguments, mode)
            except Exception as error:  # whatever it is, eager raised nothing
                record.outcome, record.detail = "error", _told(error)
                break
        record.graphs.append(sum(c.graph is not None for c in log.conversions[seen:]))
        record.fallbacks += [
            str(w.message)[:600] for w in caught if issubclass(w.category, weft.WeftWarning)
        ]
        judge = _exact(exact, arguments, mode)
        difference = _difference(found, wanted, judge)
        if difference and judge is not None:
            difference = _difference(found, wanted, judge, _moved(plain, arguments, mode))
        if difference:
            record.outcome, record.detail = "wrong", f"call {number}: {difference}"
            break
    _describe(record, log)
    record.seconds = round(time.monotonic() - begin, 1)
    return record


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:900]}"


def _describe(record: Record, log: weft.CompileLog) -> None:
    """What the log says of breaks and of what runs eagerly."""
    found = Counter(
        (
            b.kind,
            f"{b.location.file.split('site-packages/')[-1]}:{b.location.line} {b.context}"[:300],
        )
        for b in log.graph_breaks
    )
    record.breaks = [[kind, place, count] for (kind, place), count in found.most_common()]
    eager = [f"graph: {g.eager_reason}"[:600] for g in log.graphs if g.eager_reason is not None]
    failed = [f"frame: {c.error}"[:600] for c in log.conversions if c.error is not None]
    record.fallbacks = list(dict.fromkeys([*record.fallbacks, *eager, *failed]))


@dataclass(frozen=True)
class Observation:
    """Results in the order in which they stand, and gradients by parameter."""

    results: list[torch.Tensor]
    gradients: dict[str, torch.Tensor | None]


def _observe(model: Any, arguments: dict[str, Any], mode: str) -> Observation:
    torch.manual_seed(7)
    arguments = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
    if mode == "inference":
        with torch.no_grad():
            return Observation([_kept(x) for x in _tensors(model(**arguments))], {})
    model.zero_grad(set_to_none=True)
    results = list(_tensors(model(**arguments)))
    roots = [x for x in results if x.requires_grad]
    if roots:
        weights = [torch.linspace(0.5, 1.5, max(x.numel(), 1)).view(x.shape) for x in roots]
        sum(
            (x.double() * w).mean() for x, w in zip(roots, weights, strict=True) if x.numel()
        ).backward()  # type: ignore[union-attr]
    original = getattr(model, "_orig_mod", model)
    gradients = {
        n: None if p.grad is None else _kept(p.grad) for n, p in original.named_parameters()
    }
    return Observation([_kept(x) for x in results], gradients)


def _kept(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Tensors in results, caches of keys and values among them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)
    elif hasattr(value, "layers") and hasattr(value, "get_seq_length"):
        for layer in value.layers:
            yield from _tensors([getattr(layer, "keys", None), getattr(layer, "values", None)])


def _exact(model: Any, arguments: dict[str, Any], mode: str) -> Observation | None:
    """The same in float64; None where the model does not take it."""
    doubled = {
        k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for k, v in arguments.items()
    }
    try:
        return _observe(model, doubled, mode)
    except Exception:  # the model's own code mixes dtypes: eager in float32 judges alone
        return None


def _moved(
    model: torch.nn.Module, arguments: dict[str, Any], mode: str
) -> list[tuple[Observation, Observation]]:
    """What eager gives with parameters that are moved a little, and float64 with the same ones."""
    pairs = []
    for seed in range(MOVES):
        near = copy.deepcopy(model)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in near.parameters():
                if parameter.is_floating_point():
                    noise = torch.randn(parameter.shape, generator=generator)
                    parameter.mul_(1 + MOVED * noise.to(parameter))
        exact = _exact(copy.deepcopy(near).double(), arguments, mode)
        if exact is not None:
            pairs.append((_observe(near, arguments, mode), exact))
    return pairs


def _difference(
    found: Observation,
    wanted: Observation,
    exact: Observation | None,
    moved: list[tuple[Observation, Observation]] | None = None,
) -> str:
    if len(found.results) != len(wanted.results):
        return f"{len(found.results)} results where eager has {len(wanted.results)}"
    if exact is not None and len(exact.results) != len(wanted.results):
        exact = None
    for number, (mine, plain) in enumerate(zip(found.results, wanted.results, strict=True)):
        others = [(near.results[number], far.results[number]) for near, far in moved or ()]
        told = _apart(mine, plain, None if exact is None else exact.results[number], others=others)
        if told:
            return f"result {number}: {told}"
    floor = FLOOR * max(map(_largest, wanted.gradients.values()), default=0.0)
    for name, plain_gradient in wanted.gradients.items():
        mine_gradient = found.gradients[name]
        if mine_gradient is None or plain_gradient is None:
            if mine_gradient is not plain_gradient:
                return f"gradient of {name}: {mine_gradient} where eager has {plain_gradient}"[:300]
            continue
        exact_gradient = None if exact is None else exact.gradients[name]
        others = [(near.gradients[name], far.gradients[name]) for near, far in moved or ()]
        told = _apart(mine_gradient, plain_gradient, exact_gradient, floor, others)
        if told:
            return f"gradient of {name}: {told}"
    return ""


def _largest(gradient: torch.Tensor | None) -> float:
    if gradient is None or not gradient.numel():
        return 0.0
    values = _flat(gradient)
    return values.where(values.isfinite(), 0.0).abs().max().item()


def _apart(
    mine: torch.Tensor,
    plain: torch.Tensor,
    exact: torch.Tensor | None,
    floor: float = 0.0,
    others: Sequence[tuple[torch.Tensor | None, torch.Tensor | None]] = (),
) -> str:
    if (mine.shape, mine.dtype) != (plain.shape, plain.dtype):
        return f"{mine.dtype} {list(mine.shape)} where eager has {plain.dtype} {list(plain.shape)}"
    if not plain.numel():
        return ""
    if not (plain.is_floating_point() or plain.is_complex()):
        return "" if torch.equal(mine, plain) else "other integers"
    a, b = _flat(mine), _flat(plain)
    if not torch.equal(a.isfinite(), b.isfinite()):
        return "not finite elsewhere than eager"
    finite = b.isfinite()
    a, b = a[finite], b[finite]
    if not a.numel():
        return ""
    scale = max(b.abs().max().item(), floor, 1e-6)
    if exact is not None and exact.shape == plain.shape:
        c = _flat(exact)[finite]
        own, eager = (a - c).abs().max().item(), (b - c).abs().max().item()
        if eager <= 0.05 * scale:  # else float64 decides something otherwise, as random numbers
            eager = max(eager, *(_distance(*pair) for pair in others), 0.0)
            near = own <= FACTOR * eager + ROUNDING * scale
            return "" if near else f"{own:.2g} from float64, eager {eager:.2g}, of {scale:.2g}"
    distance = (a - b).abs().max().item()
    return "" if distance <= UNJUDGED * scale else f"{distance:.2g} from eager, of {scale:.2g}"


def _distance(near: torch.Tensor | None, far: torch.Tensor | None) -> float:
    """The largest difference of what is finite; none where data has decided otherwise."""
    if near is None or far is None or near.shape != far.shape or not near.numel():
        return 0.0
    difference = (_flat(near) - _flat(far)).abs()
    return float(difference.where(difference.isfinite(), 0.0).max())


def _flat(x: torch.Tensor) -> torch.Tensor:
    x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return x.detach().double().flatten()

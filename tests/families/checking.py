"""One model compiled and beside eager, judged by float64: results, gradients, graphs, breaks, fallbacks."""

from __future__ import annotations

import copy
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import weft

from .judging import Observation, Trial, difference, distances

MOVED = 2.0**-21
"""By which share parameters and inputs are moved where a result is too far off: what eager is off by then
is rounding too, as where an activation's sign falls to either side, or another element of a window is the
largest."""

MOVES = 8


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
    name: str,
    model: torch.nn.Module,
    calls: list[dict[str, Any]],
    mode: str,
    backend: str,
    device: str = "cpu",
) -> Record:
    """Run every call compiled and judge it; the first difference decides."""
    record = Record(name, mode, backend)
    model.to(device).train(mode == "training")
    calls = [
        {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
        for arguments in calls
    ]
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
        trial = Trial(found, wanted, _exact(exact, arguments, mode))
        told = difference(trial)
        if told and trial.exact is not None:
            moved = _moved(compiled, plain, arguments, mode)
            told = difference(trial, [distances(near, trial) for near in moved])
        if told:
            record.outcome, record.detail = "wrong", f"call {number}: {told}"
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
        losses = [(x.double() * _weights(x)).mean() for x in roots if x.numel()]
        sum(losses).backward()  # type: ignore[union-attr]
    original = getattr(model, "_orig_mod", model)
    gradients = {
        n: None if p.grad is None else _kept(p.grad) for n, p in original.named_parameters()
    }
    return Observation([_kept(x) for x in results], gradients)


def _weights(x: torch.Tensor) -> torch.Tensor:
    """A number for each element of a result, so that no two have the same gradient."""
    return torch.linspace(0.5, 1.5, max(x.numel(), 1), device=x.device).view(x.shape)


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
    compiled: Any, model: torch.nn.Module, arguments: dict[str, Any], mode: str
) -> Iterator[Trial]:
    """What all three give with parameters and inputs that are moved a little, by turns and together."""
    original = getattr(compiled, "_orig_mod", compiled)
    try:
        for seed in range(MOVES):
            generator = torch.Generator().manual_seed(seed)
            near = copy.deepcopy(model)
            if seed % 3 != 1:
                with torch.no_grad():
                    for parameter in near.parameters():
                        if parameter.is_floating_point():
                            parameter.copy_(_near(parameter, generator))
            given = arguments if seed % 3 == 0 else _near_arguments(arguments, generator)
            exact = _exact(copy.deepcopy(near).double(), given, mode)
            _copy_state(original, near)
            yield Trial(_observe(compiled, given, mode), _observe(near, given, mode), exact)
    finally:
        _copy_state(original, model)


def _copy_state(model: torch.nn.Module, other: torch.nn.Module) -> None:
    pairs = (
        *zip(model.parameters(), other.parameters(), strict=True),
        *zip(model.buffers(), other.buffers(), strict=True),
    )
    with torch.no_grad():
        for mine, wanted in pairs:
            if mine.shape == wanted.shape:
                mine.copy_(wanted)


def _near_arguments(arguments: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    """Inputs moved by rounding; numbers that are whole stay, as they may be places or labels."""
    moved = dict(arguments)
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            moved[name] = torch.where(value == value.round(), value, _near(value, generator))
    return moved


def _near(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x * (1 + MOVED * torch.randn(x.shape, generator=generator).to(x))

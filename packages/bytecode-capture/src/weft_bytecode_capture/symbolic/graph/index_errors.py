"""The error of the operator that was given an index out of range, where a graph cannot run as it was written.

A compiled graph tells the index and the size that it is out of, and eager's operators each have an error of
their own for that.  The operator itself is run on small tensors in the same way out of range: what is raised
are the words of the torch that is there.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ... import _frame_hook
from .purity import (
    draws,
    has_effect,
    possibly_written,
    region_graphs,
    storages_written_as_data,
    storages_written_in_regions,
    writes,
)
from .storages import node_values, storages

_INDICES = (torch.int64, torch.int32)
_TOLD = re.compile(r"index (-?\d+) is out of bounds for dimension (?:\d+ )?with size (\d+)")


@dataclass(frozen=True)
class _Tensor:
    """What is known of a tensor that a call is given: a size is None where it varies.

    ``known`` computes it from the graph's arguments, if these tell it when the graph has run too;
    ``is_bounded``: it is a remainder, or clamped.
    """

    sizes: tuple[int | None, ...]
    dtype: torch.dtype
    known: torch.fx.Graph | None = None
    is_bounded: bool = False

    @property
    def is_index(self) -> bool:
        return self.dtype in _INDICES


@dataclass(frozen=True)
class _Rule:
    """Where an operator's call has its indices, what they are into and the dim; -1 for what there is none of.

    Each is a position with the names that it has.  ``wraps``: negative indices count from the end.
    ``bare``: other tensors are left out, as weights of classes, whose sizes would have to fit.
    ``rank`` is the least of the indices.
    """

    source: tuple[int, str]
    index: tuple[int, str]
    dim: tuple[int, str] = (-1, "")
    wraps: bool = False
    bare: bool = False
    rank: int = 0


@dataclass(frozen=True)
class _Call:
    """A call of the captured graph that may be given an index out of range."""

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    rule: _Rule | None  # None for an index of several parts

    def errors(self, index: int, size: int, arguments: Sequence[Any]) -> Iterator[Exception]:
        """What the call raises for ``index`` out of ``size``, once for each operand that it may be of."""
        made = (
            self._parts(index, size, arguments)
            if self.rule is None
            else self._whole(index, size, arguments)
        )
        for args, kwargs in made:
            error = _raised(self.target, args, kwargs)
            if error is not None:
                yield error

    def _argument(self, place: tuple[int, str]) -> Any:
        position, name = place
        return self.args[position] if 0 <= position < len(self.args) else self.kwargs.get(name)

    def _whole(self, index: int, size: int, arguments: Sequence[Any]) -> Iterator[Any]:
        rule = self.rule
        assert rule is not None
        source, indices = self._argument(rule.source), self._argument(rule.index)
        if not isinstance(indices, _Tensor) or not indices.is_index:
            return
        if index < 0 and not rule.wraps:
            index += size
        found = _first_out_of_range(indices, arguments, size, rule.wraps)
        if found is None:
            return
        index = index if found is _UNKNOWN else found
        dim = self._dim(source)
        if not isinstance(source, _Tensor):
            if source not in (None, size):  # a number of classes
                return
        elif dim is not None and (
            dim >= len(source.sizes) or source.sizes[dim] not in (None, size)
        ):
            return

        def small(value: Any) -> Any:
            if value is indices:
                return torch.full([1] * max(len(value.sizes), rule.rank), index, dtype=value.dtype)
            if value is source:
                return size if not isinstance(value, _Tensor) else _small(value, dim, size)
            if isinstance(value, _Tensor):
                return None if rule.bare else _small(value, None, 1)
            return value

        yield _mapped(self.args, small), {k: _mapped(v, small) for k, v in self.kwargs.items()}

    def _dim(self, source: Any) -> int | None:
        """The dim of the source that indices are into; None for all its elements."""
        rule = self.rule
        assert rule is not None
        if rule.dim[0] >= 0:
            dim = self._argument(rule.dim)
            if not isinstance(dim, int) or not isinstance(source, _Tensor):
                return None
            return dim % max(len(source.sizes), 1)
        return {"embedding": 0, "classes": min(1, len(getattr(source, "sizes", ())) - 1)}.get(
            rule.dim[1]
        )

    def _parts(self, index: int, size: int, arguments: Sequence[Any]) -> Iterator[Any]:
        source, key, *rest = self.args
        if not isinstance(source, _Tensor):
            return
        parts = list(key) if isinstance(key, tuple | list) else [key]
        dim = 0
        for place, part in enumerate(parts):
            if part is Ellipsis:
                dim = len(source.sizes) - sum(p is not None for p in parts[place + 1 :])
                continue
            if isinstance(part, _Tensor) and part.is_index and dim < len(source.sizes):
                found = _first_out_of_range(part, arguments, size, True)
                if source.sizes[dim] in (None, size) and found is not None:
                    first = index if found is _UNKNOWN else found
                    yield self._with_part(source, parts, rest, place, dim, first, size), {}
            dim += part is not None or _name(self.target).startswith("index")

    def _with_part(
        self,
        source: _Tensor,
        parts: list[Any],
        rest: list[Any],
        place: int,
        dim: int,
        index: int,
        size: int,
    ) -> tuple[Any, ...]:
        """The call's arguments, small: the part at ``place`` has the index, and others have the first one."""
        made: list[Any] = []
        for k, part in enumerate(parts):
            if isinstance(part, _Tensor):
                made.append(torch.full([1], index if k == place else 0, dtype=part.dtype))
            else:
                made.append(part if part is Ellipsis or part is None else slice(None))
        values = [_small(v, None, 1).sum() if isinstance(v, _Tensor) else v for v in rest]
        if _name(self.target) in ("getitem", "setitem"):
            return (_small(source, dim, size), tuple(made), *values)
        return (
            _small(source, dim, size),
            [None if isinstance(m, slice) else m for m in made],
            *values,
        )


_UNKNOWN: Any = object()
_BOUNDED = ("mod", "remainder", "clamp", "clip")
_CALLS = ("call_function", "call_method")

_ALONG = _Rule((0, "input"), (2, "index"), (1, "dim"))
_OF_ALL = _Rule((0, "input"), (1, "index"), (-1, ""), wraps=True)
_WEIGHT_FIRST = _Rule((0, "weight"), (1, "indices"), (-1, "embedding"))
_LOOKUPS = (torch.embedding, torch.ops.aten.embedding.default)
_CLASSES = _Rule((0, "input"), (1, "target"), (-1, "classes"), bare=True)
_RULES: dict[str, _Rule | None] = {
    **dict.fromkeys(
        (
            "gather", "scatter", "scatter_add", "scatter_reduce",
            "index_select", "index_add", "index_copy", "index_reduce",
        ),
        _ALONG,
    ),
    "index_fill": _Rule((0, "input"), (2, "index"), (1, "dim"), wraps=True),
    "take": _OF_ALL,
    "put": _OF_ALL,
    "take_along_dim": _Rule((0, "input"), (1, "indices"), (2, "dim"), wraps=True),
    "embedding": _Rule((1, "weight"), (0, "input"), (-1, "embedding")),
    "embedding_bag": _Rule((1, "weight"), (0, "input"), (-1, "embedding"), bare=True, rank=2),
    "one_hot": _Rule((1, "num_classes"), (0, "input")),
    "cross_entropy": _CLASSES,
    "nll_loss": _CLASSES,
    "multi_margin_loss": _CLASSES,
    "getitem": None,
    "setitem": None,
    "index_put": None,
    "index": None,
}  # fmt: skip
"""By the name of a function or method, without the underscore of one that writes."""


def eager_errors(
    graph: torch.fx.Graph, written: Sequence[int]
) -> Callable[[BaseException, Sequence[Any]], BaseException]:
    """A function of an error and the graph's arguments: what eager raises in the place of the error.

    It is the error itself unless that tells an index out of range, which one of the graph's calls may be
    given.  ``written`` are the positions of arguments that the graph writes to.
    """
    calls = sorted(_calls(graph, written), key=_is_unlikely)

    def shown(error: BaseException, arguments: Sequence[Any]) -> BaseException:
        told = _TOLD.search(str(error))
        if told is None or not isinstance(error, IndexError | RuntimeError):
            return error
        index, size = map(int, told.groups())
        found = (e for call in calls for e in call.errors(index, size, arguments))
        return next(found, error)

    return shown


def _is_unlikely(call: _Call) -> bool:
    """Whether all indices of a call are remainders, or clamped, as if for the size that they are into."""
    given = [a for a in (*call.args, *call.kwargs.values()) if isinstance(a, _Tensor)]
    indices = [a for a in given if a.is_index]
    return bool(indices) and all(a.is_bounded for a in indices)


def _calls(graph: torch.fx.Graph, written: Sequence[int]) -> Iterator[_Call]:
    found = [node for node in graph.nodes if _may_be_out_of_range(node)]
    if not found:
        return
    known = _Known(graph, written)

    def described(node: torch.fx.Node) -> Any:
        value = node.meta.get("example_value")
        if not isinstance(value, torch.Tensor):
            return value if isinstance(value, int) else None
        shape: Sequence[Any] = value.shape
        sizes = (s if isinstance(s, int) else None for s in shape)
        if value.dtype not in _INDICES:
            return _Tensor(tuple(sizes), value.dtype)
        is_bounded = _plain_name(node) in _BOUNDED
        return _Tensor(tuple(sizes), value.dtype, known.graph_of(node), is_bounded)

    for node in found:
        args = torch.fx.node.map_arg(node.args, described)
        kwargs = torch.fx.node.map_arg(node.kwargs, described)
        if _is_of_one_hot(node):
            indices = described(node.args[-1])
            yield _Call(torch.nn.functional.one_hot, (indices, None), {}, _RULES["one_hot"])
            continue
        rule = _WEIGHT_FIRST if node.target in _LOOKUPS else _RULES[_plain_name(node)]
        yield _Call(node.target, tuple(args), dict(kwargs), rule)


def _name(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def _may_be_out_of_range(node: torch.fx.Node) -> bool:
    """Whether a call has indices in tensors."""
    if node.op not in _CALLS or _plain_name(node) not in _RULES:
        return False
    values = node_values(node.all_input_nodes)
    return any(isinstance(v, torch.Tensor) and v.dtype in _INDICES for v in values)


def _plain_name(node: torch.fx.Node) -> str:
    """The name of a call's function or method, without the underscore of one that writes."""
    name = _name(node.target).split(".")[0]
    return name if name.endswith("__") else name.removesuffix("_")


def _is_of_one_hot(node: torch.fx.Node) -> bool:
    """Whether a call of ``gather`` is what the polyfill of ``one_hot`` checks classes by."""
    source = node.args[0] if _name(node.target) == "gather" and len(node.args) == 3 else None
    return (
        isinstance(source, torch.fx.Node)
        and source.target is torch.arange
        and any(user.target is operator.eq for user in source.users)
    )


def _small(tensor: _Tensor, dim: int | None, size: int) -> torch.Tensor:
    """Of one element, or ``size`` along ``dim``; in one dim where none is given and there is one size."""
    shape = [1] * len(tensor.sizes)
    if dim is None and size != 1:
        shape = [size]
    elif dim is not None:
        shape[dim] = size
    return torch.zeros(1, dtype=tensor.dtype, device="cpu").expand(shape).clone()


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple | list):
        return tuple(_mapped(v, function) for v in value)
    return function(value)


def _first_out_of_range(indices: _Tensor, arguments: Sequence[Any], size: int, wraps: bool) -> Any:
    """The first of ``indices`` that is out of ``size``; None if none is, a mark if they aren't at hand."""
    if indices.known is None:
        return _UNKNOWN
    try:
        values = _CALL(torch.fx.GraphModule({}, indices.known), arguments, {})
    except Exception:  # the error of an earlier call than this
        return _UNKNOWN
    values = values.reshape(-1)
    bad = values[(values >= size) | (values < (-size if wraps else 0))]
    return int(bad[0]) if len(bad) else None


class _Known:
    """Which of a graph's values are known when it has run: none that is drawn, or of what is written to."""

    def __init__(self, graph: torch.fx.Graph, written: Sequence[int]) -> None:
        self._inputs = graph.find_nodes(op="placeholder")
        self._unknown = {self._inputs[k] for k in written}
        changed = storages_written_in_regions(graph) | storages_written_as_data(graph)
        for node in graph.nodes:
            if writes(node):
                changed |= storages(node_values(possibly_written(node)))
            if (
                node.op not in ("placeholder", "call_function", "call_method")
                or (node.op != "placeholder" and (has_effect(node) or draws(node)))
                or region_graphs(node)
                or not self._unknown.isdisjoint(node.all_input_nodes)
            ):
                self._unknown.add(node)
        of_changed = (n for n in graph.nodes if changed & storages(node_values([n])))
        pending = [*of_changed]
        while pending:
            node = pending.pop()
            self._unknown.add(node)
            pending += [user for user in node.users if user not in self._unknown]

    def graph_of(self, node: torch.fx.Node) -> torch.fx.Graph | None:
        """A graph of the same arguments that gives ``node``; None where its value is not known."""
        if node in self._unknown:
            return None
        needed, pending = set(self._inputs), [node]
        while pending:
            last = pending.pop()
            if last not in needed:
                needed.add(last)
                pending += last.all_input_nodes
        graph = torch.fx.Graph()
        made: dict[torch.fx.Node, torch.fx.Node] = {}
        for one in node.graph.nodes:
            if one in needed:
                made[one] = graph.node_copy(one, made.__getitem__)
                made[one].meta = {}
        graph.output(made[node])
        return graph


def _call(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    with torch.no_grad():
        if isinstance(target, str):
            return getattr(args[0], target)(*args[1:], **kwargs)
        return target(*args, **kwargs)


_CALL = _frame_hook.disabled(_call)


def _raised(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception | None:
    try:
        _CALL(target, args, kwargs)
    except (IndexError, RuntimeError) as error:
        return error.with_traceback(None)
    except Exception:  # what is small isn't what the call takes
        return None
    return None

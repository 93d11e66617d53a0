"""Runs a compiled functional graph with eager's effects: write-back, views, identity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ._torch import copy_all, expression_of, lazily_negated, refuse_writes
from .counted_changes import count_writes, data_of_version
from .functional_graph import (
    Constant,
    FunctionalGraph,
    InputKind,
    Number,
    OutputDescriptor,
    OutputKind,
    Reading,
    SameAsArgument,
    SameAsInput,
    SameAsOutput,
    ViewOfInput,
    ViewOfOutput,
    WholeOutput,
    view_key,
)
from .plain_run import plain_run
from .shared_inputs import SharedArguments
from .symbolic_numbers import number_reader

Compiled = Callable[..., Sequence[Any]]

# A mutated input: the output that is its new value, the input, both by index; whether autograd does not
# record the write, and how many writes it is told of.
_Write = tuple[int, int, bool, int]


def wrap(
    functional: FunctionalGraph,
    compiled: Compiled,
    constants: Mapping[int, torch.Tensor] | None = None,
    records: bool | None = None,
) -> Compiled:
    """A callable with the signature and the effects of the captured graph.

    ``compiled`` takes the user inputs in order (lifted tensors are bound into it) and returns the functional
    graph's outputs; an input's new value may be that very input, written in place.  ``constants`` are the
    lifted tensors by input index, ``functional.lifted`` if None: those that the graph mutates are written
    to.  Where nothing is to be done, ``compiled`` itself is returned.

    A call in which a mutated input overlaps another input otherwise than the examples did runs the captured
    graph instead, which begins with gradients on or off as ``records`` says; None: as the caller has them.
    Raises ValueError if a number is not the one that the graph was traced with.
    """
    counts = getattr(compiled, "counts_writes", False) or not functional.written_results
    if _is_trivial(functional) and counts:
        return compiled
    return _Runtime(functional, compiled, constants or functional.lifted, records)


def bind(functional: FunctionalGraph, run: Compiled) -> Compiled:
    """``run``, which takes all inputs of the functional graph, with the lifted tensors bound."""
    size = len(functional.inputs)
    users = functional.user_input_indices
    lifted = tuple(functional.lifted.items())

    def bound(*inputs: Any) -> Sequence[Any]:
        every: list[Any] = [None] * size
        for index, tensor in lifted:
            every[index] = tensor
        for index, value in zip(users, inputs, strict=True):
            every[index] = value
        return run(*every)

    return bound


def _is_trivial(functional: FunctionalGraph) -> bool:
    specialized = any(d.specialized_value is not None for d in functional.inputs)
    plain = all(
        d.kind is OutputKind.USER_OUTPUT
        and d.graph_index == d.position
        and d.alias is None
        and not d.through
        for d in functional.outputs
    )
    relaid = any(d.layout_changes for d in functional.inputs)
    return plain and not specialized and not relaid


class _Runtime:
    """The call of a compiled graph, prepared."""

    def __init__(
        self,
        functional: FunctionalGraph,
        compiled: Compiled,
        constants: Mapping[int, torch.Tensor],
        records: bool | None,
    ) -> None:
        self._compiled = compiled
        self._source = plain_run(functional.source)
        self._records = records
        every = range(len(functional.inputs))
        self._given = [constants[i] if i in functional.lifted else None for i in every]
        self._users = functional.user_input_indices
        self._specialized = tuple(
            (d.position or 0, d.specialized_value)
            for d in functional.inputs
            if d.kind is InputKind.USER_INPUT and d.specialized_value is not None
        )
        self._write_back = tuple(
            (d.graph_index, d.input_index, not d.requires_grad, d.writes)
            for d in functional.outputs
            if d.kind is OutputKind.MUTATED_INPUT
            and d.graph_index is not None
            and d.input_index is not None
        )
        self._mutated = frozenset(index for _, index, *_ in self._write_back)
        self._relaid = [k for k, d in enumerate(functional.inputs) for _ in range(d.layout_changes)]
        # The tensors that are not mutated, once a call has shown which there are.
        self._others: tuple[int, ...] | None = None
        counts = getattr(compiled, "counts_writes", False)
        self._written_results = () if counts else functional.written_results
        self._input_of = {output: index for output, index, *_ in self._write_back}
        self._groups = _by_ways(functional)
        met = frozenset(k for group in self._groups for k in group.through if k >= 0)
        self._recorded = met.union(*(group.outputs for group in self._groups))
        self._bases = {
            view_key(d.position or 0): _maker_of_base(d.alias)
            for d in functional.outputs
            if isinstance(d.alias, (ViewOfInput, ViewOfOutput))
        }
        self._shared = SharedArguments(functional) if functional.shared_bases else None
        users = [d for d in functional.outputs if d.kind is OutputKind.USER_OUTPUT]
        reader = _number_readers(functional)
        self._outputs = tuple(
            _output_maker(d, functional, reader)
            for d in sorted(users, key=lambda d: d.position or 0)
        )
        self._older = tuple(d.position or 0 for d in users if getattr(d.alias, "is_older", False))

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        for position, expected in self._specialized:
            if inputs[position] != expected:
                raise ValueError(
                    f"input {position} is {inputs[position]}, the graph holds for {expected} only"
                )
        taken = self._shared.taken_inputs(inputs) if self._shared is not None else inputs
        if taken is None:
            return self._run_source(inputs)
        every = self._all_inputs(taken)
        if self._mutated and self._overlaps(every):
            return self._run_source(inputs)
        return self._run_program(inputs, taken, every)

    def _run_source(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Run the captured graph in the mode of the frame, whichever a program is called in."""
        records = torch.is_grad_enabled() if self._records is None else self._records
        with torch.set_grad_enabled(records):
            return tuple(self._source(*inputs))

    def call_program(self, *inputs: Any) -> tuple[Any, ...]:
        """A call of which :meth:`runs_program` is known to be true: what that has looked at is not again."""
        taken = inputs if self._shared is None else self._shared.taken_inputs(inputs)
        assert taken is not None
        return self._run_program(inputs, taken, self._all_inputs(taken))

    def _run_program(
        self, inputs: Sequence[Any], taken: Sequence[Any], every: Sequence[Any]
    ) -> tuple[Any, ...]:
        # Before what backward saves is: none of it is out of date by these.
        if self._relaid:
            count_writes(self._relaid, every)
        computed = self._compiled(*taken)
        results: list[Any] = [None] * len(self._outputs)
        for k in self._older:
            results[k] = self._outputs[k](every, computed, results)
        if self._written_results:
            count_writes(self._written_results, computed)
        if len(self._groups) > 1:
            computed = self._write_and_lead(every, computed, results)
        elif self._write_back:
            self._write(self._write_back, every, computed)
        every = [*every, *inputs] if self._shared else every
        for position, make in enumerate(self._outputs):
            if results[position] is None:
                results[position] = make(every, computed, results)
        return tuple(results)

    def cannot_fail(self, *inputs: Any) -> bool:
        """Whether a call raises nothing once its first kernel has begun, as far as memory suffices.

        It runs the compiled program, which has an attribute ``may_fail`` that is false.
        """
        if getattr(self._compiled, "may_fail", True) or self._shared is not None:
            return False
        return self.runs_program(*inputs)

    def runs_program(self, *inputs: Any) -> bool:
        """Whether a call with these inputs runs the compiled program and not the graph."""
        if any(inputs[position] != expected for position, expected in self._specialized):
            return False
        taken = inputs if self._shared is None else self._shared.taken_inputs(inputs)
        if taken is None:
            return False
        return not (self._mutated and self._overlaps(self._all_inputs(taken)))

    def _overlaps(self, every: Sequence[Any]) -> bool:
        """Whether a mutated input shares storage with any other input."""
        if self._others is None:
            tensors = (k for k, value in enumerate(every) if isinstance(value, torch.Tensor))
            self._others = tuple(k for k in tensors if k not in self._mutated)
        found = [a for a in _storages(map(every.__getitem__, self._mutated)) if a]
        written = {*found}
        if len(written) < len(found) and (
            len(written) < sum(every[k].numel() > 0 for k in self._mutated)
        ):
            return True  # not only empty ones share
        others = map(every.__getitem__, self._others)
        return not written.isdisjoint(_storages(others))  # of hundreds, at each call

    @property
    def only_checks_indices(self) -> bool:
        """Whether nothing but an index out of range makes the compiled program raise."""
        program = self._compiled
        return getattr(program, "may_fail", False) and getattr(program, "extern_count", 1) == 0

    @property
    def early_errors(self) -> type[Exception] | None:
        """A class of errors that the compiled program raises, all before anything has changed."""
        program = self._compiled
        return (
            getattr(program, "early_errors", None) if getattr(program, "may_fail", False) else None
        )

    @property
    def left_changes(self) -> Callable[[], bool] | None:
        """Says whether this thread's last call that raised had changed something; None if that is unknown."""
        return getattr(self._compiled, "left_changes", None)

    @property
    def failed_check(self) -> Callable[[], bool] | None:
        """Says whether this thread's last call raised at a check, before it had written to an input.

        None for a program that does not tell, or may write before a check.
        """
        return getattr(self._compiled, "failed_check", None)

    def _write(
        self, writes: Sequence[_Write], every: Sequence[Any], computed: Sequence[Any]
    ) -> None:
        """Give the mutated inputs their new values, and tell autograd of those that have them already."""
        written, recorded = [], []
        plain = []
        for output_index, input_index, unrecorded, count in writes:
            tensor, value = every[input_index], computed[output_index]
            uncounted = count
            if count and not unrecorded and torch.is_grad_enabled():
                recorded.append(tensor)
            if value is not tensor:
                if not count:
                    tensor = tensor.data
                if unrecorded:
                    plain.append((tensor, value))
                else:
                    with torch.enable_grad():
                        tensor.copy_(value)
                uncounted = count - 1
            written += [tensor] * uncounted
        copy_all(plain)
        torch.autograd.graph.increment_version(written)
        for tensor in recorded:
            # A view's node is made anew when it is asked for after that, and torch crashes where the first to
            # ask for it is a hook.
            _ = tensor.grad_fn

    def _write_and_lead(
        self, every: Sequence[Any], computed: Sequence[Any], user_outputs: list[Any]
    ) -> Sequence[Any]:
        """Write; gives what was computed, with histories that lead through one another as in eager.

        The views that others lead through are put among the ``user_outputs``.
        """
        lead = getattr(self._compiled, "lead_through", None)
        if lead is None:
            self._write(
                [write for group in self._groups for write in group.writes], every, computed
            )
            return computed
        computed = [*computed]
        inputs = self._input_of
        recorded = {k for k in self._recorded if computed[k].requires_grad}
        met = recorded - inputs.keys()  # outputs with a history that may be led through
        led: set[int] = set()  # results that lead through others

        def tensor_of(key: int) -> Any:
            if key < 0:
                return user_outputs[view_key(key)]
            return every[inputs[key]] if key in inputs else computed[key]

        for group in self._groups:
            outputs = [k for k in group.outputs if k in recorded]
            through = [k for k in group.through if k >= 0 or k in met]
            if outputs and through and met.issuperset(through):
                nearest = group.nearest if led.issuperset(group.between) else group.through
                nearest = tuple(k for k in nearest if k in met)
                others = [tensor_of(k) for k in nearest]
                bases = (self._bases[k] for k in nearest if k < 0)
                others += [base(every, computed, user_outputs) for base in bases]
                results = [computed[k] for k in outputs]
                made = lead(results, outputs, through, nearest, others)
                if made is not results:
                    led.update(outputs)
                    for k, tensor in zip(outputs, made, strict=True):
                        computed[k] = tensor
            if group.writes:
                self._write(group.writes, every, computed)
                given = {output for output, *_ in group.writes}
                led -= given
                met.update(k for k in given if every[inputs[k]].requires_grad)
            for position in group.views:
                view = self._outputs[position](every, computed, user_outputs)
                user_outputs[position] = view
                if view.grad_fn is not None:
                    met.add(view_key(position))
        return computed

    def _all_inputs(self, inputs: Sequence[Any]) -> list[Any]:
        every = [*self._given]
        for index, value in zip(self._users, inputs, strict=True):
            every[index] = value
        return every


@dataclass(frozen=True)
class _Group:
    """Outputs whose histories lead through the same others, and what is to be written of them.

    Of these others ``nearest`` are led through by no other of them; those ``between`` lead through some
    themselves, by nodes of their own.  Behind them ``views`` are made, by position, that others lead through.
    """

    through: tuple[int, ...]
    outputs: tuple[int, ...]
    writes: tuple[_Write, ...]
    nearest: tuple[int, ...]
    between: frozenset[int]
    views: tuple[int, ...]


def _by_ways(functional: FunctionalGraph) -> list[_Group]:
    """The outputs in groups, each behind those that it leads through."""
    writes: dict[frozenset[int], list[_Write]] = {}
    outputs: dict[frozenset[int], list[int]] = {}
    ways: dict[int, frozenset[int]] = {}
    views: dict[frozenset[int], list[int]] = {}
    met = frozenset[int]().union(*(d.through for d in functional.outputs))
    for d in functional.outputs:
        if d.kind is OutputKind.MUTATED_INPUT and None not in (d.graph_index, d.input_index):
            write = d.graph_index or 0, d.input_index or 0, not d.requires_grad, d.writes
            writes.setdefault(d.through, []).append(write)
        if d.graph_index is not None:
            ways[d.graph_index] = d.through
            if d.through:
                outputs.setdefault(d.through, []).append(d.graph_index)
        elif d.position is not None and view_key(d.position) in met:
            views.setdefault(d.through, []).append(d.position)
    groups = []
    # what leads through another output has more of these to lead through
    for way in sorted({frozenset[int](), *writes, *outputs, *views}, key=len):
        between = frozenset(k for k in way if ways.get(k))
        beyond = frozenset[int]().union(*(ways[k] for k in between))
        groups.append(
            _Group(
                tuple(sorted(way)),
                tuple(outputs.get(way, ())),
                tuple(writes.get(way, ())),
                tuple(sorted(way - beyond)),
                between,
                tuple(views.get(way, ())),
            )
        )
    return groups


# Gives a user output: from all inputs of the graph (behind them, where inputs are shared, all that the
# caller passed), what the graph computed, and the user outputs, None in the place of those yet to be made.
_Maker = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Any]


_Reader = Callable[[Any], Callable[[Sequence[Any], Sequence[Any]], Any]]


def _number_readers(functional: FunctionalGraph) -> _Reader:
    """A function from a number to what reads it in a call, from all inputs and what was computed."""
    results = {
        expression_of(d.alias.value): d.graph_index
        for d in functional.outputs
        if d.kind is OutputKind.NUMBER and isinstance(d.alias, Number) and d.graph_index is not None
    }
    graph = functional.graph_module.graph
    return lambda number: number_reader(graph, number, results)


def _output_maker(
    descriptor: OutputDescriptor, functional: FunctionalGraph, reader: _Reader
) -> _Maker:
    unrecorded = descriptor.unrecorded
    base_of = _base_of(descriptor)
    match descriptor.alias:
        case None:
            position = descriptor.graph_index or 0
            return lambda inputs, computed, results: computed[position]
        case Constant(value):
            return lambda inputs, computed, results: value
        case Number(value):
            read = reader(value)
            return lambda inputs, computed, results: read(inputs, computed)
        case SameAsInput(index):
            return lambda inputs, computed, results: inputs[index]
        case SameAsArgument(position):
            index = len(functional.inputs) + position
            return lambda inputs, computed, results: inputs[index]
        case WholeOutput(index):
            return lambda inputs, computed, results: computed[index]
        case SameAsOutput(index):
            return lambda inputs, computed, results: results[index]
        case ViewOfInput(index) as view:
            nearer = _nearer(view)
            place = _placement(view, reader)
            return lambda inputs, computed, results: _view(
                base_of(inputs[index]),
                view,
                unrecorded,
                *place(inputs, computed),
                nearer(results),
            )
        case ViewOfOutput(index) as view:
            nearer = _nearer(view)
            if view.covers:
                return lambda inputs, computed, results: _whole_view(
                    base_of(computed[index]), view, unrecorded, nearer(results)
                )
            place = _placement(view, reader)
            return lambda inputs, computed, results: _view(
                base_of(computed[index]),
                view,
                unrecorded,
                *place(inputs, computed),
                nearer(results),
            )


def _nearer(view: ViewOfInput | ViewOfOutput) -> Callable[[Sequence[Any]], Any]:
    """Gives the user output that a view is made of, or None: it is of the base."""
    position = view.made_of
    return (lambda results: None) if position is None else (lambda results: results[position])


def _maker_of_base(view: ViewOfInput | ViewOfOutput) -> _Maker:
    """Gives what a view is made of."""
    nearer = _nearer(view)

    def made(inputs: Sequence[Any], computed: Sequence[Any], results: Sequence[Any]) -> Any:
        found = nearer(results)
        if found is not None:
            return found
        if isinstance(view, ViewOfInput):
            return inputs[view.input_index]
        return computed[view.output_index]

    return made


def _base_of(descriptor: OutputDescriptor) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function from a tensor to what a view of it is made of, so that gradients go where eager's do."""

    def detached(base: torch.Tensor) -> torch.Tensor:
        return base.detach() if base.requires_grad else base

    def leaf(base: torch.Tensor) -> torch.Tensor:
        return base.detach().requires_grad_()

    def requiring(base: torch.Tensor) -> torch.Tensor:
        return base if base.requires_grad else leaf(base)

    if not getattr(descriptor.alias, "shares_version", True):
        return data_of_version(descriptor.writes)
    if not descriptor.requires_grad:
        return detached
    if descriptor.unrecorded:
        return requiring
    leads_nowhere = descriptor.reached is not None and not descriptor.reached
    # as a view, recorded, of a view made under ``no_grad``
    return leaf if leads_nowhere else lambda base: base


_Placement = tuple[tuple[int, ...], tuple[int, ...], int]


def _placement(
    view: ViewOfInput | ViewOfOutput, reader: _Reader
) -> Callable[[Sequence[Any], Sequence[Any]], _Placement]:
    """A function from all inputs, and what was computed, to the size, stride and offset of a view."""
    numbers = (*view.size, *view.stride, view.offset)
    if all(type(number) is int for number in numbers):
        fixed = view.size, view.stride, view.offset
        return lambda inputs, computed: fixed
    readers = [reader(number) for number in numbers]
    rank = len(view.size)

    def place(inputs: Sequence[Any], computed: Sequence[Any]) -> _Placement:
        found = [read(inputs, computed) for read in readers]
        return tuple(found[:rank]), tuple(found[rank:-1]), found[-1]

    return place


def _whole_view(
    base: torch.Tensor, view: ViewOfOutput, unrecorded: bool, nearer: torch.Tensor | None
) -> torch.Tensor:
    """A view that lies as all of ``base`` does."""
    return _view(base, view, unrecorded, base.shape, base.stride(), 0, nearer)


def _view(
    base: torch.Tensor,
    view: ViewOfInput | ViewOfOutput,
    unrecorded: bool,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    nearer: torch.Tensor | None = None,
) -> torch.Tensor:
    # The graph may begin in another mode than the one that the view is made in.
    with torch.set_grad_enabled(not unrecorded):
        if nearer is not None:  # which is read alike
            made = torch.as_strided(nearer, size, stride, _start(base, view.reading, offset))
        elif view.reading is None:
            made = torch.as_strided(base, size, stride, base.storage_offset() + offset)
        else:
            made = _read_otherwise(base, view.reading, size, stride, offset)
    if view.refusal is not None:
        refuse_writes(made, view.refusal)
    return made if view.is_view else made.detach()


def _read_otherwise(
    base: torch.Tensor,
    reading: Reading,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
) -> torch.Tensor:
    """A view of ``base``'s storage as another dtype, or with its values conjugated or negated."""
    start, negative = _start(base, reading, offset), reading.is_negative
    if (
        reading.dtype != base.dtype
    ):  # torch views as another dtype what is neither conjugated nor negated
        base = base.conj() if base.is_conj() else base
        if base.is_neg():
            base, negative = lazily_negated(base), not negative
    made = torch.as_strided(_storage_as(base, reading.dtype), size, stride, start)
    if reading.is_conjugate:
        made = made.conj()
    return lazily_negated(made) if negative else made


def _start(base: torch.Tensor, reading: Reading | None, offset: int) -> int:
    """Where in ``base``'s storage a view begins, in its own elements."""
    if reading is None:
        return int(base.storage_offset()) + offset
    own, other = reading.dtype.itemsize, base.dtype.itemsize
    unit = min(own, other)
    start, rest = divmod(int(base.storage_offset()) * (other // unit) + offset, own // unit)
    assert rest == 0, "no tensor of the dtype begins there"
    return start


def _storage_as(base: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """All of ``base``'s storage in one dimension, as ``dtype``; autograd knows it where it can."""
    count = base.untyped_storage().nbytes() // max(base.dtype.itemsize, dtype.itemsize)
    whole = dtype.itemsize // base.dtype.itemsize  # elements of the base in one
    if dtype == base.dtype:
        return torch.as_strided(base, (count,), (1,), 0)
    if dtype.is_complex and dtype.to_real() == base.dtype:
        return torch.view_as_complex(torch.as_strided(base, (count, 2), (2, 1), 0))
    if base.dtype.is_complex and base.dtype.to_real() == dtype:
        return torch.view_as_real(torch.as_strided(base, (count,), (1,), 0)).view(-1)
    return torch.as_strided(base, (count * max(whole, 1),), (1,), 0).view(dtype)


def _storages(tensors: Iterable[torch.Tensor]) -> Iterator[int]:
    """The addresses of their storages."""
    return map(torch.UntypedStorage.data_ptr, map(torch.Tensor.untyped_storage, tensors))

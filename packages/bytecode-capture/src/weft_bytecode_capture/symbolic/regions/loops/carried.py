"""Locals that a loop carries from one iteration to the next, as parameters and results of its body."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn

import torch

from ....unsupported import Unsupported
from ...models.containers.sequences import TupleVariable
from ...models.numbers.representations import is_invariant
from ...models.numbers.symbolic_integer import SymbolicIntegerVariable
from ...models.numbers.tensor_number import (
    TensorNumberVariable,
    like_both,
    number_in_tensor,
    number_kind,
)
from ...models.torch.tensor import TensorVariable, on_device
from ...protocol import Frame
from ...variables.base import Variable
from ..decisions import ProgramPoint, refuse
from ..elements import note_element_result
from ..state.containers import (
    Opens,
    is_container,
    opened,
    opens_none,
    parts,
    put_parts,
    shape,
    with_parts,
)
from ..state.python_state import (
    ObjectStates,
    difference,
    held_by_one,
    leaves,
    rebuilt,
    same_constant,
    same_structure,
    stride_difference,
)
from ..subgraph import (
    Carried,
    Subgraph,
    expanded_dims,
    fresh_like,
    give_gradients,
    parameter,
    regional,
)
from .varying_sizes import VaryingSizes


class CarriedLocals:
    """The locals of a frame that a loop's body binds anew.

    ``differs`` raises what is due when the body leaves a local that is unlike what it began with: a loop that
    ``is_counted`` is tried without its first iteration.  An integer that the body counts at ``place`` is put
    into a tensor, at a second attempt.  So are containers taken apart for which the body makes new ones;
    ``states`` tells which are new.
    """

    states: ObjectStates

    def __init__(
        self,
        evaluator: Frame,
        body: Subgraph,
        names: Sequence[str],
        place: ProgramPoint,
        differs: Callable[[str], NoReturn],
        is_counted: bool = True,
    ) -> None:
        self.evaluator = evaluator
        self.body = body
        self.graph = body.graph
        self.names = names
        self.place = place
        self.tensors: list[Carried] = []
        self._differs = differs
        self._is_counted_loop = is_counted
        self._asked = evaluator.state.aliases.strides.asked
        self._written = evaluator.state.aliases.writes_by_type.copy()
        self._before: dict[str, Variable] = {}
        self._parameters: dict[str, list[Carried]] = {}  # in the order of a local's leaves
        self.opened: dict[
            int, Variable
        ] = {}  # containers that stand for what they hold, by identity
        self.met: set[int] = set()  # those that the body has left
        self._rows: list[tuple[tuple[str, int], Carried]] = []
        self.sizes = VaryingSizes(evaluator, place, body.graph)

    def begin(self) -> None:
        """Put a parameter in the place of each tensor that the body may bind anew."""
        evaluator = self.evaluator
        for name in self.names:
            variable = self._start(name)
            items = None if variable is None else leaves(variable, self._opens)
            if variable is None or items is None:
                continue
            self._before[name] = variable
            carried = self._parameters[name] = []
            inner: list[Variable] = []
            for item in items:
                if isinstance(item, TensorVariable):
                    carried.append(self._add_local(name, len(carried), item))
                    inner.append(carried[-1].parameter)
                else:
                    inner.append(item)
            evaluator.locals[name] = rebuilt(variable, iter(inner), self._opens, self.opened)
        if self.sizes.nodes:
            self.body.note_symbols()

    def _start(self, name: str) -> Variable | None:
        """A local before the loop: in a tensor, if it is a number that the loop changes."""
        evaluator = self.evaluator
        variable = evaluator.locals.get(name)
        regions = evaluator.state.cache.regions
        if variable is not None and regions.is_remade(self.place, name):
            held = list(opened(variable, is_container))
            if held and held_by_one(evaluator, name, held):
                variable = self._copied(variable)
        if not self._is_counted(name) or variable is None:
            return variable
        return numbers_in_tensors(evaluator, variable, self._opens)

    def _is_counted(self, name: str) -> bool:
        """Whether a local is a number that the loop has in a tensor."""
        return self.evaluator.state.cache.regions.is_counted(self.place, name)

    def _copied(self, variable: Variable) -> Variable:
        """A copy of a container for the loop, of its containers too."""
        if type(variable) is not TupleVariable and not is_container(variable):
            return variable
        made = with_parts(variable, list(map(self._copied, parts(variable))))
        if is_container(made):
            self.opened[id(made)] = made
        return made

    def _opens(self, variable: Variable) -> bool:
        return id(variable) in self.opened

    def _opens_left(self, variable: Variable) -> bool:
        """Whether what an iteration leaves stands for what it holds."""
        return self._opens(variable) or self.states.is_new(variable)

    def end_iteration(self, element: Variable | None = None) -> None:
        """Put what the body has left of such numbers into tensors; its graph is at hand.

        ``element``: what the loop iterates over, in this iteration.
        """
        for name in self.names:
            before, after = self._before.get(name), self.evaluator.locals.get(name)
            if after is None or (after is element and not self._is_counted(name)):
                continue
            if before is not None:
                self.evaluator.locals[name] = self._like(before, after)
            elif isinstance(after, SymbolicIntegerVariable):
                self.evaluator.locals[name] = numbers_in_tensors(self.evaluator, after)

    def _like(self, before: Variable, after: Variable) -> Variable:
        if type(before) is TupleVariable and type(after) is TupleVariable:
            if len(before._items) != len(after._items):
                return after
            pairs = zip(before._items, after._items, strict=True)
            return TupleVariable([self._like(a, b) for a, b in pairs])
        if self._opens(before) and self.states.is_new(after) and shape(before) == shape(after):
            pairs = zip(parts(before), parts(after), strict=True)
            put_parts(after, [self._like(a, b) for a, b in pairs])
            return after
        if type(before) is not TensorNumberVariable or number_kind(after) is not before.kind:
            return after
        number = number_in_tensor(self.evaluator, after)
        assert number is not None
        if number.kind is int and not number.is_step:
            raise Unsupported("integer that may grow beyond a tensor's", repr(after))
        device = before.tensor.fake.device
        return like_both(number, number, on_device(self.evaluator, number.tensor, device))

    def _add_local(self, name: str, number: int, start: TensorVariable) -> Carried:
        """Carry the tensor with this number in a local: its sizes may vary."""
        fake = self.sizes.fake((name, number), start.fake)
        carried = self.add(name, start, None, fake)
        self.sizes.note((name, number), carried)
        return carried

    def add_rows(self, key: tuple[str, int], start: TensorVariable) -> Carried:
        """Carry a buffer to which iterations add rows; its result is to be set, which is like it."""
        self.sizes.vary((*key, 0))
        carried = self._add_local(*key, start)
        self._rows.append((key, carried))
        return carried

    def add(
        self,
        name: str,
        start: TensorVariable,
        result: TensorVariable | None,
        fake: torch.Tensor | None = None,
    ) -> Carried:
        """Carry a tensor; ``fake`` stands for it in the body, by default one that is like it."""
        fake = fresh_like(self.evaluator, start.fake) if fake is None else fake
        taken = regional(parameter(self.graph, name, fake), fake)
        self.tensors.append(Carried(start, taken, result))
        self.evaluator.state.region_tags.begin(self.tensors[-1], self.graph)
        return self.tensors[-1]

    def bound(self, names: Iterable[str]) -> list[str]:
        """The ``names`` bound before or after an iteration: a comprehension's local is at neither on 3.12."""
        known = self._before.keys() | self.evaluator.locals.keys()
        return [name for name in names if name in known]

    def result(
        self, name: str, first_bound: Callable[[TensorVariable], TensorVariable]
    ) -> Variable:
        """What a local is after the loop, in terms of parameters: these become the loop's results.

        ``first_bound`` gives what a tensor starts with that the loop binds first.
        """
        after = self.evaluator.locals.get(name)
        before = self._before.get(name)
        if after is None:
            raise Unsupported("local that a loop deletes", name)
        self._check_names(name, after)
        if before is not None and is_container(before) and not self._opens(before):
            self._check_remade(name, before, after)
        items = leaves(after, self._opens_left)
        if items is None or any(isinstance(item, SymbolicIntegerVariable) for item in items):
            if before is not None:
                self._check_numbers(name, before, after)
            raise Unsupported("local that is bound in a loop", f"{name}: {after!r}")
        if before is None:
            first = [self._first(name, i, first_bound) for i in items]
            return rebuilt(after, iter(first), self._opens_left)
        if not same_structure(before, after, self._opens_left):
            self._check_numbers(name, before, after)
            self._differs(f"{name} becomes {after!r}")
        parameters = iter(self._parameters[name])
        pairs = zip(leaves(before, self._opens) or (), items, strict=True)
        found = [self._leaf(name, a, b, parameters) for a, b in pairs]
        return rebuilt(before, iter(found), self._opens)

    def _check_remade(self, name: str, before: Variable, after: Variable) -> None:
        """Where the body has made a container anew, have the loop evaluated with what that holds."""
        if self.states.is_new(after):
            reason = f"{name} is {before!r}, then {after!r}"
            raise refuse(self.evaluator, self.place, reason, peel=True, remade=name)

    def _check_names(self, name: str, after: Variable) -> None:
        """Refuse two locals that have one container: what stands for it would be two."""
        for container in opened(after, self._opens_left):
            if id(container) in self.met:
                raise Unsupported("local that is bound in a loop", f"{name}: {after!r}, as another")
            self.met.add(id(container))

    def _first(
        self, name: str, item: Variable, first_bound: Callable[[TensorVariable], TensorVariable]
    ) -> Variable:
        if isinstance(item, TensorVariable):
            carried = self.add(name, first_bound(item), item)
            self._note_element(carried.parameter, item)
            if item.fake.requires_grad:
                give_gradients(self.evaluator, carried.parameter.fake)
            return carried.parameter
        if not is_invariant(item):
            raise Unsupported("local that is bound in a loop", f"{name}: {item!r}")
        return item

    def _leaf(
        self, name: str, old: Variable, new: Variable, parameters: Iterator[Carried]
    ) -> Variable:
        if not isinstance(old, TensorVariable):
            if not same_constant(old, new):
                self._check_numbers(name, old, new)
                self._differs(f"{name} is {old!r}, then {new!r}")
            return old
        carried = next(parameters)
        varies = self.sizes.varies(carried)
        if new is carried.parameter and not varies:
            return old  # the body changes it in place, or not at all
        if not isinstance(new, TensorVariable):
            self._differs(f"{name} is {old!r}, then {new!r}")
        problem = difference(old, new)
        if problem is not None or varies:
            key = name, self._parameters[name].index(carried)
            if not self.sizes.leave(key, carried, new.fake):
                self._differs(f"{name} changes: {problem}")
        else:
            self.check_strides(name, carried.start, new)
        if new.fake.requires_grad and not carried.parameter.fake.requires_grad:
            give_gradients(self.evaluator, carried.parameter.fake)
        carried.result = new
        self._note_element(carried.parameter, new)
        return carried.parameter

    def check_strides(self, name: str, start: TensorVariable, left: TensorVariable) -> None:
        """Refuse a loop whose body leaves other strides than what is called ``name`` began with.

        A loop that may have no iteration has no first one to leave out: it stays where nobody asks.
        """
        problem = stride_difference(start, left)
        if problem is None:
            return
        strides = self.evaluator.state.aliases.strides
        if self._is_counted_loop or expanded_dims(start.fake) or strides.asked > self._asked:
            self._differs(f"{name} changes: {problem}")
        strides.note(self.place)

    def _note_element(self, parameter: TensorVariable, left: TensorVariable) -> None:
        if left.element is not None:
            left.element.check_unwritten(self._written[left.fake.dtype])
            note_element_result(self.evaluator, self.place, parameter, left)

    def _check_numbers(self, name: str, old: Variable, new: Variable) -> None:
        """Where both are numbers of one type, have the loop evaluated with that in a tensor."""
        for before, after in self._numbers(old, new):
            if not same_constant(before, after):
                reason = f"{name} is {before!r}, then {after!r}"
                raise refuse(self.evaluator, self.place, reason, counted=name)

    def finish(self, may_be_empty: bool) -> list[Carried]:
        """What is carried indeed; the body takes the others as they are before the loop.

        :raises RegionRefused: its sizes vary otherwise than was known.
        """
        for key, carried in self._rows:
            assert carried.result is not None
            if not self.sizes.leave(key, carried, carried.result.fake):
                raise Unsupported("list of a length that depends on data", key[0])
        self.sizes.settle()
        self.sizes.begin_results()
        state = self.evaluator.state
        tags = state.region_tags
        self.tensors += tags.finish(self.evaluator, self.tensors, self.body, may_be_empty)
        for carried in self.tensors:
            if carried.result is None:
                state.aliases.note_unchanged(carried)
                node = carried.parameter.node
                node.replace_all_uses_with(carried.start.node)
                self.graph.erase_node(node)
        unchanged = {id(c.parameter): c.start for c in self.tensors if c.result is None}
        kept = [carried for carried in self.tensors if carried.result is not None]
        for carried in kept:  # which another may be given
            carried.result = unchanged.get(id(carried.result), carried.result)
        gaining = (c.parameter.fake.requires_grad and not c.start.fake.requires_grad for c in kept)
        if may_be_empty and any(gaining):
            self.evaluator.graph.optional_gradients.depend_on_data = True
        return kept

    def _numbers(self, old: Variable, new: Variable) -> Iterator[tuple[Variable, Variable]]:
        """The numbers in the same places of two values that are of one type."""
        both = type(old) is TupleVariable and type(new) is TupleVariable
        if both or (self._opens(old) and self._opens_left(new)):
            if shape(old) == shape(new):
                for before, after in zip(parts(old), parts(new), strict=True):
                    yield from self._numbers(before, after)
        elif number_kind(old) is not None and number_kind(old) is number_kind(new):
            yield old, new


def numbers_in_tensors(evaluator: Frame, variable: Variable, opens: Opens = opens_none) -> Variable:
    """A number, or those of a tuple or an opened container, in tensors of the graph at hand."""
    if type(variable) is TupleVariable or opens(variable):
        held = [numbers_in_tensors(evaluator, item, opens) for item in parts(variable)]
        if type(variable) is TupleVariable:
            return TupleVariable(held)
        put_parts(variable, held)
        return variable
    return number_in_tensor(evaluator, variable) or variable

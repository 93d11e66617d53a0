"""Conditionals on a tensor's value: both branches evaluated, their states joined, kept as ``cond``.

The branches end where they meet again (the jump's postdominator), at the latest where the frame returns.  A
conditional that leaves or repeats a loop is the loop's condition: :mod:`..loops.while_loop`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from ....unsupported import Unsupported
from ...decode import DecodedInstruction, after_loop
from ...graph.known_contents import known_contents
from ...graph.purity import is_effectful
from ...models.numbers.data_numbers import DataBooleanVariable, known_truth
from ...models.numbers.tensor_number import (
    TensorNumberVariable,
    as_predicate,
    tested_tensor,
)
from ...models.torch.tensor import TensorVariable
from ...protocol import Frame
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ..decisions import ProgramPoint, refuse
from ..elements import note_element_result
from ..evaluation import attempted, check_unchanged, every_instruction, may_attempt, run_until
from ..identity.choices import Choice, note_choice
from ..loops.early_exit import RESULT, RETURNED, RolledLoop, flag, left_loop, like_result
from ..loops.finite_loops import leaves_finite_loop
from ..loops.while_loop import find_while, keep_while
from ..state.containers import (
    Opens,
    become,
    is_container,
    is_structure,
    made_by_one_branch,
    opened,
    opens_none,
    parts,
    shape,
    with_parts,
)
from ..state.python_state import (
    ObjectStates,
    difference,
    held_by_locals,
    leaves,
    rebuilt,
    same_constant,
    same_structure,
    stride_difference,
)
from ..state.slots import find_slots
from ..subgraph import (
    Subgraph,
    add_region,
    call_region,
    fresh_like,
    regional,
)
from .branch_ends import (
    BranchEnd,
    chosen_numbers,
    make_numbers_alike,
    put_flags_on_one_device,
)
from .first_changes import FirstChanges
from .join_points import EXIT, join_point, leaves_loop, loops, meeting_point
from .joined_lists import ListsOfBranches
from .unread_locals import ChosenLocal
from .varying_results import VaryingResults, may_differ


def keep_branch(
    evaluator: Frame, instruction: DecodedInstruction, condition: Variable, *, jump_if: bool
) -> bool:
    """At a conditional jump on a tensor: keep both branches as a region and go to where they meet.

    False where the condition is no tensor, or the region at this place was refused.  The condition is
    popped already.  Raises :class:`RegionRefused`, after which the frame is evaluated again without it.
    """
    place = (evaluator.code, instruction.index)
    if not isinstance(condition, _OF_DATA) or evaluator.suspended:
        return False
    if not may_attempt(evaluator, place):
        return False
    with attempted(evaluator, place, "one branch"):
        asked, condition = condition, tested_tensor(evaluator, condition)
        if not isinstance(condition, TensorVariable) or known_truth(condition.node) is not None:
            return False
        reads = evaluator.graph.is_in_region or evaluator.state.options.read_contents
        if reads and known_contents(evaluator, condition) is not None:
            return False
        predicate = as_predicate(evaluator, condition)
        rolled = left_loop(evaluator, instruction)
        is_unrolled = rolled is None and leaves_finite_loop(evaluator, instruction)
        loop = None if rolled or is_unrolled else find_while(evaluator, instruction)
        if is_unrolled:
            _UnrolledBreak(evaluator, instruction, predicate, jump_if, place).run()
        elif rolled is not None:
            _Break(evaluator, instruction, predicate, jump_if, place, rolled).run()
        elif loop is not None:
            returned = keep_while(evaluator, loop, asked, predicate)
            if returned is not None:
                ReturnFromLoop(evaluator, instruction, *returned, evaluator.next_index).run()
        else:
            Conditional(evaluator, instruction, predicate, jump_if, place).run()
    return True


def is_undecided(evaluator: Frame, condition: Variable) -> bool:
    """Whether data decides of a condition, as far as is known before it is tested."""
    if not isinstance(condition, _OF_DATA) or evaluator.suspended:
        return False
    if not isinstance(condition, TensorVariable):
        return True
    return known_truth(condition.node) is None and known_contents(evaluator, condition) is None


_OF_DATA = (TensorVariable, TensorNumberVariable, DataBooleanVariable)


_UNOBSERVED = (TensorVariable, ConstantVariable, ChosenLocal)  # of which no one sees when they end


class Conditional:
    """A conditional jump on a tensor, kept with both of its branches."""

    may_choose_locals = False  # whether locals that one branch binds may stay unread
    may_leave_loop = False

    def __init__(
        self,
        evaluator: Frame,
        instruction: DecodedInstruction,
        predicate: TensorVariable,
        jump_if: bool,
        place: ProgramPoint,
        around: RolledLoop | None = None,
    ) -> None:
        self.evaluator = evaluator
        self.instruction = instruction
        self.predicate = predicate
        self.around = around
        targets = (instruction.target, instruction.index + 1)
        self.true_start, self.false_start = targets if jump_if else targets[::-1]
        self.place = place
        self.find_meeting()

    def find_meeting(self) -> None:
        """Where the branches meet, and the locals that matter there."""
        evaluator, index = self.evaluator, self.instruction.index
        self.meeting = join_point(evaluator.decoded, index)
        if not self.may_leave_loop and leaves_loop(evaluator.decoded, index, self.meeting):
            raise Unsupported("jump out of a loop on a tensor's value")
        self.live = frozenset() if self.meeting == EXIT else evaluator.decoded.live_at(self.meeting)

    def run(self) -> None:
        evaluator = self.evaluator
        stack, local_variables = list(evaluator.stack), dict(evaluator.locals)
        self.states = states = ObjectStates(evaluator)
        slots = {slot: slot.get() for slot in find_slots(evaluator) if not is_container(slot.owner)}
        first_changes = FirstChanges(evaluator, states)
        changed: dict[int, Variable] = {}
        self._lists = ListsOfBranches(evaluator)
        branches = []
        for start in (self.true_start, self.false_start):
            evaluator.stack, evaluator.locals = list(stack), dict(local_variables)
            branch = self._evaluate(start)
            branches.append(branch)
            self._lists.take()
            first_changes.take_back()
            for slot, before in slots.items():
                branch.elements[slot] = slot.get()
                slot.set(before)
            states.forget_iterators(evaluator)
            for container, left in states.take_back():
                changed[id(container)] = container
                branch.changed[id(container)] = left
            check_unchanged(states)
        for branch, places in zip(branches, first_changes.joined(), strict=True):
            branch.elements.update(places)
        for key, container in changed.items():
            for branch in branches:
                branch.changed.setdefault(key, with_parts(container, parts(container)))
        evaluator.stack, evaluator.locals = stack, local_variables
        self._held, self._kept = held_by_locals(evaluator) - changed.keys(), set[int]()
        self._changed = changed
        self._join(*branches)

    def _opens(self, variable: Variable) -> bool:
        """Whether what holds a container after a branch may hold a new one as well."""
        is_kept = id(variable) in self._kept
        return not is_kept and (self.states.is_new(variable) or id(variable) in self._held)

    def _containers_of_both(self, true: BranchEnd, false: BranchEnd) -> set[int]:
        """The containers that are in one place in both branches, and stay themselves there and elsewhere."""
        pending: list[tuple[Any, Any]] = [
            *zip(true.stack, false.stack, strict=False),
            *((true.locals.get(name), false.locals.get(name)) for name in self.live),
            *((value, false.elements.get(slot)) for slot, value in true.elements.items()),
            *((left, false.changed[key]) for key, left in true.changed.items()),
            (true.result, false.result),
        ]
        found: set[int] = set()
        while pending:
            left, right = pending.pop()
            if left is right:
                found.update(map(id, opened(left, self._opens)))
            elif is_structure(left, self._opens) and is_structure(right, self._opens):
                pending += zip(parts(left), parts(right), strict=False)
        return found

    def _evaluate(self, start: int) -> BranchEnd:
        evaluator = self.evaluator
        subgraph = Subgraph(evaluator, is_branch=True)
        evaluator.next_index = start
        with subgraph.active():
            self.evaluate_branch(start)
        branch = BranchEnd(subgraph, evaluator.stack, evaluator.locals, evaluator.result)
        if evaluator.finished:
            evaluator.finished, evaluator.result = False, None
            if self.meeting != EXIT:
                raise Unsupported("return in one branch")
        return branch

    def evaluate_branch(self, start: int) -> None:
        """Evaluate one branch up to where it meets the other."""
        run_until(self.evaluator, {self.meeting}, every_instruction(self.evaluator))

    def _join(self, true: BranchEnd, false: BranchEnd) -> None:
        evaluator = self.evaluator
        self._kept = self._containers_of_both(true, false)
        self._lists.complete(self.predicate, (true, false), self._opens)
        loop = evaluator.rolled_loop
        if loop is not None:
            put_flags_on_one_device(evaluator, (true, false), (loop.note, RETURNED))
        numbers = make_numbers_alike(evaluator, true, false, self._opens)
        joined = Joined(self._opens)
        if self.meeting == EXIT:
            assert true.result is not None and false.result is not None
            result = joined.add(true.result, false.result, "the result")
            evaluator.finished = True
            stack: list[Variable | None] = []
            local_variables: dict[str, Variable] = {}
        else:
            result = None
            if len(true.stack) != len(false.stack):
                raise Unsupported("branches with different stacks")
            stack = [
                joined.add_optional(a, b, "a value on the stack")
                for a, b in zip(true.stack, false.stack, strict=True)
            ]
            chosen = self._chosen_locals(true, false)
            both = [n for n in true.locals if n in self.live and n in false.locals]
            both = [name for name in both if name not in chosen]
            local_variables = {
                name: joined.add(true.locals[name], false.locals[name], name) for name in both
            }
        elements = {
            slot: joined.add_optional(value, false.elements[slot], "an element")
            for slot, value in true.elements.items()
        }
        containers = self._join_containers(true, false, joined)
        appended = {
            key: joined.add(value, false.appended[key], "an element of a list")
            for key, value in true.appended.items()
        }
        if all(left in numbers and right in numbers for left, right in joined.pairs):
            values = chosen_numbers(evaluator, self.predicate, true, false, joined.pairs)
        else:
            values = None
        if values is None:
            values = emit_branch(evaluator, self.place, self.predicate, true, false, joined)
        if result is not None:
            evaluator.result = joined.resolve(result, values)
        for slot, value in elements.items():
            slot.set(joined.resolve(value, values))
        for container, value in containers:
            become(container, _required(joined.resolve(value, values)))
        self._lists.finish(lambda key: _required(joined.resolve(appended[key], values)))
        evaluator.stack = [joined.resolve(v, values) for v in stack]
        evaluator.locals = {
            name: _required(joined.resolve(v, values)) for name, v in local_variables.items()
        }
        if self.meeting != EXIT:
            evaluator.locals |= chosen
        if self.meeting != EXIT:
            evaluator.next_index = self.meeting

    def _chosen_locals(self, true: BranchEnd, false: BranchEnd) -> dict[str, Variable]:
        """The locals that may be read later and are bound in one branch alone, or were not joined before."""
        only = (true.locals.keys() ^ false.locals.keys()) & self.live
        found = {name: (true.locals.get(name), false.locals.get(name)) for name in self.live}
        only |= {n for n, pair in found.items() if any(isinstance(v, ChosenLocal) for v in pair)}
        if not only:
            return {}
        plain = all(v is None or isinstance(v, _UNOBSERVED) for name in only for v in found[name])
        if not self.may_choose_locals or not plain:
            raise Unsupported("local that one branch binds", ", ".join(sorted(only)))
        refusal = refuse(self.evaluator, self.place, "local that one branch binds")
        return {name: ChosenLocal(refusal) for name in sorted(only)}

    def _join_containers(
        self, true: BranchEnd, false: BranchEnd, joined: Joined
    ) -> list[tuple[Variable, Variable]]:
        """The containers that a branch has changed, each with what it is after the conditional."""
        found = []
        for key, container in self._changed.items():
            left, right = (branch.changed[key] for branch in (true, false))
            if shape(left) != shape(right):
                raise made_by_one_branch(container)
            found.append((container, joined.add(left, right, "a container")))
        return found


def emit_branch(
    evaluator: Frame,
    place: ProgramPoint,
    predicate: TensorVariable,
    true: BranchEnd,
    false: BranchEnd,
    joined: Joined,
) -> list[TensorVariable]:
    """Append the ``cond`` of two branches that have been joined; the tensors in which they differ."""
    graph = evaluator.graph.graph
    tags = evaluator.state.region_tags
    found, added = tags.join(evaluator, joined.pairs, (true.subgraph, false.subgraph))
    pairs = [*joined.pairs, *added]
    ends = (true.subgraph, false.subgraph)
    fakes = [_joined_fake(evaluator, *(branch.fake for branch in pair)) for pair in pairs]
    varying = VaryingResults(evaluator, pairs)
    if varying.vary:
        fakes = varying.fakes(fakes)
        items, taken = varying.emit(predicate, ends, fakes)
    else:
        items, taken = _emit_cond(evaluator, place, predicate, ends, pairs, fakes)
    if not pairs:
        return []
    made = [regional(n, f) for n, f in zip(items, fakes, strict=True)]
    branches = [[pair[k] for pair in pairs] for k in (0, 1)]
    evaluator.state.aliases.note_branch(place, graph, made, branches, taken)
    for k in (0, 1):
        for result, operand in zip(made, branches[k], strict=True):
            note_element_result(evaluator, place, result, operand)
            note_choice(evaluator, Choice(result, predicate, k == 1, operand))
    varying.note_sizes(made, ends)
    count = len(joined.pairs)
    tags.bind(made[:count], found, made[count:])
    return made[:count]


def _emit_cond(
    evaluator: Frame,
    place: ProgramPoint,
    predicate: TensorVariable,
    ends: tuple[Subgraph, Subgraph],
    pairs: Sequence[tuple[TensorVariable, TensorVariable]],
    fakes: Sequence[torch.Tensor],
) -> tuple[list[torch.fx.Node], list[torch.fx.Node]]:
    """Append the operator, unless it would do nothing: its results' nodes, and what the branches take."""
    graph, aliases = evaluator.graph.graph, evaluator.state.aliases
    results = [[pair[k].node for pair in pairs] for k in (0, 1)]
    taken = dict.fromkeys(ends[0].taken() + ends[1].taken())
    for end, nodes in zip(ends, results, strict=True):
        taken.update(dict.fromkeys(end.taken(*nodes)))
    modules = [
        end.close((), list(taken), tuple(nodes)) for end, nodes in zip(ends, results, strict=True)
    ]
    inner = (node for module in modules for node in module.graph.nodes)
    effects = any(n.op not in ("placeholder", "output") and is_effectful(n) for n in inner)
    if not pairs and not effects:
        return [], list(taken)
    regions = [
        add_region(evaluator, name, m)
        for name, m in zip(("true_graph", "false_graph"), modules, strict=True)
    ]
    arguments: tuple[Any, ...] = (predicate.node, *regions, tuple(taken))
    if not pairs:
        node = graph.call_function(torch.ops.higher_order.cond, arguments)
        aliases.branches[node] = place
        return [], list(taken)
    evaluator.graph.region_histories.note_branch(
        predicate,
        (ends[0].graph, ends[1].graph),
        fakes,
        ((a.fake, b.fake) for a, b in pairs),
    )
    items = call_region(evaluator, torch.ops.higher_order.cond, arguments, fakes)
    aliases.branches[items[0].all_input_nodes[0]] = place
    return items, list(taken)


def _joined_fake(evaluator: Frame, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """What stands for the result of two branches: it has gradients if it has any in one."""
    if left.requires_grad != right.requires_grad:
        evaluator.graph.optional_gradients.depend_on_data = True
    return fresh_like(evaluator, left if left.requires_grad else right)


class _UnrolledBreak(Conditional):
    """A jump out of a loop of known elements: one branch has all other iterations."""

    may_leave_loop = True


class _ConditionalInLoop(Conditional):
    """A conditional whose branches may end an iteration of the kept loop ``around``, if there is one."""

    def evaluate_branch(self, start: int) -> None:
        if self.around is not None:
            self.around.finish_branch(self.evaluator)
        else:
            super().evaluate_branch(start)

    def _join(self, true: BranchEnd, false: BranchEnd) -> None:
        """Where one branch has returned from the frame, note that the other has not."""
        for one, other in ((true, false), (false, true)):
            if self.around and RETURNED in one.locals and RETURNED not in other.locals:
                opens = self.around.opens
                with other.subgraph.active():
                    other.locals[RETURNED] = flag(self.evaluator, False)
                    other.locals[RESULT] = like_result(self.evaluator, one.locals[RESULT], opens)
        super()._join(true, false)


class _Break(_ConditionalInLoop):
    """A conditional of which one branch leaves the loop being evaluated; the branches meet at its head."""

    def find_meeting(self) -> None:
        assert self.around is not None
        self.meeting = self.around.head
        self.live = self.around.live(self.evaluator)


class ReturnFromLoop(_ConditionalInLoop):
    """After a loop that may have returned: the frame's result is the loop's, or what follows gives.

    Inside another loop that is kept, that loop has returned then.
    """

    _RETURNED, _FOLLOWS = 0, 1

    def __init__(
        self,
        evaluator: Frame,
        head: DecodedInstruction,
        predicate: TensorVariable,
        result: Variable,
        following: int,
    ) -> None:
        self.result = result
        self.following = following
        super().__init__(evaluator, head, predicate, True, (evaluator.code, head.index))
        self.true_start, self.false_start = self._RETURNED, self._FOLLOWS

    def find_meeting(self) -> None:
        evaluator, head = self.evaluator, self.instruction.index
        self.around = evaluator.rolled_loop
        if self.around is not None:
            self.meeting, self.live = self.around.head, self.around.live(evaluator)
            return
        around = [loop for loop in loops(evaluator.decoded) if head in loop.body]
        if len(around) > 1:
            raise Unsupported("return inside a loop", "which is inside another loop")
        self.meeting, self.live = EXIT, frozenset()

    def evaluate_branch(self, start: int) -> None:
        evaluator = self.evaluator
        if start == self._RETURNED:
            evaluator.finished, evaluator.result = True, self.result
            if self.around is not None:
                self.around.note_end(evaluator, True)
            return
        evaluator.next_index = self.following
        super().evaluate_branch(start)


class ElseOfLoop(_ConditionalInLoop):
    """After a ``for`` loop that data may have left by ``break``: its ``else`` clause, or what follows that.

    Inside another loop that is kept, one of them may end that loop's iteration, or the loop.
    """

    def __init__(
        self, evaluator: Frame, head: DecodedInstruction, predicate: TensorVariable, landing: int
    ) -> None:
        self.starts = (landing, after_loop(head))
        super().__init__(evaluator, head, predicate, True, (evaluator.code, head.index))
        self.true_start, self.false_start = self.starts

    def find_meeting(self) -> None:
        evaluator, head = self.evaluator, self.instruction.index
        self.meeting, around = meeting_point(evaluator.decoded, self.starts), evaluator.rolled_loop
        if around is not None and self.meeting not in around.inside:
            self.around, self.meeting = around, around.head
            self.live = around.live(evaluator)
            return
        _own, *outer = (loop.body for loop in loops(evaluator.decoded) if head in loop.body)
        if any(self.meeting not in body for body in outer):
            raise Unsupported("jump out of a loop on a tensor's value")
        self.live = evaluator.decoded.live_at(self.meeting)


class _Marker(Variable):
    """The conditional's result at ``position``, before its node exists."""

    def __init__(self, position: int) -> None:
        self.position = position


class Joined:
    """The tensors in which two states differ, in the order in which they were met.

    Containers that ``opens`` accepts, of which each branch has made its own, become new ones.
    """

    def __init__(self, opens: Opens = opens_none) -> None:
        self._opens = opens
        self._met: tuple[set[int], set[int]] = (set(), set())  # containers of either branch
        self._made: dict[int, Variable] = {}  # those that stand for two
        self.pairs: list[tuple[TensorVariable, TensorVariable]] = []
        self._markers: dict[tuple[int, int], _Marker] = {}
        self._alive: list[Variable] = []

    def add_optional(
        self, left: Variable | None, right: Variable | None, what: str
    ) -> Variable | None:
        if left is None or right is None:
            if left is not right:
                raise Unsupported("branches with different stacks")
            return None
        return self.add(left, right, what)

    def add(self, left: Variable, right: Variable, what: str) -> Variable:
        """What stands for the two after the conditional: one of them if they are the same."""
        if left is right:
            return left
        lefts, rights = leaves(left, self._opens), leaves(right, self._opens)
        if not same_structure(left, right, self._opens) or lefts is None or rights is None:
            raise Unsupported("value that differs by branch", f"{what}: {left!r}, {right!r}")
        for branch, met in zip((left, right), self._met, strict=True):
            for container in opened(branch, self._opens):
                if id(container) in met:
                    raise Unsupported(
                        "container of two names after a conditional", f"{what}: {branch!r}"
                    )
                met.add(id(container))
                self._alive.append(container)
        items = [self._leaf(a, b, what) for a, b in zip(lefts, rights, strict=True)]
        return rebuilt(left, iter(items), self._opens, self._made)

    def _leaf(self, left: Variable, right: Variable, what: str) -> Variable:
        if same_constant(left, right):
            return left
        if not isinstance(left, TensorVariable) or not isinstance(right, TensorVariable):
            raise Unsupported("value that differs by branch", f"{what}: {left!r}, {right!r}")
        problem = difference(left, right) or stride_difference(left, right)
        if problem is not None and not may_differ(left.fake, right.fake):
            raise Unsupported("tensor that differs by branch", f"{what}: {problem}")
        key = (id(left), id(right))
        if key not in self._markers:
            self._markers[key] = _Marker(len(self.pairs))
            self.pairs.append((left, right))
        return self._markers[key]

    def resolve(
        self, variable: Variable | None, values: Sequence[TensorVariable]
    ) -> Variable | None:
        """``variable`` with the conditional's results, ``values``, in the place of markers."""
        if variable is None:
            return None
        items = leaves(variable, self._is_made)
        if items is None or not any(isinstance(item, _Marker) for item in items):
            return variable
        found = [values[item.position] if isinstance(item, _Marker) else item for item in items]
        return rebuilt(variable, iter(found), self._is_made)

    def _is_made(self, variable: Variable) -> bool:
        return id(variable) in self._made


def _required(variable: Variable | None) -> Variable:
    assert variable is not None
    return variable

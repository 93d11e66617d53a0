"""Loops over the places that ``nonzero`` finds, of which there are few: a branch for each place.

``for expert in hit.nonzero(): ...`` runs for some of a known number of experts, in ascending order.  It is
kept as ``if hit[0]: ...``, ``if hit[1]: ...`` and so on; in the branch of an expert its number is known.

Where the body raises for a place (a mask has one more than there are experts), the graph checks that it is
not hit.  A call in which it is runs as the program was written, so that the error is eager's own.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.fx

from ...._torch.symbols import statically_known_true
from ....captured_graph import DropDataDependence
from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...captured_exception import CapturedException
from ...decode import DecodedInstruction
from ...frame_ends import handler_goes_on
from ...graph.storages import version_of
from ...models.iterators.builtin_iterators import IteratorVariable
from ...models.numbers.tensor_number import as_predicate
from ...models.torch.tensor import TensorVariable, tensor_of
from ...protocol import Evaluator, Frame
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ..branches.branch import Conditional
from ..branches.join_points import loops, resolved, with_raises
from ..branches.raising_branches import check_condition
from ..decisions import ProgramPoint, refuse
from ..elements import ElementCopy
from ..evaluation import attempted, may_attempt, run_until

_MAX_CANDIDATES = 256
_MAX_BRANCHES = 600  # of a graph, each of which takes a quarter of a second to compile, or more
_SAME_ORDER = frozenset({"contiguous", "flatten", "ravel", "reshape", "squeeze", "view"})
"""Calls that change the shape of a tensor of places, if anything."""


class CandidateIterator(IteratorVariable):
    """An iterator over ``rows``, places in a dimension of which ``hits`` says whether they are among them."""

    def __init__(self, rows: TensorVariable, hits: TensorVariable, count: int) -> None:
        self.rows = rows
        self.hits = hits
        self.count = count
        self.position = 0

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        if self.position < self.count:
            raise Unsupported("number that depends on data", f"next of {self.rows!r}")
        return None

    def python_type(self) -> type:
        return type(iter(()))

    def reconstruct(self, emitter: Emitter) -> None:
        raise Unsupported("number that depends on data", repr(self.rows))


def candidate_iterator(
    evaluator: Frame, instruction: DecodedInstruction, iterated: Variable
) -> CandidateIterator | None:
    """At GET_ITER before a ``for`` loop: its iterator, if it may be kept as a branch for each candidate."""
    if not isinstance(iterated, TensorVariable) or evaluator.state.overrides.modes:
        return None
    if evaluator.graph.is_repeated or iterated.fake.dim() == 0:
        return None
    head = resolved(evaluator.decoded, instruction.index + 1)
    if evaluator.decoded.instructions[head].name != "FOR_ITER" or _body(evaluator, head) is None:
        return None
    flags = _flags(iterated)
    if flags is None or version_of(iterated.fake) or version_of(flags.meta["example_value"]):
        return None
    size = flags.meta["example_value"].shape[0]
    if type(size) is not int or not 0 < size <= _MAX_CANDIDATES:
        return None
    _count_branches(evaluator, head, size)
    kept = TensorVariable(flags, flags.meta["example_value"], None)
    return CandidateIterator(iterated, tensor_of(evaluator, torch.ne, kept, 0), size)


def _count_branches(evaluator: Frame, head: int, size: int) -> None:
    """Refuse the loop, wherever it is called, where it would make the graph too large to compile soon.

    With ``fullgraph=True`` any size is better than a break.
    """
    state = evaluator.state
    state.candidate_count += size
    if state.candidate_count > _MAX_BRANCHES and not state.options.fullgraph:
        reason = f"more than {_MAX_BRANCHES} branches for the places of loops"
        raise refuse(evaluator, (evaluator.code, head), reason)


def _body(evaluator: Frame, head: int) -> frozenset[int] | None:
    """The instructions of the loop that begins at ``head``; None if it has none, or a known break."""
    decoded = evaluator.decoded
    bodies = (loop.body for loop in loops(decoded) if resolved(decoded, loop.head) == head)
    found = (with_raises(decoded, body) for body in bodies)
    inside = next(found, None)
    return None if inside is None or any(k in evaluator.breaks for k in inside) else inside


def _flags(rows: TensorVariable) -> torch.fx.Node | None:
    """The tensor of one dimension whose places ``nonzero`` gives, one in each of ``rows``."""
    node = rows.node
    if rows.fake.dim() > 2:
        return None
    if rows.fake.dim() == 2 and not statically_known_true(rows.fake.shape[1] == 1):
        return None
    while _name(node) in _SAME_ORDER and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    if _name(node) == "getitem" and node.args[1] == 0 and isinstance(node.args[0], torch.fx.Node):
        node, is_tuple = node.args[0], True
    else:
        is_tuple = False
    if is_tuple and _name(node) == "where":
        as_tuple = len(node.args) == 1 and not node.kwargs
    elif _name(node) == "nonzero" and len(node.args) == 1:
        as_tuple = bool(node.kwargs.get("as_tuple", False))
    else:
        return None
    flags = node.args[0]
    if as_tuple is not is_tuple or not isinstance(flags, torch.fx.Node):
        return None
    return flags if flags.meta["example_value"].dim() == 1 else None


def _name(node: torch.fx.Node) -> str:
    known = (torch.nonzero, torch.where, torch.flatten, torch.squeeze, torch.reshape, torch.ravel)
    if node.op == "call_method":
        return str(node.target)
    if node.target is operator.getitem or node.target in known:
        return str(getattr(node.target, "__name__", ""))
    return ""


def keep_candidate(evaluator: Frame, instruction: DecodedInstruction, iterator: Variable) -> bool:
    """At FOR_ITER: keep the loop's body as a branch for the next candidate; False if there is none.

    Raises :class:`RegionRefused`, after which the frame is evaluated again, where the body can't be kept.
    """
    if not isinstance(iterator, CandidateIterator) or iterator.position >= iterator.count:
        return False
    place = (evaluator.code, instruction.index)
    inside = _body(evaluator, instruction.index)
    with attempted(evaluator, place, "the body of a loop over places"):
        if inside is None or not may_attempt(evaluator, place):
            raise Unsupported("graph break inside a region", repr(iterator.rows))
        number = iterator.position
        hit = tensor_of(evaluator, "select", iterator.hits, 0, number)
        if evaluator.state.cache.regions.raises_at(place, number):
            _rely_on_no_hit(evaluator, place, hit)
            evaluator.next_index = instruction.index
        else:
            predicate = as_predicate(evaluator, hit)
            candidate = _Candidate(iterator.rows, number, inside)
            with _raising(evaluator, place, number):
                _Iteration(evaluator, instruction, predicate, place, candidate).run()
        iterator.position += 1
    return True


@contextlib.contextmanager
def _raising(evaluator: Frame, place: ProgramPoint, number: int) -> Iterator[None]:
    """Evaluation of the body for the place ``number``: where it raises, the loop is tried without it."""
    may_rely = not evaluator.graph.is_in_region and not any(
        map(handler_goes_on, evaluator.frames())
    )
    try:
        yield
    except (CapturedException, DropDataDependence) as error:
        # An index outside of a tensor raises; fakes may reject for other reasons what eager takes.
        is_known = isinstance(error, CapturedException) or isinstance(error.__cause__, IndexError)
        if not may_rely or not is_known:
            raise
        reason = f"exception in the body of a loop over places, at {number}"
        raise refuse(evaluator, place, reason, raising=number) from error


def _rely_on_no_hit(evaluator: Frame, place: ProgramPoint, hit: TensorVariable) -> None:
    evaluator.graph.writes_so_far.require_little(evaluator, place)
    if not check_condition(evaluator, hit, False):
        raise Unsupported("number that depends on data", f"whether {hit!r} is hit")


@dataclass(frozen=True)
class _Candidate:
    """The candidate ``number`` among ``rows``, for which the instructions ``inside`` run."""

    rows: TensorVariable
    number: int
    inside: frozenset[int]

    def element(self, evaluator: Frame, place: ProgramPoint) -> TensorVariable:
        """The row, of which only its own place in memory isn't known."""
        fake = self.rows.fake
        options = {"dtype": fake.dtype, "device": fake.device}
        made = tensor_of(evaluator, torch.full, list(fake.shape[1:]), self.number, **options)
        refusal = refuse(evaluator, place, "write to what a loop iterates over, or a view of it")
        at = self.rows, ConstantVariable(self.number)
        made.element = ElementCopy(evaluator.state.aliases, made, at, refusal)
        return made


class _Iteration(Conditional):
    """The body for one candidate as the true branch; both end where the next iteration begins."""

    may_choose_locals = True

    def __init__(
        self,
        evaluator: Frame,
        head: DecodedInstruction,
        predicate: TensorVariable,
        place: ProgramPoint,
        candidate: _Candidate,
    ) -> None:
        self.candidate = candidate
        super().__init__(evaluator, head, predicate, True, place)
        self.true_start, self.false_start = head.index + 1, head.index

    def find_meeting(self) -> None:
        self.meeting = self.instruction.index
        self.live = self.evaluator.decoded.live_at(self.meeting)

    def evaluate_branch(self, start: int) -> None:
        if start == self.meeting:
            return
        evaluator = self.evaluator
        evaluator.stack.append(self.candidate.element(evaluator, self.place))
        run_until(evaluator, {self.meeting}, self.candidate.inside)

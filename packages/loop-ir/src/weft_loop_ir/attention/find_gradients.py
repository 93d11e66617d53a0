"""Finds backward of attention in a schedule: matmuls, a pointwise kernel that reads them, more matmuls.

``scores = query @ key`` and ``share_gradients = result_gradient @ value`` are read by one kernel, element by
element; what it writes is multiplied with other matrices, by rows or by columns, or summed over matrices.
Each becomes a kernel that multiplies a tile of scores where it needs it, so that nothing of that size is
in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import sympy
import torch

from weft_loop_ir.attention.expansion import expanded_gradients
from weft_loop_ir.attention.find_attention import (
    MATMULS,
    bounds_of_keys,
    computed_score,
    is_matmul,
    without_rounding,
)
from weft_loop_ir.attention.key_bounds import KeyBounds
from weft_loop_ir.attention.masks import with_masks_computed
from weft_loop_ir.attention.operands import (
    ALONE,
    MatrixOperand,
    ScoreRows,
    SummedMatrices,
    operand_of,
    result_of,
    score_rows_of,
    sum_of_load,
)
from weft_loop_ir.bodies import (
    ADD,
    Constant,
    Conversion,
    Indirect,
    Load,
    LoopBody,
    Masked,
    Random,
    Value,
    Where,
)
from weft_loop_ir.bodies.edit import part_of
from weft_loop_ir.bodies.patterns import call, capture, match
from weft_loop_ir.bodies.replay import Replayer
from weft_loop_ir.contractions import matmul_operands
from weft_loop_ir.expressions import loop_symbol
from weft_loop_ir.ir import (
    Buffer,
    BufferView,
    Expansion,
    ExternCall,
    FusedKernel,
    Kernel,
    LoopVariable,
    Schedule,
    Stage,
    Step,
    is_dense,
)
from weft_loop_ir.loop_graph import item_writes
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.schedule.kernel_names import renamed
from weft_loop_ir.schedule.options import ScheduleOptions
from weft_loop_ir.schedule.replaced_steps import ReplacedSteps


@dataclass(frozen=True)
class ScoreMatmul:
    """``left @ right``, ``left [n, l, e]``, ``right [n, e, s]``; bodies load it from ``name``, in float32."""

    name: str
    left: MatrixOperand
    right: MatrixOperand


@dataclass(frozen=True)
class GradientMatmul:
    """``result = matrix @ other``, or ``matrix.mT @ other`` in a kernel by columns.

    The body's result is an element of ``matrix [n, l, s]``; ``result`` says where it lies.
    """

    matrix: LoopBody
    other: MatrixOperand
    result: MatrixOperand


@dataclass(frozen=True)
class GradientSum:
    """``result``: the sum of ``matrix`` over a group of matrices."""

    matrix: LoopBody
    result: str


@dataclass(frozen=True)
class AttentionGradientKernel(FusedKernel):
    """Matmuls or a sum of matrices that are computed from ``scores``, element by element; it has no stages.

    ``matmuls`` are by rows, or all by columns; else there is ``total``.  Results by columns, and the
    total, are sums over ``group``.  ``score_rows`` says what the loops ``outer`` are to a matrix and its
    row, ``bounds``: keys at which the matrices are 0, for rows whose ``sight`` is finite; None: every
    row's is.
    """

    scores: tuple[ScoreMatmul, ...]
    matmuls: tuple[GradientMatmul, ...]
    by_columns: bool
    total: GradientSum | None
    group: SummedMatrices
    score_rows: ScoreRows
    key_loop: LoopVariable
    keys: sympy.Expr
    bounds: KeyBounds | None
    sight: LoopBody | None

    @property
    def matrices(self) -> tuple[LoopBody, ...]:
        """What computes the elements of each matrix."""
        summed = () if self.total is None else (self.total.matrix,)
        return (*(matmul.matrix for matmul in self.matmuls), *summed)

    def expanded(self, buffers: Mapping[str, Buffer]) -> Expansion:
        return expanded_gradients(self, buffers)


def fuse_attention_gradients(
    schedule: Schedule,
    accept: Callable[[AttentionGradientKernel], bool],
    options: ScheduleOptions | None = None,
) -> Schedule:
    """``schedule`` with backward of those attentions in kernels of which ``accept`` takes every one.

    It is asked first for kernels that add up gradients of heads with the same keys, then for ones that do
    not.  Memory is planned anew, by ``options``.
    """
    around = ReplacedSteps(schedule)
    for place, step in around:
        if type(step) is Kernel and step.pointwise_body is not None:
            for found in _Finder(schedule, around, place, step).find():
                if all(map(accept, found.kernels)):
                    around.put(found.places, place, found.kernels)
                    break
    return around.planned(options)


@dataclass(frozen=True)
class _Found:
    places: tuple[int, ...]
    kernels: tuple[AttentionGradientKernel, ...]


class _Differs(Exception):
    """The kernel is of another kind."""


@dataclass(eq=False)
class _Finder:
    """Reads what surrounds a pointwise kernel, the step at ``place``."""

    schedule: Schedule
    around: ReplacedSteps
    place: int
    kernel: Kernel

    def __post_init__(self) -> None:
        self.buffers = self.schedule.buffers

    def find(self) -> Iterator[_Found]:
        """The kernels that can take the place of this one and of the matmuls around it; the best first.

        Each program of one by columns goes through a group of matrices, or through one.
        """
        try:
            self.calls = self._score_calls()
            self._read_loops()
            self.scores = {str(call.outputs[0]): self._score(call) for call in self.calls.values()}
            self.bodies = {name: self._body(name) for name in self.kernel.writes}
            found = self._find(adds_groups=True)
            yield found
            if any(kernel.by_columns and kernel.group != ALONE for kernel in found.kernels):
                yield self._find(adds_groups=False)
        except _Differs:
            return

    def _find(self, adds_groups: bool) -> _Found:
        matmuls, sums, places = self._readers(adds_groups)
        kinds: dict[tuple[bool, SummedMatrices], list[GradientMatmul]] = {}
        for matmul, by_columns, group in sorted(matmuls, key=lambda p: not p[1]):
            kinds.setdefault((by_columns, group), []).append(matmul)
        kernels = [self._kernel(tuple(chosen), *kind, None) for kind, chosen in kinds.items()]
        kernels += [self._kernel((), False, group, total) for total, group in sums]
        for earlier, later in itertools.combinations(kernels, 2):
            if not set(earlier.writes).isdisjoint(later.reads):  # an input that is written in place
                raise _Differs
        return _Found((*self.calls, self.place, *places), tuple(kernels))

    # -- what the kernel reads ---------------------------------------------------------------------------

    def _writer(self, name: str) -> Kernel | None:
        return self.around.writer(name, self.place)

    def _score_calls(self) -> dict[int, ExternCall]:
        """The matmuls that this kernel alone reads, where it stores, by place."""
        body = self.kernel.stages[0].body
        stored = {store.index for store in body.stores()}
        loaded: dict[str, set[sympy.Expr]] = {}
        for instruction in body.instructions:
            if isinstance(instruction, Load):
                loaded.setdefault(instruction.buffer, set()).add(instruction.index)
            elif isinstance(instruction, Masked | Random) or instruction.operation.combines:
                raise _Differs
        calls = {}
        for name in self.kernel.reads:
            written = self.around.written(name)
            call = self.around.step(written[0]) if len(written) == 1 else None
            if not isinstance(call, ExternCall) or not is_matmul(call, self.schedule):
                continue
            is_read_here = self.around.only_reader(name, written[0]) == self.place
            if is_read_here and loaded.get(name) == stored:
                calls[written[0]] = call
        sizes = {self._size(call) for call in calls.values()}
        if len(stored) != 1 or len(sizes) != 1:
            raise _Differs
        for place, call in calls.items():
            if not self.around.stay({v.buffer for v in call.views}, place, self.place):
                raise _Differs
        (self.index,), (self.size,) = stored, sizes
        return calls

    def _size(self, call: ExternCall) -> tuple[sympy.Expr, ...]:
        """Of a batch of matrices that ``call`` gives."""
        size = self.buffers[str(call.outputs[0])].layout.size
        return (sympy.S.One,) * (3 - len(size)) + size

    def _read_loops(self) -> None:
        """The loops over rows, and the one over keys, which may have been one."""
        batch, queries, keys = self.size
        inner = [v for v in self.kernel.outer if v.size != 1 and self.index.coeff(v.symbol) == 1]
        if len(inner) != 1:
            raise _Differs
        (loop,) = inner
        self.key = LoopVariable(loop_symbol("key", 0), keys)
        rest = tuple(v for v in self.kernel.outer if v is not loop)
        rows = sympy.cancel(loop.size / keys)
        if rows == 1:
            self.moved = {loop.symbol: self.key.symbol}
        elif rows.is_Integer or (loop.size / keys).as_numer_denom()[1] == 1:
            row = LoopVariable(loop_symbol("row", 0), rows)
            rest = (*rest, row)
            self.moved = {loop.symbol: row.symbol * keys + self.key.symbol}
        else:
            raise _Differs
        self.outer = rest
        index = sympy.expand(self.index.xreplace(self.moved))
        stage = Stage((self.key,), self.kernel.stages[0].body)
        around_keys = replace(self.kernel, outer=rest, stages=(stage,))
        score_rows = score_rows_of(index, around_keys, batch, queries, keys)
        if score_rows is None:
            raise _Differs
        self.score_rows = score_rows

    def _score(self, call: ExternCall) -> ScoreMatmul:
        left, right = (operand_of(v, self._writer) for v in matmul_operands(call)[:2])
        return ScoreMatmul(str(call.outputs[0]), left, right)

    def _body(self, name: str) -> LoopBody:
        """What computes an element that is stored in ``name``, over the rows and keys."""
        body = self.kernel.stages[0].body
        computed = {
            str(call.outputs[0]): computed_score(call, self.score_rows, self.buffers)
            for call in self.calls.values()
        }

        def dtype_of(buffer: str) -> torch.dtype:
            return torch.float32 if buffer in computed else self.buffers[buffer].layout.dtype

        def load(ops: BodyRecorder, buffer: str, index: sympy.Expr) -> Value:
            score = computed.get(buffer)
            return ops.load(buffer, index) if score is None else score(ops, index)

        store = body.only_store(name)
        if store is None:
            raise _Differs
        ops = BodyRecorder.over((*self.outer, self.key), dtype_of)
        part = part_of(body, store.value)
        result = Replayer(ops, lambda e: e.xreplace(self.moved), load).replay(part)
        scores = frozenset(computed)
        made = with_masks_computed(
            ops.body(result), scores, self.outer, self.key, self.schedule, self._writer
        )
        wide = {n for n in made.reads if dtype_of(n) == torch.float32}
        dtype = self.buffers[name].layout.dtype
        loops = (*self.outer, self.key)
        return _without_conversion(
            without_rounding(made, scores | wide, dtype, dtype_of, self.score_rows, loops)
        )

    # -- what reads it -----------------------------------------------------------------------------------

    def _readers(
        self, adds_groups: bool
    ) -> tuple[
        list[tuple[GradientMatmul, bool, SummedMatrices]],
        list[tuple[GradientSum, SummedMatrices]],
        list[int],
    ]:
        """The matmuls of what the kernel writes (with whether by columns), the sums of it, their places."""
        matmuls, sums, places = [], [], []
        for name in self.kernel.writes:
            body = self.bodies[name]
            is_kept = not self.around.is_own(name)
            for place in self.around.readers(name):
                step = self.around.step(place)
                by_columns = self._multiplied(step, place, name)
                summed = None if by_columns is not None else self._summed(step, place, name)
                if by_columns is not None:
                    assert isinstance(step, ExternCall)
                    matmul = self._matmul(step, name)
                    adds = by_columns and adds_groups
                    result = result_of(matmul.result, place, self.around, adds)
                    matmul = replace(matmul, result=result.operand)
                    matmuls.append((matmul, by_columns, result.group))
                    places += [place, *result.places]
                elif summed is not None:
                    result_name, group = summed
                    sums.append((GradientSum(body, result_name), group))
                    places.append(place)
                else:
                    is_kept = True
            if is_kept:
                sums.append((GradientSum(body, name), ALONE))
        if not matmuls or any(p < self.place for p in places):
            raise _Differs
        return matmuls, sums, places

    def _multiplied(self, step: Step | None, place: int, name: str) -> bool | None:
        """Whether ``step`` multiplies the matrices in ``name`` by columns or by rows; None: neither."""
        if not isinstance(step, ExternCall) or step.operator not in MATMULS:
            return None
        if not is_matmul(step, self.schedule) or not self._alone_writes(step, place):
            return None
        left, right, _ = matmul_operands(step)
        if (left.buffer == name) == (right.buffer == name):
            return None
        view = left if left.buffer == name else right
        turned = self._is_turned(view)
        return None if turned is None else turned is (view is left)

    def _alone_writes(self, step: Step, place: int) -> bool:
        return all(self.around.is_made_at(name, place) for name in item_writes(step))

    def _is_turned(self, view: BufferView) -> bool | None:
        """Whether ``view`` of all matrices has rows and columns exchanged; None if it is another part."""
        batch, queries, keys = self.size
        size = (sympy.S.One,) * (3 - len(view.size)) + view.size
        stride = (queries * keys,) * (3 - len(view.stride)) + view.stride
        if view.offset != 0:
            return None
        for turned, expected, steps in (
            (False, (batch, queries, keys), (queries * keys, keys, sympy.S.One)),
            (True, (batch, keys, queries), (queries * keys, sympy.S.One, keys)),
        ):
            matches = all(
                sympy.expand(n - m) == 0 and (n == 1 or sympy.expand(s - t) == 0)
                for n, m, s, t in zip(size, expected, stride, steps, strict=True)
            )
            if matches:
                return turned
        return None

    def _summed(
        self, step: Step | None, place: int, name: str
    ) -> tuple[str, SummedMatrices] | None:
        """The result and the group of matrices, if ``step`` only sums those in ``name``."""
        found = sum_of_load(step, name) if type(step) is Kernel else None
        if type(step) is not Kernel or found is None or not self._alone_writes(step, place):
            return None
        inner = [v for v in step.inner_loops if v.size != 1]
        if len(inner) != 1:
            return None
        load, store, result = found
        symbol, count = inner[0].symbol, inner[0].size
        distance = load.coeff(symbol)
        kept = [(v.symbol, v.size, store.coeff(v.symbol)) for v in step.outer if v.size != 1]
        outermost = sympy.Add(*(v * step for v, _, step in kept if step == distance))
        rest = load - distance * symbol - store - outermost * (count - 1)
        elements = sympy.prod([n for _, n, _ in kept]) * count
        if sympy.expand(rest) != 0 or sympy.expand(elements - sympy.prod(self.size)) != 0:
            return None
        _, queries, keys = self.size
        matrices = sympy.cancel(distance / (queries * keys))
        if not matrices.is_Integer or not is_dense(self.buffers[result].layout):
            return None
        return result, SummedMatrices(count, matrices)

    # -- the kernels -------------------------------------------------------------------------------------

    def _matmul(self, call: ExternCall, name: str) -> GradientMatmul:
        left, right, _ = matmul_operands(call)
        is_left = left.buffer == name
        other = operand_of(right if is_left else left, self._writer)
        written = str(call.outputs[0])
        result = MatrixOperand.of(written, self.buffers[written].layout)
        if not is_left:
            other, result = other.turned(), result.turned()
        if any(place >= self.place for place in self.around.written(other.buffer)):
            raise _Differs
        return GradientMatmul(self.bodies[name], other, result)

    def _kernel(
        self,
        matmuls: tuple[GradientMatmul, ...],
        by_columns: bool,
        group: SummedMatrices,
        total: GradientSum | None,
    ) -> AttentionGradientKernel:
        matrices = [p.matrix for p in matmuls] + ([] if total is None else [total.matrix])
        loads = dict.fromkeys(n for matrix in matrices for n in matrix.reads)
        scores = tuple(score for name, score in self.scores.items() if name in loads)
        operands = [o for s in scores for o in (s.left, s.right)] + [p.other for p in matmuls]
        reads = [o.buffer for o in operands] + [n for n in loads if n not in self.scores]
        writes = [p.result.buffer for p in matmuls] + ([total.result] if total else [])
        kind = "dkdv" if by_columns else f"sum_{total.result}" if total else "dq"
        if by_columns and group != ALONE:
            kind += f"_{group.count}_{group.step}"
        return AttentionGradientKernel(
            renamed(self.kernel.name, f"attention_backward_{kind}"),
            self.outer,
            (),
            (),
            tuple(dict.fromkeys(reads)),
            tuple(writes),
            self.kernel.origins,
            scores,
            matmuls,
            by_columns,
            total,
            group,
            self.score_rows,
            self.key,
            self.size[2],
            *self._bounds(matrices),
        )

    def _bounds(self, matrices: list[LoopBody]) -> tuple[KeyBounds | None, LoopBody | None]:
        """The keys at which an element of any matrix is not 0, and a row's sight if some may see none.

        A kernel one of whose matrices is not made of weights is no attention's.
        """
        weights = [_weights(matrix) for matrix in matrices]
        if any(weight is None for weight in weights):
            raise _Differs
        elements, sights = zip(*(weight for weight in weights if weight is not None), strict=True)
        loops = (*self.outer, self.key)
        found = {
            bounds_of_keys(element, name, self.score_rows, loops, self.buffers[name].layout)
            for element in elements
            for name in [n for n in element.reads if n in self.scores][:1]
        }
        bounds = found.pop() if len(found) == 1 else None
        if bounds is None or bounds.every_row_sees:
            return bounds, None
        is_one = len(set(sights)) == 1 and not self._varies_with_key(sights[0])
        return (bounds, sights[0]) if is_one else (None, None)

    def _varies_with_key(self, body: LoopBody) -> bool:
        """Whether ``body`` reads the key's position, or what is loaded at a computed place."""
        return body.holds(Masked, Indirect) or self.key.symbol in body.free_symbols


def _without_conversion(body: LoopBody) -> LoopBody:
    """``body`` with a float32 result, where that is converted last."""
    result = body.result
    assert result is not None
    instruction = body.at(result)
    while isinstance(instruction, Conversion) and body.at(instruction.value).dtype == torch.float32:
        result = instruction.value
        instruction = body.at(result)
    return part_of(body, result)


def _weights(matrix: LoopBody) -> tuple[LoopBody, LoopBody] | None:
    """``x`` of a weight ``exp(x - largest - logarithm)`` that is a factor of ``matrix``, and its row's sight.

    That is the sum of the row's two numbers, finite where it sees a key.  None: there is no such factor.
    """
    found: set[tuple[Value, Value, Value]] = set()

    def vanishes(value: Value) -> bool:
        """Whether ``value`` is 0 where the weights are."""
        instruction = matrix.at(value)
        parts = match(matrix.at, value, WEIGHT)
        if parts is not None:
            found.add((parts[SCORE], parts[LARGEST], parts[LOGARITHM]))
            return True
        if isinstance(instruction, Constant):
            return instruction.number == 0
        rule = VANISHES.get(instruction.operation.name)
        operands = instruction.operands
        if isinstance(instruction, Where):
            operands = (instruction.chosen, instruction.other)
        return rule is not None and rule(map(vanishes, operands))

    result = matrix.result
    assert result is not None
    if not vanishes(result) or len(found) != 1:
        return None
    element, *numbers = found.pop()
    total = ADD.instruction(tuple(numbers), torch.float32)
    body = LoopBody((*matrix.instructions, total))
    return LoopBody(matrix.instructions, element), part_of(body, Value(len(matrix.instructions)))


SCORE, LARGEST, LOGARITHM = capture(), capture(), capture()
WEIGHT = call(
    "exp",
    call("sub", call("sub", SCORE, LARGEST, dtype=torch.float32), LOGARITHM, dtype=torch.float32),
)

VANISHES: Mapping[str, Callable[[Iterator[bool]], bool]] = {
    "to_dtype": next,
    "neg": next,
    "truediv": next,
    "mul": lambda operands: any(list(operands)),
    "add": all,
    "sub": all,
    "where": all,
}
"""Which operands have to be 0 for a result of 0; the condition of ``where`` is left out."""

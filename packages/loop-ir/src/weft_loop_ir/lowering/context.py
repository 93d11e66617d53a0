"""The state of one lowering: buffers, nodes, and when a lazy tensor becomes a buffer."""

from __future__ import annotations

import contextlib
import itertools
import operator as operators
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from weft_loop_ir._torch import OpOverload, is_negative, is_symbolic_number, is_view_operator
from weft_loop_ir.bodies import Value
from weft_loop_ir.expressions import (
    contiguous_stride,
    dot,
    evaluate_expression,
    loop_symbol,
    to_expression,
)
from weft_loop_ir.ir import (
    Buffer,
    BufferKind,
    BufferView,
    ExternCall,
    Layout,
    LoopVariable,
    Region,
    SymbolDefinition,
)
from weft_loop_ir.loop_graph import LoopNode
from weft_loop_ir.lowering.data_dependence import READ, DataSymbols
from weft_loop_ir.lowering.registry import NoLowering
from weft_loop_ir.lowering.tensors import Cost, Index, InnerFunction, Storage, TensorValue, whole
from weft_loop_ir.ops import REDUCTIONS, STORAGE_ONLY
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.size_float import SizeFloat
from weft_loop_ir.unsupported import Unsupported

ReductionFunction = Callable[[BodyRecorder, Index, Index], Value]


@dataclass(frozen=True)
class LoweringOptions:
    """When lowering materialises a lazy tensor, and how operators become loops.

    ``max_instructions``: a tensor is realised when its body would exceed so many instructions.
    ``max_reads``: likewise when it would read more than so many buffers.
    ``shared_instructions``: one that has several users is when it costs more than so many instructions, or
    contains a costly operation.
    ``widened_instructions``: the former, where memory holds fewer bytes of what it is made of.
    ``shared_reads``: likewise when it costs more than so many reads.
    ``round_low_precision``: keep eager's rounding to float16 and bfloat16 after every operator; without it a
    chain of operators rounds once.
    ``max_lazy_concatenation``: the number of inputs up to which a concatenation that only pointwise operators
    use is computed in place by selection.
    ``selects_through_views``: also where one such operator reads it through views, which may part its dims.
    ``deterministic``: keep float additions to an indexed place extern, where torch has an order for them; by
    default where torch's programs ask for it.
    ``inlined_matmuls``: matmuls with at most so many multiplications each are loops instead of
    calls of a library, or a quarter of that, all of a batch together, where the right one's rows are strided.
    ``inlined_vectors``: so are products of matrices of at most so many elements with vectors.
    ``inlined_columns``: so are products with matrices of at most so many rows and columns.
    ``inlined_terms``: so are products of rows of at most so many elements with any matrix.
    ``written_out_terms``: reductions of at most so many elements are written out, and no loop.
    ``scans``: scans along a dimension are one node with ``ops.scan``; without it they are loops or extern.
    ``wide_moments``: deviations of float32 and halves are accumulated in float64, as eager's on the CPU are.
    ``eager_numerics``: loops compute what they give the same bits for as eager; else its operator is called.
    """

    max_instructions: int = 96
    max_reads: int = 12
    shared_instructions: int = 6
    widened_instructions: int = 6
    shared_reads: int = 1
    round_low_precision: bool = True
    max_lazy_concatenation: int = 3
    selects_through_views: bool = False
    deterministic: bool = field(default_factory=torch.are_deterministic_algorithms_enabled)
    inlined_matmuls: int = 0
    inlined_vectors: int = 0
    inlined_columns: int = 0
    inlined_terms: int = 0
    written_out_terms: int = 0
    scans: bool = False
    wide_moments: bool = False
    eager_numerics: bool = False


class LoweringContext:
    """What lowering rules work with.  ``node`` is the FX node that is being lowered.

    With ``inlines`` no tensor becomes a buffer because of what it costs.
    """

    def __init__(self, options: LoweringOptions, *, inlines: bool = False) -> None:
        self.options = options
        self.inlines = inlines
        self.buffers: dict[str, Buffer] = {}
        self.nodes: list[LoopNode | ExternCall | Region] = []
        self.open_blocks = [self.nodes]  # the innermost last
        self.node: torch.fx.Node | None = None
        self.row_block = 0  # what is appended now is fused with nothing of another one
        self.operator_names: dict[
            str, str
        ] = {}  # of the nodes that loop nests are made of, in order
        self.data = DataSymbols()
        self.known_symbols: Set[sympy.Symbol] = frozenset()  # of inputs and counters
        self._buffer_numbers = itertools.count()
        self._extern_numbers = itertools.count()
        self._counter_numbers = itertools.count()

    @contextlib.contextmanager
    def block(self) -> Iterator[list[LoopNode | ExternCall | Region]]:
        """Collect the nodes that are appended meanwhile: those of a region's block."""
        outer, self.nodes = self.nodes, []
        self.open_blocks.append(self.nodes)
        try:
            with self.data.block():
                yield self.nodes
        finally:
            self.open_blocks.pop()
            self.nodes = outer

    # -- facts about the current node ------------------------------------------------------------------

    @property
    def call(self) -> torch.fx.Node:
        """The current node, in a rule of an operator."""
        assert self.node is not None
        return self.node

    @property
    def operator(self) -> OpOverload:
        """What the current node calls."""
        assert isinstance(self.call.target, OpOverload)
        return self.call.target

    @property
    def meta(self) -> Any:
        return self.call.meta["val"]

    def from_start(self, position: Any, extent: sympy.Expr) -> sympy.Expr:
        """A position in a dimension, counted from its start where it is negative: from its end.

        Raises NoLowering where nothing tells the sign of a symbolic position.
        """
        expression = to_expression(position)
        negative = expression.is_negative
        if negative is None:
            negative = is_negative(expression, self.meta)
        if negative is None:
            raise NoLowering("a position of unknown sign")
        return expression + extent if negative else expression

    def meta_size(self, position: int | None = None) -> tuple[sympy.Expr, ...]:
        """The size of the current node's result (of result ``position`` where there are several)."""
        fake = self.meta if position is None else self.meta[position]
        return tuple(to_expression(s) for s in fake.shape)

    def meta_dtype(self, position: int | None = None) -> torch.dtype:
        fake = self.meta if position is None else self.meta[position]
        dtype = fake.dtype
        assert isinstance(dtype, torch.dtype)
        return dtype

    def meta_device(self) -> torch.device:
        return torch.device(self.meta.device)

    def origin(self) -> frozenset[str]:
        if self.node is None:
            return frozenset()
        self.operator_names[self.node.name] = _operator_name(self.node.target)
        return frozenset((self.node.name,))

    def buffer_dtype(self, name: str) -> torch.dtype:
        return self.buffers[name].layout.dtype

    # -- lazy tensors ----------------------------------------------------------------------------------

    def pointwise(
        self,
        size: tuple[sympy.Expr, ...],
        dtype: torch.dtype,
        device: torch.device,
        function: InnerFunction,
        inputs: Sequence[TensorValue] = (),
        instructions: int = 1,
        costly: bool = False,
    ) -> TensorValue:
        """A lazy tensor whose element at an index is ``function(ops, index)``, of dtype ``dtype``.

        ``inputs`` are the tensors that the function loads from.
        """
        cost = Cost(instructions, frozenset(), costly)
        origins = self.origins_of(inputs)
        for tensor in inputs:
            cost = cost.plus(tensor.cost)
        if not self.inlines and (
            cost.instructions > self.options.max_instructions
            or len(cost.reads) > self.options.max_reads
        ):
            cost = Cost(instructions, frozenset(), costly)
            for tensor in inputs:
                if tensor.cost.instructions > 1:
                    self.realize(tensor)
                cost = cost.plus(tensor.cost)
        return whole(Storage(size, dtype, device, function=function, cost=cost, origins=origins))

    def result(
        self,
        function: InnerFunction,
        inputs: Sequence[TensorValue] = (),
        instructions: int = 1,
        costly: bool = False,
    ) -> TensorValue:
        """As :meth:`pointwise`, of the size and dtype that the current node's one result has."""
        size, dtype, device = self.meta_size(), self.meta_dtype(), self.meta_device()
        return self.pointwise(size, dtype, device, function, inputs, instructions, costly)

    def copy_of(
        self, tensor: TensorValue, stride: tuple[sympy.Expr, ...] | None = None
    ) -> TensorValue:
        """A lazy copy of ``tensor``: a storage of its own."""
        storage = Storage(
            tensor.size,
            tensor.dtype,
            tensor.device,
            function=tensor.load,
            cost=tensor.cost,
            origins=self.origin() | tensor.storage.origins,
            stride=stride,
        )
        return whole(storage)

    # -- buffers ---------------------------------------------------------------------------------------

    def new_counter(self) -> sympy.Symbol:
        """A symbol for a counter of a loop."""
        return sympy.Symbol(f"counter{next(self._counter_numbers)}", integer=True)

    def new_size(self) -> sympy.Symbol:
        """A symbol for a size that a call gives."""
        symbol = sympy.Symbol(f"size{next(self._counter_numbers)}", integer=True)
        self.data.defined.add(symbol)
        return symbol

    def new_buffer(
        self,
        size: tuple[sympy.Expr, ...],
        stride: tuple[sympy.Expr, ...],
        dtype: torch.dtype,
        device: torch.device,
    ) -> str:
        name = f"buf{next(self._buffer_numbers)}"
        while name in self.buffers:
            name = f"buf{next(self._buffer_numbers)}"
        layout = Layout(device, dtype, size, stride)
        self.buffers[name] = Buffer(name, BufferKind.INTERMEDIATE, layout)
        return name

    def buffer_tensor(self, name: str) -> TensorValue:
        """The tensor that is the whole of a buffer."""
        of = self.buffers[name].layout
        cost = Cost(1, frozenset((name,)), False)
        return whole(
            Storage(of.size, of.dtype, of.device, buffer=name, stride=of.stride, cost=cost)
        )

    def realize(self, tensor: TensorValue) -> TensorValue:
        """Materialise the tensor's storage, if it isn't; returns ``tensor``, which now reads the buffer."""
        storage = tensor.storage
        if storage.buffer is None:
            name = self.new_buffer(storage.size, storage.stride, storage.dtype, storage.device)
            self.write_node(name, storage.size, storage.stride, storage.load, storage.origins)
            self._bind(storage, name)
        return tensor

    def realize_computed(self, tensor: TensorValue) -> TensorValue:
        """Materialise ``tensor`` unless an element costs no more than a load and a conversion."""
        cost = tensor.cost
        if cost.instructions > 2 or len(cost.reads) > 1 or cost.costly:
            self.realize(tensor)
        return tensor

    def _bind(self, storage: Storage, name: str) -> None:
        storage.buffer = name
        storage.function = None
        storage.cost = Cost(1, frozenset((name,)), False)

    def write_node(
        self,
        name: str,
        size: tuple[sympy.Expr, ...],
        stride: tuple[sympy.Expr, ...],
        function: InnerFunction,
        origins: frozenset[str],
        offset: sympy.Expr = sympy.S.Zero,
    ) -> None:
        """Append the pointwise node that writes ``function`` to a strided window of buffer ``name``."""

        def program(ops: BodyRecorder, index: Index) -> None:
            ops.store(name, dot(index, stride, offset), function(ops, index))

        self.program_node(size, program, origins)

    def program_node(
        self,
        size: tuple[sympy.Expr, ...],
        program: Callable[[BodyRecorder, Index], None],
        origins: frozenset[str],
    ) -> None:
        """Append the pointwise node over ``size`` whose body is what ``program`` records."""
        loops = tuple(LoopVariable(loop_symbol("i", k), extent) for k, extent in enumerate(size))
        ops = self.recorder(loops)
        program(ops, tuple(v.symbol for v in loops))
        self.append(loops, (), ops, origins)

    def origins_of(self, inputs: Sequence[TensorValue]) -> frozenset[str]:
        """The current node, and those of ``inputs`` that are computed with it."""
        origins = self.origin()
        for tensor in inputs:
            if not tensor.storage.is_realized:
                origins |= tensor.storage.origins
        return origins

    def recorder(self, loops: tuple[LoopVariable, ...]) -> BodyRecorder:
        """What records the body of a node over ``loops``."""
        rounds = self.options.round_low_precision
        return BodyRecorder.over(loops, self.buffer_dtype, round_low_precision=rounds)

    def append(
        self,
        loops: tuple[LoopVariable, ...],
        reduction_loops: tuple[LoopVariable, ...],
        ops: BodyRecorder,
        origins: frozenset[str],
    ) -> None:
        """Append the node whose body ``ops`` has recorded."""
        body = ops.body()
        names = tuple(sorted(origins))
        self.nodes.append(
            LoopNode(body.writes[0], loops, reduction_loops, body, names, self.row_block)
        )

    def reduce(
        self,
        kinds: Sequence[str],
        size: tuple[sympy.Expr, ...],
        reduced: tuple[sympy.Expr, ...],
        function: ReductionFunction,
        inputs: Sequence[TensorValue],
        accumulate: torch.dtype,
        device: torch.device,
    ) -> tuple[TensorValue, ...]:
        """Append one reduction node: each of ``kinds`` of the same value, one buffer each, contiguous.

        ``function(ops, kept_index, reduced_index)`` gives the value, of dtype ``accumulate``.  The results
        have that dtype, or int64 for a position.
        """
        if any(REDUCTIONS[kind].needs_elements for kind in kinds):
            self.data.require_some(self.open_blocks, reduced)
        loops = tuple(LoopVariable(loop_symbol("i", k), extent) for k, extent in enumerate(size))
        extents_reduced = reduced or (
            sympy.S.One,
        )  # a tensor without dims reduces over one element
        inner = tuple(
            LoopVariable(loop_symbol("r", k), extent) for k, extent in enumerate(extents_reduced)
        )
        ops = self.recorder(loops + inner)
        index = tuple(v.symbol for v in loops)
        value = function(ops, index, tuple(v.symbol for v in inner[: len(reduced)]))
        stride = contiguous_stride(size)
        results = []
        for kind in kinds:
            dtype = REDUCTIONS[kind].result(accumulate)
            name = self.new_buffer(size, stride, dtype, device)
            ops.store(
                name, dot(index, stride, sympy.S.Zero), ops.reduction(kind, accumulate, value)
            )
            results.append(self.buffer_tensor(name))
        self.append(loops, inner, ops, self.origins_of(inputs))
        return tuple(results)

    # -- extern calls ----------------------------------------------------------------------------------

    def as_buffer_view(self, tensor: TensorValue) -> BufferView:
        """``tensor`` as a strided window on a buffer; realises its storage."""
        self.realize(tensor)
        assert tensor.stride is not None and tensor.storage.buffer is not None
        return BufferView(
            tensor.storage.buffer, tensor.size, tensor.stride, tensor.offset, tensor.dtype
        )

    def extern_argument(self, argument: Any) -> Any:
        """An operator's argument as an :class:`ExternCall` holds it."""
        if isinstance(argument, TensorValue):
            return self.as_buffer_view(argument)
        if isinstance(argument, list | tuple):
            return type(argument)(self.extern_argument(a) for a in argument)
        if is_symbolic_number(argument) and not isinstance(argument, torch.SymInt):
            raise Unsupported(
                "symbolic number", str(argument), "Only integers and floats may be symbolic."
            )
        return argument

    def extern(
        self,
        operator: OpOverload,
        arguments: Sequence[Any],
        keywords: dict[str, Any],
        fakes: Any,
        reason: str,
        out_variant: OpOverload | None = None,
        into: str | None = None,
    ) -> Any:
        """Append a call of ``operator``; ``fakes`` (a FakeTensor, or a sequence) says what it returns.

        ``into``: the buffer that its one result overwrites.
        """
        assert self.node is not None
        call_arguments = tuple(self.extern_argument(a) for a in arguments)
        call_keywords = {key: self.extern_argument(a) for key, a in keywords.items()}
        several = isinstance(fakes, list | tuple)
        results: list[TensorValue | None] = []
        for position, fake in enumerate(fakes if several else (fakes,)):
            # An operator may give None for a result that only its backward would read.
            wanted = isinstance(fake, torch.Tensor) and (
                not several or is_read(self.node, position)
            )
            if wanted and not is_view_operator(operator):
                _check_promise(operator, fake)
            if into is not None:
                results.append(self.buffer_tensor(into))
            else:
                results.append(self._extern_result(operator, fake) if wanted else None)
        names = tuple(None if r is None else r.storage.buffer for r in results)
        given = enumerate(fakes if several else (fakes,))
        defines = self.data.sizes_given_by(
            [(k, fake) for k, fake in given if results[k] is not None], self.known_symbols
        )
        self.nodes.append(
            ExternCall(
                f"extern{next(self._extern_numbers)}",
                operator,
                call_arguments,
                call_keywords,
                names,
                reason,
                self.node.name,
                out_variant,
                defines=defines,
            )
        )
        return tuple(results) if several else results[0]

    def read_number(self, tensor: TensorValue, symbol: sympy.Symbol) -> None:
        """Append what reads the only element of ``tensor`` into the host program's ``symbol``."""
        if symbol in self.data.defined:
            return
        assert self.node is not None
        self.data.defined.add(symbol)
        self.nodes.append(
            ExternCall(
                f"extern{next(self._extern_numbers)}",
                READ,
                (self.as_buffer_view(tensor),),
                {},
                (None,),
                "a number of the host program",
                self.node.name,
                defines=(SymbolDefinition(symbol, 0, None),),
            )
        )

    def make_again(
        self,
        name: str,
        operator: OpOverload,
        view: BufferView,
        keywords: dict[str, Any],
        reason: str,
        defines: tuple[SymbolDefinition, ...],
    ) -> None:
        """Append a call on ``view`` whose result becomes the buffer ``name``, whatever that was before."""
        number = next(self._extern_numbers)
        self.nodes.append(
            ExternCall(
                f"extern{number}",
                operator,
                (view,),
                keywords,
                (name,),
                reason,
                self.call.name,
                defines=defines,
            )
        )

    def _extern_result(self, operator: OpOverload, fake: torch.Tensor) -> TensorValue:
        size = tuple(to_expression(s) for s in fake.shape)
        stride = tuple(to_expression(s) for s in fake.stride())
        if operator.namespace == "aten":
            stride = storage_stride(fake)  # fakes may be expanded as operands are; results are not
        name = self.new_buffer(size, stride, fake.dtype, torch.device(fake.device))
        return self.buffer_tensor(name)


def is_read(node: torch.fx.Node, position: int) -> bool:
    """Whether anything may read one of the results of a node that has several."""
    return any(
        user.target is not operators.getitem or user.args[1] == position for user in node.users
    )


def _check_promise(operator: OpOverload, fake: torch.Tensor) -> None:
    """Refuse strides with which no tensor can hold a new result: elements of it would share memory.

    Those of Fourier transforms over several dims are so in torch 2.11, and what reads them can't be trusted.
    """
    size = [to_expression(n) for n in fake.shape]
    stride = [to_expression(s) for s in fake.stride()]
    symbols = {symbol for extent in (*size, *stride) for symbol in extent.free_symbols}
    numbers = dict(zip(sorted(symbols, key=str), sympy.primerange(1000, 10**6), strict=False))
    try:
        steps, extents = ([evaluate_expression(e, numbers) for e in es] for es in (stride, size))
    except ZeroDivisionError:
        return  # no call has these sizes
    if min(extents, default=0) < 0:
        return  # nor these
    reach = 0
    for step, extent in sorted(zip(steps, extents, strict=True)):
        if step == 0 or extent <= 1:
            continue
        if step <= reach:
            hint = "Call it outside the compiled function."
            raise Unsupported("strides that overlap", f"{operator} promises {fake.stride()}", hint)
        reach += step * (extent - 1)


def storage_stride(fake: torch.Tensor) -> tuple[sympy.Expr, ...]:
    """The strides of a FakeTensor if a buffer can have them (no two elements share memory).

    Contiguous strides else.
    """
    size = tuple(to_expression(s) for s in fake.shape)
    stride = tuple(to_expression(s) for s in fake.stride())
    if any(s == 0 and n != 1 and n != 0 for n, s in zip(size, stride, strict=True)):
        return contiguous_stride(size)
    return stride


def constant_tensor(
    context: LoweringContext,
    size: tuple[sympy.Expr, ...],
    value: bool | int | float | sympy.Expr,
    dtype: torch.dtype,
    device: torch.device,
) -> TensorValue:
    """A lazy tensor with ``value`` everywhere."""
    compute = compute_dtype(dtype)

    def function(ops: BodyRecorder, index: Index) -> Value:
        return ops.to_dtype(ops.number(value, compute), dtype)

    return context.pointwise(size, dtype, device, function)


def rounded_scalar(
    ops: BodyRecorder, value: bool | int | float | sympy.Expr | SizeFloat, dtype: torch.dtype
) -> Value:
    """As :func:`scalar`, of what arithmetic on ``dtype`` is done in: rounded to ``dtype`` first."""
    compute = compute_dtype(dtype)
    if compute == dtype:
        return ops.number(value, dtype)
    if isinstance(value, bool | int | float):
        return ops.number(float(torch.tensor(value, dtype=dtype)), compute)
    return ops.to_dtype(ops.to_dtype(ops.number(value, torch.float64), dtype), compute)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that arithmetic on ``dtype`` is done in."""
    return torch.float32 if dtype in STORAGE_ONLY else dtype


def _operator_name(target: Any) -> str:
    """``aten::add`` for an overload of that, the plain name for other functions."""
    if isinstance(target, OpOverload):
        return str(target._schema.name)
    return str(getattr(target, "__name__", target))

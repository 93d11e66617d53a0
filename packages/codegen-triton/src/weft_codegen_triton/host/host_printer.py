"""Prints the host program: a Python module whose function ``compute`` runs the steps of a schedule in order.

``prepare(inputs, constants)``, where there is one, runs the head.  It gives tensors that ``compute`` takes
after ``inputs``, then those that only ``finish`` takes, after these.  ``compute(inputs, constants, stream)``
runs all steps but head and tail and gives tensors: those of ``returned`` buffers first, which a recording
copies for the caller or shares with it, then those of ``donated`` ones, which it may donate, then those that
the tail needs.  It takes inputs that nothing needs after it out of the list ``inputs``, and drops each when
its last reader has run.  ``finish(inputs, constants, stream, buffers)`` runs the tail on them and gives the
results.  A CUDA graph records ``compute`` only, which raises
IndicesTooLarge for sizes that kernels have too few bits for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sympy
from weft_loop_ir import (
    Branch,
    BufferKind,
    BufferView,
    ExternCall,
    HostWalk,
    Item,
    Loop,
    Region,
    Requirement,
    Schedule,
    Step,
    SymbolDefinition,
    SymbolInput,
    bytes_outside_arena,
    devices_of,
    item_reads,
    item_writes,
    needs_check,
    size_hints,
)

from weft_codegen_triton.host.expressions import (
    print_bound,
    print_magnitude,
    print_size,
    print_strided,
    print_tuple,
)
from weft_codegen_triton.host.extern_calls import (
    print_argument,
    print_definition,
    print_settle,
    print_sharing,
    reads_number,
    returns_list,
)
from weft_codegen_triton.host.printed_host import (
    IS_ALIGNED,
    KernelLaunch,
    LaunchArgument,
    LaunchPrinter,
    PrintedHost,
    aligning_products,
    blocks_of,
)
from weft_codegen_triton.host.regions import every_step, print_branch, print_loop, read_within
from weft_codegen_triton.kernel.aligned_sizes import (
    SIZE_MULTIPLE,
    aligned_products,
    is_multiple,
)
from weft_codegen_triton.kernel.index_bounds import largest
from weft_codegen_triton.recordable import (
    head_length,
    static_bytes,
    tail_length,
)

ALIGNMENT = 16
"""Bytes; kernels are compiled for memory that begins at a multiple of it."""

ALLOCATION_ALIGNMENT = 512
"""Bytes to whose multiples torch rounds what it allocates on a GPU."""
LARGE_BLOCK = 1 << 20
"""Bytes above which what torch allocates on a GPU shares segments with other large blocks."""
MIN_RESERVED = 1 << 21
"""Bytes from which it is worth while to reserve memory."""
MIN_SEGMENT = 10 << 20
"""Bytes of the smallest segment that torch makes as large as asked; for less it makes one of 20 MiB."""

MAX_MATMULS_BESIDE_RECORDINGS = 2
"""Matmuls of the tail for which it changes streams, which takes the host some 15 µs each."""


def print_host(
    schedule: Schedule, launches: Mapping[str, Sequence[KernelLaunch]], index_limit: int
) -> PrintedHost:
    """The host program of ``schedule``; ``launches`` gives those of each step of kernels, by its name.

    Indices that sizes bound have to be below ``index_limit``.
    """
    return _HostPrinter(schedule, launches, index_limit).print()


class _HostPrinter(HostWalk):
    def __init__(
        self, schedule: Schedule, launches: Mapping[str, Sequence[KernelLaunch]], index_limit: int
    ) -> None:
        super().__init__(schedule)
        self.index_limit = index_limit
        printed = [launch.printed for launch in itertools.chain.from_iterable(launches.values())]
        self.bounds = largest(bound for kernel in printed for bound in kernel.bounds)
        hints = size_hints(schedule.symbols)
        self.aligned = aligned_products(aligning_products(printed, schedule), hints)
        self.begins_aligned = all(is_multiple(product, hints) for product in self.aligned)
        varied = {
            launch.function
            for launch in itertools.chain.from_iterable(launches.values())
            if self.aligned and launch.printed.function.for_aligned(self.aligned).aligned
        }
        self.kernel_launches = launches
        self.lines: list[str] = []
        self.prepared: list[str] = []  # buffers that are handed on after the inputs
        self.result_numbers: Mapping[str, int] = {}  # of the buffers that ``compute`` gives
        self.is_beside_recordings = False  # where matmuls that are being printed run
        self.moved: list[str] = []  # what is written, maybe in a copy that is aligned
        self.launches = LaunchPrinter(self.emit, varied)
        self.objects: dict[str, Any] = {}
        self.tensors: dict[str, str] = {}  # buffers to the variable of their tensor
        self.pointers: dict[str, str] = {}  # buffers to the variable of their address
        self.constants = tuple(n for n, b in self.buffers.items() if b.kind is BufferKind.CONSTANT)
        self.inputs = tuple(
            i for i in schedule.inputs if not (isinstance(i, str) and i in self.constants)
        )
        self.written = frozenset(
            name
            for step in schedule.steps
            for name in item_writes(step)
            if self.buffers[name].kind.is_given
        )
        self.returned = tuple(
            dict.fromkeys(
                o.buffer
                for o in schedule.outputs
                if isinstance(o, BufferView)
                and self.buffers[o.buffer].kind in (BufferKind.OUTPUT, BufferKind.INTERMEDIATE)
            )
        )

    def emit(self, line: str) -> None:
        self.lines.append("    " * (1 + self.depth) + line)

    def constant(self, value: Any) -> str:
        """The name of a global that holds ``value``."""
        for name, known in self.objects.items():
            if known is value:
                return name
        name = f"object{len(self.objects)}"
        self.objects[name] = value
        return name

    # -- the program -------------------------------------------------------------------------------------

    def print(self) -> PrintedHost:
        steps = self.schedule.steps
        private = self.schedule.private
        copied = set() if self.schedule.gives_gradients else set(self.returned) - private
        head = head_length(self.schedule)
        edge = max(head, len(steps) - tail_length(self.schedule, copied))
        prepare, later = self._prepare(head, edge) if head else ([], [])
        touched = self._touched(steps[head:edge]) - self._touched(steps[:head])
        returned = tuple(n for n in self.returned if n in touched and n not in private)
        donated = tuple(n for n in self.returned if n in touched and n in private)
        self.result_numbers = {name: number for number, name in enumerate(returned)}
        self._bind()
        self._compare_bounds()
        self._compare_sizes()
        self._take(head, edge)
        self._align(steps[head:edge])
        self._reserve(steps[head:edge])
        self._arena()
        self._steps(head, edge)
        self._copy_back()
        early = returned + donated
        known = {*early, *self.prepared}
        carried = [n for n in self.tensors if n not in known and self._is_carried(n, edge)]
        uses_arena = bool(self.schedule.memory.offsets) and edge < len(steps)
        calls = [step for step in steps[:edge] if isinstance(step, ExternCall)]
        numbers = [d.symbol.name for call in calls for d in call.defines]
        given = [*(self.tensor(n) for n in early), *(self.tensors[n] for n in carried)]
        self.emit(f"return {self._tuple([*given, *(['arena'] if uses_arena else []), *numbers])}")
        compute, self.lines = self.lines, []
        self.prepared += later
        self._finish(edge, [*early, *carried], uses_arena, numbers)
        source = "\n".join(
            [
                *prepare,
                "def compute(inputs, constants, stream):",
                *compute,
                "",
                "",
                "def finish(inputs, constants, stream, buffers):",
                *self.lines,
                "",
            ]
        )
        return PrintedHost(
            source,
            self.objects,
            self.launches.lists,
            self.inputs,
            self.constants,
            returned,
            donated,
            head,
            len(steps) - edge,
            bool(self.bounds),
            self.aligned,
            self.begins_aligned,
            tuple(k for k, name in enumerate(self.inputs) if name in self.written),
        )

    def _steps(self, start: int, end: int) -> None:
        self.walk(range(start, end))
        self.launches.flush()

    def step(self, step: Item) -> None:
        """A step, after the launches before it where it is none."""
        if step.name not in self.kernel_launches:
            self.launches.flush()
        super().step(step)

    def visit(self, item: Item) -> None:
        """The launches of a step of kernels, a loop in one of them included; else what the step is."""
        if item.name not in self.kernel_launches:
            super().visit(item)
        for launch in self.kernel_launches.get(item.name, ()):
            self._kernel(launch)

    def branch(self, branch: Branch) -> None:
        print_branch(self, branch)

    def loop(self, loop: Loop) -> None:
        print_loop(self, loop)

    def _touched(self, steps: Iterable[Step]) -> set[str]:
        """The buffers that ``steps`` read or write."""
        return {name for step in steps for name in (*item_reads(step), *item_writes(step))}

    def _prepare(self, head: int, edge: int) -> tuple[list[str], list[str]]:
        """The function that runs the first ``head`` steps, and the buffers that only ``finish`` takes of it.

        Those that steps before ``edge`` read are noted.
        """
        self._bind()
        self._take(0, head)
        self._steps(0, head)
        made = [n for s in self.schedule.steps[:head] for n in item_writes(s)]
        needed = [n for n in made if self.last_uses[n] >= head]
        read = self._touched(self.schedule.steps[head:edge])
        self.prepared = [n for n in needed if n in read]
        later = [n for n in needed if n not in read]
        first, second = (self._tuple(self.tensors[n] for n in ns) for ns in (self.prepared, later))
        self.emit(f"return {first}, {second}")
        lines, self.lines = self.lines, []
        self.tensors, self.pointers = {}, {}
        self.hold_nothing()
        return ["def prepare(inputs, constants):", *lines, "", ""], later

    def _is_carried(self, name: str, edge: int) -> bool:
        """Whether the tail needs a tensor that a step before it has made."""
        is_made = self.buffers[name].kind in (BufferKind.OUTPUT, BufferKind.INTERMEDIATE)
        in_arena = name in self.schedule.memory.offsets
        return is_made and not in_arena and self.last_uses.get(name, -1) >= edge

    def _finish(self, edge: int, given: list[str], uses_arena: bool, numbers: list[str]) -> None:
        """The function that runs the tail, given the tensors of some buffers, and makes the results.

        ``numbers`` are those that data gave before.
        """
        self.tensors, self.pointers = {}, {}
        self.hold_nothing()
        self.hold(given)
        matmuls = sum(_is_matmul(step) for step in self.schedule.steps[edge:])
        self.is_beside_recordings = matmuls <= MAX_MATMULS_BESIDE_RECORDINGS
        self._bind()
        names = [*map(self._named, given), *(["arena"] if uses_arena else []), *numbers]
        if names:
            self.emit(f"{self._tuple(names)} = buffers")
        if edge < len(self.schedule.steps):
            self._compare_sizes()
            self._align(self.schedule.steps[edge:])
            if uses_arena:
                self._arena_views()
            self._steps(edge, len(self.schedule.steps))
            self._copy_back()
        self.allocate_unwritten()
        self._results()

    def _tuple(self, items: Iterable[str]) -> str:
        return "(" + "".join(f"{i}, " for i in items) + ")"

    def _bind(self) -> None:
        """Unpack the arguments, and the sizes that they define."""
        names = []
        for entry in self.inputs:
            if isinstance(entry, SymbolInput):
                names.append(entry.symbol.name if entry.input is None else "_")
            else:
                names.append(self._named(entry))
        names += map(self._named, self.prepared)
        if names:
            self.emit(f"{self._tuple(names)} = inputs")
        if self.constants:
            self.emit(f"{self._tuple(self._named(n) for n in self.constants)} = constants")
        for symbol in self.schedule.symbols:
            if symbol.input is not None:
                method = "stride" if symbol.is_stride else "size"
                tensor = self.tensors[symbol.input]
                self.emit(f"{symbol.symbol.name} = {tensor}.{method}({symbol.dimension})")

    def _compare_bounds(self) -> None:
        """Raise where the sizes make an index larger than kernels have bits for."""
        if not self.bounds:
            return
        factors = {factor for bound in self.bounds for product in bound for factor in product}
        names = {factor: f"size{k}" for k, factor in enumerate(sorted(factors, key=str))}
        for factor, name in names.items():
            self.emit(f"{name} = {print_magnitude(factor)}")
        tests = [f"{print_bound(bound, names)} >= {self.index_limit}" for bound in self.bounds]
        self.emit(f"if {' or '.join(tests)}:")
        self.emit("    raise IndicesTooLarge")

    def _compare_sizes(self) -> None:
        """Note whether the sizes are multiples of 16 that kernels would have such."""
        if self.aligned:
            sizes = " | ".join(map(print_size, self.aligned))
            self.emit(f"{IS_ALIGNED} = ({sizes}) % {SIZE_MULTIPLE} == 0")

    def _take(self, start: int, edge: int) -> None:
        """Take the inputs whose last reader is from ``start`` to ``edge`` out of their list.

        They are dropped in time.
        """
        lasting = {o.buffer for o in self.schedule.outputs if isinstance(o, BufferView)}
        lasting.update(symbol.input for symbol in self.schedule.symbols if symbol.input is not None)
        taken = {
            name: position
            for position, name in enumerate(self.inputs)
            if isinstance(name, str)
            and name not in lasting
            and start <= self.last_uses.get(name, edge) < edge
        }
        if taken:
            self.emit(f"for position in {tuple(taken.values())}:")
            self.emit("    inputs[position] = None")
        self.hold(taken)

    def _align(self, steps: Sequence[Step]) -> None:
        """Copy inputs and constants that kernels touch where they aren't aligned as allocations are."""
        touched = {
            name
            for step in steps
            if step.name in self.kernel_launches or isinstance(step, Region)
            for name in (*item_reads(step), *item_writes(step))
        }
        given = [n for n in self.tensors if n in touched and self.buffers[n].kind.is_given]
        self.moved = [name for name in given if name in self.written]
        for name in given:
            self._pointer(name)
        for name in self.moved:
            self.emit(f"given_{name} = {self.tensors[name]}")
        if given:
            self.emit(f"if ({' | '.join(self.pointers[n] for n in given)}) % {ALIGNMENT}:")
            for name in given:
                tensor, pointer = self.tensors[name], self.pointers[name]
                self.emit(f"    if {pointer} % {ALIGNMENT}:")
                self.emit(f"        {tensor} = copy_memory({tensor})")
                self.emit(f"        {pointer} = {tensor}.data_ptr()")

    def _copy_back(self) -> None:
        """Give what the caller passed the values of copies that were written in its place."""
        for name in self.moved:
            tensor, given = self.tensors[name], f"given_{name}"
            self.emit(f"if {tensor} is not {given}:")
            self.emit(f"    {given}.copy_({tensor})")
            self.emit(f"    {tensor} = {given}")
        self.moved = []

    def _named(self, buffer: str) -> str:
        self.tensors[buffer] = f"t_{buffer}"
        return self.tensors[buffer]

    # -- memory ------------------------------------------------------------------------------------------

    def _arena(self) -> None:
        memory = self.schedule.memory
        if not memory.offsets:  # without bytes it is read too, where all that lies in it is empty
            return
        device = self.constant(self._device())
        self.emit(
            f"arena = empty(({print_size(memory.arena_bytes)},), dtype=uint8, device={device})"
        )
        self._arena_views()

    def _reserve(self, steps: Sequence[Step]) -> None:
        """Have a recording's pool begin with one block for all large ones, so that they share it."""
        memory = self.schedule.memory
        wanted = bytes_outside_arena(
            steps, self.buffers, memory, ALLOCATION_ALIGNMENT, least=LARGE_BLOCK
        )
        if memory.arena_bytes.is_Integer and memory.arena_bytes > LARGE_BLOCK:
            wanted += -(-int(memory.arena_bytes) // ALLOCATION_ALIGNMENT) * ALLOCATION_ALIGNMENT
        if wanted >= MIN_RESERVED:
            size = max(wanted, MIN_SEGMENT)
            multiplies = any(map(_is_matmul, every_step(steps)))
            self.emit(f"reserve({size}, {self.constant(self._device())}, {multiplies})")

    def _arena_views(self) -> None:
        """The arena's address, and the arena as each dtype that operators take of it."""
        memory = self.schedule.memory
        self.emit("base = arena.data_ptr()")
        items = list(every_step(self.schedule.steps))
        calls = [s for s in items if isinstance(s, ExternCall)]
        used = {name for call in calls for name in (*item_reads(call), *item_writes(call))}
        used.update(self.returned)
        regions = [s for s in items if isinstance(s, Region) and s.predicate is not None]
        used.update(s.predicate.buffer for s in regions if s.predicate is not None)
        dtypes = {self.buffers[n].layout.dtype for n in memory.offsets if n in used}
        for dtype in sorted(dtypes, key=str):
            self.emit(f"arena_{str(dtype)[6:]} = arena.view({dtype})")

    def _device(self) -> Any:
        return next(iter(devices_of(self.schedule)))

    def tensor(self, name: str) -> str:
        """The variable of a buffer's tensor, made now if it lies in the arena."""
        if name not in self.tensors:
            layout = self.buffers[name].layout
            offset = sympy.expand(self.schedule.memory.offsets[name] / layout.dtype.itemsize)
            view = print_strided(f"arena_{str(layout.dtype)[6:]}", layout, print_size(offset))
            self.emit(f"{self._named(name)} = {view}")
        return self.tensors[name]

    def _address(self, name: str) -> LaunchArgument:
        """A buffer's address."""
        if name in self.schedule.memory.offsets:
            offset = self.schedule.memory.offsets[name]
            return (
                ("base", int(offset)) if offset.is_Integer else (f"base + {print_size(offset)}", 0)
            )
        return self._pointer(name), 0

    def _pointer(self, name: str) -> str:
        """The variable of the address of a buffer that has a tensor."""
        if name not in self.pointers:
            self.pointers[name] = f"p_{name}"
            self.emit(f"p_{name} = {self.tensors[name]}.data_ptr()")
        return self.pointers[name]

    def has_memory(self, name: str) -> bool:
        return name in self.tensors or name in self.schedule.memory.offsets

    def allocate(self, name: str) -> None:
        """Give a buffer memory of its own, or that of the result that it takes over."""
        memory = self.schedule.memory
        if name in memory.reused:
            source, layout = self.tensors[memory.reused[name]], self.buffers[name].layout
            view = print_strided(
                f"{source}.view({layout.dtype})", layout, f"{source}.storage_offset()"
            )
            self.emit(f"{self._named(name)} = {view}")
            return
        self.emit(f"{self._named(name)} = {self._empty(name)}")

    def _empty(self, name: str) -> str:
        layout = self.buffers[name].layout
        allocate = "empty_strided("
        if name in self.result_numbers and not self.depth:  # a loop would make it several times
            allocate = f"empty_result({self.result_numbers[name]}, "
        return (
            f"{allocate}{print_tuple(layout.size)}, {print_tuple(layout.stride)}, "
            f"dtype={layout.dtype}, device={self.constant(layout.device)})"
        )

    def free(self, names: Sequence[str]) -> None:
        """Drop the tensors, as eager would; what a region's steps have made isn't there after it."""
        gone = [name for name in names if name in self.tensors and name not in self.returned]
        self.launches.release([self.tensors.pop(name) for name in gone])
        if any(map(self._frees_large_block, gone)):
            self.launches.flush()  # memory is free for what the next launches write

    def _frees_large_block(self, name: str) -> bool:
        """Whether memory of its own is free when an intermediate is dropped, and large."""
        if self.buffers[name].kind is not BufferKind.INTERMEDIATE:
            return False
        if name in self.schedule.memory.reused.values():
            return False
        return static_bytes(self.schedule, name) > LARGE_BLOCK

    # -- steps -------------------------------------------------------------------------------------------

    def _kernel(self, launch: KernelLaunch) -> None:
        printed = launch.printed
        arguments = [self._address(n) for n in printed.buffers]
        scratches: list[str] = []
        for number, scratch in enumerate(printed.scratch):
            variable = f"{launch.name}_scratch{number}"
            device = self.constant(self._device())
            allocate = "zeros" if scratch.begins_zero else "empty"
            self.emit(
                f"{variable} = {allocate}(({print_size(scratch.elements)},), dtype={scratch.dtype}, "
                f"device={device})"
            )
            arguments.append((f"{variable}.data_ptr()", 0))
            scratches.append(variable)
        arguments += [(print_size(size), 0) for size in printed.sizes]
        arguments += [(f"bits_of_float({print_size(number)})", 0) for number in printed.scalars]
        blocks = [
            blocks_of(count, block)
            for count, block in zip(printed.counts, printed.blocks, strict=True)
        ]
        blocks += [("", 1)] * (2 - len(blocks))
        origins = ", ".join(launch.origins) or "no origin"
        self.launches.add(launch.function, [*blocks, *arguments], origins)
        self.launches.release(scratches)

    def call(self, call: ExternCall) -> None:
        arguments = [self._argument(a) for a in call.arguments]
        arguments += [f"{k}={self._argument(a)}" for k, a in call.keywords.items()]
        self.emit(f"# {call.name}: {call.operator} ({call.origin})")
        name = call.outputs[0] if len(call.outputs) == 1 else None
        if call.out_variant is not None and name is not None:
            arguments.append(f"{call.out_name}={self.tensor(name)}")
            line = f"{self.constant(call.out_variant)}({', '.join(arguments)})"
            if self.is_beside_recordings:
                self.emit("with beside_recordings(stream):")
                line = f"    {line}"
            self.emit(line)
            return
        # an operator may give None where its meta function gives a tensor that nobody reads
        read = read_within(self.schedule.steps[self.number]) if self.depth else set()
        used = [
            n
            for n in call.outputs
            if n is not None
            and (n in self.returned or n in read or self.last_uses[n] > self.number)
        ]
        targets = [
            self._named(n) if n is not None and n in used else f"unused{k}"
            for k, n in enumerate(call.outputs)
        ]
        is_tuple = len(call.operator._schema.returns) > 1 or returns_list(call)
        left = self._tuple(targets) if is_tuple else (targets or ["unused"])[0]
        function = self.constant(call.operator)
        if needs_check(call, self.schedule, ALIGNMENT):
            first_only = not any(name in used for name in call.outputs[1:])
            function, arguments = "call_library", [function, str(first_only), *arguments]
        if reads_number(call):
            left = call.defines[0].symbol.name
        self.emit(f"{left} = {function}({', '.join(arguments)})")
        for definition in call.defines:  # the results' layouts depend on them
            self.emit(print_definition(definition, targets))
        for name in used:
            made = self.tensors[name]
            copy = print_sharing(call, made, self.tensor)
            self.emit(print_settle(made, self.buffers[name], copy, self.constant))

    def define(self, call: ExternCall, definition: SymbolDefinition) -> None:
        """It is printed with the call."""

    def require(self, requirement: Requirement) -> None:
        self.emit(f"if not {print_size(requirement.expression)} {requirement.comparison}:")
        self.emit(f"    raise RuntimeError({requirement.message!r})")

    def _argument(self, argument: Any) -> str:
        return print_argument(argument, self.view, self.constant)

    def view(self, view: BufferView) -> str:
        """A tensor of ``view`` as an expression."""
        tensor = self.tensor(view.buffer)
        layout = self.buffers[view.buffer].layout
        if view.dtype != layout.dtype:
            tensor = f"{tensor}.view({view.dtype})"
        elif view.size == layout.size and view.stride == layout.stride and view.offset == 0:
            return tensor
        offset = f"{tensor}.storage_offset()"
        if view.offset != 0:
            offset += f" + {print_size(view.offset)}"
        return print_strided(tensor, view, offset)

    def _results(self) -> None:
        self.emit(f"return {self._tuple(map(self._argument, self.schedule.outputs))}")


def _is_matmul(step: Step) -> bool:
    """Whether ``step`` is a call of the library of matmuls."""
    return isinstance(step, ExternCall) and step.out_variant is not None

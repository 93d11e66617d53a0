"""Prints the host program: one native function that runs the steps of a schedule in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from weft_loop_ir import (
    Buffer,
    BufferKind,
    BufferView,
    ExternCall,
    Kernel,
    ParallelKernels,
    Region,
    Schedule,
    Step,
    SymbolInput,
    all_items,
    item_reads,
    item_writes,
)

from weft_codegen_cpp import _torch
from weft_codegen_cpp.errors import CodegenError
from weft_codegen_cpp.host.entry import Entry, print_entry
from weft_codegen_cpp.host.extern_calls import (
    NativeCall,
    make_callback,
    native_call,
    symbols_of,
    views_of,
)
from weft_codegen_cpp.host.packing import WEIGHT, packed_weight
from weft_codegen_cpp.host.regions import allocated_by_calls, counters, print_region
from weft_codegen_cpp.kernel.dtypes import literal, memory_type
from weft_codegen_cpp.kernel.expressions import print_index, print_number
from weft_codegen_cpp.kernel.kernel_printer import PrintedKernel
from weft_codegen_cpp.options import CppOptions

MAX_DIMENSIONS = 8  # as in weft_host.h


@dataclass(frozen=True)
class PrintedHost:
    """``source`` follows the kernels; ``objects`` are what the program refers to by position."""

    source: str
    objects: tuple[Any, ...]


def print_host(
    schedule: Schedule,
    kernels: Mapping[str, PrintedKernel],
    constants: Mapping[str, torch.Tensor],
    options: CppOptions,
) -> PrintedHost:
    """The program; constants that ``schedule`` itself holds never change, so their layout may be another."""
    return _HostPrinter(schedule, kernels, constants, options).print()


class _HostPrinter:
    def __init__(
        self,
        schedule: Schedule,
        kernels: Mapping[str, PrintedKernel],
        constants: Mapping[str, torch.Tensor],
        options: CppOptions,
    ) -> None:
        self.schedule = schedule
        self.kernels = kernels
        self.options = options
        self.objects: list[Any] = []
        self.views = 0
        self.owned: list[str] = []  # buffers whose tensor this call owns, by position
        self.uses_python = False
        self.calls_torch = False
        self.steps: list[str] = []
        self.depth = 0  # of regions around what is being printed
        self.positions: dict[str, int] = {}
        position = 0
        for item in schedule.inputs:
            is_constant = (
                isinstance(item, str) and schedule.buffers[item].kind is BufferKind.CONSTANT
            )
            if not is_constant:
                if isinstance(item, str):
                    self.positions[item] = position
                position += 1
        self.input_count = position
        self.last_uses: dict[str, float] = {}
        self.released: set[int] = set()  # positions in owned
        self.made_in_regions: set[str] = set()
        self.constants = {
            name: self._object(constants[name])
            for name, buffer in schedule.buffers.items()
            if buffer.kind is BufferKind.CONSTANT
        }
        self.symbols = {s.symbol: s for s in schedule.symbols}
        self.counters = counters(schedule)
        self.sources: dict[str, str] = {}  # buffers to the C++ expression of their tensor's handle

    def _object(self, value: Any) -> int:
        self.objects.append(value)
        return len(self.objects) - 1

    def index(self, expression: Any) -> str:
        """An integer expression over sizes and counters in C++."""
        return print_index(sympy.sympify(expression), self._names())

    def _names(self) -> dict[sympy.Symbol, str]:
        """Where the call keeps sizes, numbers and counters."""
        return {s: f"c.{s.name}" for s in (*self.symbols, *self.counters)}

    def _array(self, expressions: Sequence[Any]) -> str:
        items = ", ".join(f"i64({self.index(e)})" for e in expressions)
        return f"Extents<{max(len(expressions), 1)}>{{{{{items or '0'}}}}}.values"

    # -- the program -------------------------------------------------------------------------------------

    def print(self) -> PrintedHost:
        for step in all_items(self.schedule.steps):
            if not isinstance(step, Kernel | ParallelKernels | ExternCall | Region):
                raise CodegenError(f"no C++ form for a step of type {type(step).__name__}")
        self.last_uses = _last_uses(self.schedule)
        self._inputs()
        for number, step in enumerate(self.schedule.steps):
            self.step(step, number)
            self._release(number)
        self._outputs_without_writer()
        results = self._results()
        parts = [self._call_struct(), self._steps_function(), results, self._entry()]
        return PrintedHost("\n".join(parts), tuple(self.objects))

    def step(self, step: Step, number: int) -> None:
        """Print what runs ``step``, which is the schedule's step ``number`` or inside that."""
        self._allocate(step)
        if isinstance(step, Kernel):
            self._kernels([step])
        elif isinstance(step, ParallelKernels):
            self._kernels(step.kernels)
        elif isinstance(step, ExternCall):
            self._extern(step, number)
        else:
            print_region(self, step, number)

    def nested(self, block: Sequence[Step], number: int) -> list[str]:
        """The statements of a region's block.  What a call in it allocates is freed by its next run."""
        outer, self.steps = self.steps, []
        self.depth += 1
        for step in block:
            self.step(step, number)
        self.depth -= 1
        inner, self.steps = self.steps, outer
        return inner

    def _call_struct(self) -> str:
        fields = [
            f"{memory_type(b.layout.dtype)}* {name};" for name, b in self.schedule.buffers.items()
        ]
        fields += [f"{_number_type(s)} {s.name};" for s in (*self.symbols, *self.counters)]
        owned = max(len(self.owned), 1)
        return "\n".join(
            [
                "// Everything that one call works on.",
                "struct Call {",
                "  Program* program;",
                "  Frame* frame;",
                "  Object const* arguments;",
                *("  " + f for f in fields),
                f"  Handle owned[{owned}];  // tensors made in this call: {', '.join(self.owned) or 'none'}",
                f"  Object made[{owned}];  // their Python objects, where they have one",
                "  const char* failed;",
                "  IndexError index_error;",
                "};",
                "",
            ]
        )

    def _inputs(self) -> None:
        buffers = self.schedule.buffers
        for name, position in self.positions.items():
            self._tensor(name, f"handle_of(c.arguments[{position}])", buffers[name])
        for name, position in self.constants.items():
            self._tensor(name, f"handle_of(c.program->objects[{position}])", buffers[name])
        for symbol, source in self.symbols.items():
            if source.input is None:
                read = "PyLong_AsLongLong" if symbol.is_integer else "PyFloat_AsDouble"
                self.steps.append(
                    f"c.{symbol.name} = api.{read}(c.arguments[{self._argument(source)}]);"
                )
            else:
                self.steps.append(
                    f"{{ i64* sizes = nullptr; {_getter(source)}({self.sources[source.input]}, &sizes); "
                    f"c.{symbol.name} = sizes[{source.dimension}]; }}"
                )
        for name, offset in self.schedule.memory.offsets.items():
            type_name = memory_type(buffers[name].layout.dtype)
            self.steps.append(f"c.{name} = ({type_name}*)(c.frame->arena + {self.index(offset)});")

    def _argument(self, source: SymbolInput) -> int:
        """The position of a number among the inputs that are not constants."""
        before = self.schedule.inputs[: source.position]
        bound = sum(isinstance(i, str) and i in self.constants for i in before)
        return source.position - bound

    def _tensor(self, name: str, handle: str, buffer: Buffer) -> None:
        self.sources[name] = handle
        type_name = memory_type(buffer.layout.dtype)
        self.steps.append(f"c.{name} = ({type_name}*)data_of({handle});")

    # -- memory ------------------------------------------------------------------------------------------

    def _own(self, name: str) -> int:
        self.owned.append(name)
        if self.depth:
            self.made_in_regions.add(name)  # a slot that may be empty after the region
        self.sources[name] = f"c.owned[{len(self.owned) - 1}]"
        return len(self.owned) - 1

    def _has_memory(self, name: str) -> bool:
        """Whether the program gives the buffer its memory, before the step that writes it."""
        return name in self.schedule.memory.offsets or name in self.sources

    def _allocate(self, step: Any) -> None:
        """Allocate the outputs that a step writes first, and intermediates that have no place."""
        if isinstance(step, Kernel | ParallelKernels):
            kernels = step.kernels if isinstance(step, ParallelKernels) else [step]
            names = [n for k in kernels for n in self.kernels[k.name].buffers if n in k.writes]
        elif isinstance(step, Region):
            made = allocated_by_calls(step, self._writes_into)
            names = [n for n in item_writes(step) if n not in made]
        else:
            if not self._writes_into(step):
                return
            names = [n for n in step.outputs if n is not None]
        for name in names:
            if not self._has_memory(name):
                self._allocate_buffer(name)

    def _allocate_buffer(self, name: str) -> None:
        layout = self.schedule.buffers[name].layout
        slot = self._own(name)
        self.steps.append(
            f"if (api.empty_strided({len(layout.size)}, {self._array(layout.size)}, "
            f"{self._array(layout.stride)}, {_torch.dtype_code(layout.dtype)}, 0, 0, &c.owned[{slot}])) "
            f'return c.failed = "allocation", operator_failed;'
        )
        self.steps.append(f"c.{name} = ({memory_type(layout.dtype)}*)data_of(c.owned[{slot}]);")

    def _drop_before(self, what: str, slots: Sequence[int]) -> None:
        self.steps += self._drops(what, slots)

    def _drops(self, what: str, slots: Sequence[int]) -> list[str]:
        """In a region: free what the last run of this step has left in ``slots``."""
        if not self.depth:
            return []
        return [f"if (c.{what}[{s}]) drop_{what}(c.{what}[{s}]);" for s in slots]

    def _release(self, number: int) -> None:
        """Free the tensors that no later step and no result needs, as eager would."""
        for slot, name in enumerate(self.owned):
            if slot in self.released or self.last_uses.get(name, -1) > number:
                continue
            self.released.add(slot)
            what = "made" if self.sources.get(name, "").startswith("handle_of") else "owned"
            check = f"if (c.{what}[{slot}]) " if name in self.made_in_regions else ""
            self.steps.append(f"{check}drop_{what}(c.{what}[{slot}]);")

    def _outputs_without_writer(self) -> None:
        """Outputs of which no step writes an element (they are empty)."""
        for view in self.schedule.outputs:
            if isinstance(view, BufferView) and not self._has_memory(view.buffer):
                self._allocate_buffer(view.buffer)

    # -- kernels -----------------------------------------------------------------------------------------

    def _kernels(self, kernels: Sequence[Kernel]) -> None:
        """Run ``kernels``, several of them in one parallel region."""
        printed = [self.kernels[kernel.name] for kernel in kernels]
        lines = []
        tasks = []
        for number, (kernel, one) in enumerate(zip(kernels, printed, strict=True)):
            names = {s: str(one.values.get(s, f"c.{s.name}")) for s in one.symbols}
            fields = [*(f"c.{name}" for name in one.buffers), *names.values()]
            fields += [print_number(number, self._names()) for number in one.scalars]
            fields.append("&c.index_error")
            lines += [f"// {kernel.name}"]
            lines.append(f"const {one.name}_call call{number} = {{{', '.join(fields)}}};")
            lines += [f"Task task{number} = {{{one.name}, &call{number}, 0, 0}};", "{"]
            lines += [f"  const i64 {s.name} = {text};" for s, text in names.items()]
            lines.append(f"  task{number}.units = {one.units};")
            lines += [f"  task{number}.nanoseconds = {one.nanoseconds or '0'};", "}"]
            tasks.append(f"task{number}")
        threads = self.options.threads
        if len(tasks) == 1:
            lines.append(f"run_task(task0, {threads});")
        else:
            lines.append(f"const Task tasks[] = {{{', '.join(tasks)}}};")
            lines.append(f"run_tasks(tasks, {len(tasks)}, {threads});")
        if any(one.checks_indices for one in printed):
            lines.append("if (c.index_error.raised) return index_out_of_range;")
        self.steps += ["{", *("  " + line for line in lines), "}"]

    # -- extern calls ------------------------------------------------------------------------------------

    def _writes_into(self, call: ExternCall) -> bool:
        """Whether the call writes into memory that it is given."""
        if call.out_variant is not None and len(call.outputs) == 1 and call.outputs[0] is not None:
            return True
        native = native_call(call)
        return native is not None and native.function.endswith("_out")

    def _handle(self, view: BufferView) -> str:
        """Print what makes a tensor of ``view``; gives the C++ expression of its handle."""
        layout = self.schedule.buffers[view.buffer].layout
        whole = (
            view.size == layout.size and view.stride == layout.stride and view.offset == 0
        ) and view.dtype == layout.dtype
        if whole and view.buffer in self.sources:
            return self.sources[view.buffer]
        slot = f"c.frame->views[{self.views}]"
        self.views += 1
        self._set_view(slot, view)
        return f"{slot}.handle"

    def _set_view(self, slot: str, view: BufferView) -> None:
        rank = len(view.size)
        if rank > MAX_DIMENSIONS:
            raise CodegenError(f"a tensor of {rank} dimensions as an operator's argument")
        data = f"c.{view.buffer}"
        if view.offset != 0:
            data = f"{data} + {self.index(view.offset)} * {self._stride_unit(view)}"
        self.steps.append(
            f"if (!set_view({slot}, {data}, {rank}, {self._array(view.size)}, "
            f"{self._array(view.stride)}, {_torch.dtype_code(view.dtype)})) "
            f'return c.failed = "a view", operator_failed;'
        )

    def _made_object(self, view: BufferView) -> str | None:
        """The very tensor that an operator gave, if ``view`` is all of it: waits know it."""
        handle = self.sources.get(view.buffer, "")
        if not handle.startswith("handle_of(") or not self._is_whole(view):
            return None
        return handle[len("handle_of(") : -1]

    def _is_whole(self, view: BufferView) -> bool:
        layout = self.schedule.buffers[view.buffer].layout
        same_places = view.size == layout.size and view.stride == layout.stride
        return same_places and view.offset == 0 and view.dtype == layout.dtype

    def _stride_unit(self, view: BufferView) -> int:
        """Elements of the pointer's type in one element of the view (1 but for opaque dtypes)."""
        pointer = memory_type(self.schedule.buffers[view.buffer].layout.dtype)
        return view.dtype.itemsize if pointer == "u8" else 1

    def _extern(self, call: ExternCall, number: int) -> None:
        self.calls_torch = True
        self.steps.append(f"// {call.name}: {call.operator} ({call.origin})")
        native = native_call(call)
        if native is not None:
            self._native(call, native)
        else:
            self._callback(call, number)

    def _fail(self, call: ExternCall) -> str:
        return f'return c.failed = "{call.operator} ({call.origin})", operator_failed;'

    def _whole_view(self, name: str) -> BufferView:
        layout = self.schedule.buffers[name].layout
        return BufferView(name, layout.size, layout.stride, sympy.S.Zero, layout.dtype)

    def _native(self, call: ExternCall, native: NativeCall) -> None:
        packed = packed_weight(call, native, self.schedule)
        handles = [
            f"handle_of(c.program->objects[{self._object(packed)}])"
            if packed is not None and position == WEIGHT
            else None
            if tensor is None
            else self._handle(tensor)
            for position, tensor in enumerate(native.tensors)
        ]
        if native.function.endswith("_out"):
            (name,) = call.outputs
            if name is None:
                return
            out = self._handle(self._whole_view(name))
            arguments = [out, *(str(h) for h in handles)]
            arguments += [literal(float(s), torch.float64) for s in native.scalars]
            self.steps.append(
                f"if (api.{native.function}({', '.join(arguments)})) {self._fail(call)}"
            )
            return
        slots = [self._own(name or "unused") for name in call.outputs]
        self._drop_before("owned", slots)
        optional = f"optional{self.views}_{len(self.owned)}"
        mask = handles[-1]
        self.steps.append(f"Handle {optional} = {mask or 'nullptr'};")
        pointer = f"&{optional}" if mask else "nullptr"
        results = ", ".join(f"&c.owned[{s}]" for s in slots)
        tensors = ", ".join(str(h) for h in handles[:-1])
        if native.function == "convolution":
            stride, padding, dilation, transposed, output_padding, groups = native.scalars
            rank = len(stride)
            if packed is not None:
                lists = [
                    f"{self._array(stride)}, {rank}",
                    self._array(padding),
                    self._array(dilation),
                ]
                arguments = [tensors, pointer, *lists, str(int(groups)), results]
            else:
                lists = [f"{self._array(v)}, {rank}" for v in (stride, padding, dilation)]
                arguments = [tensors, pointer, *lists, str(int(transposed))]
                arguments += [f"{self._array(output_padding)}, {rank}", str(int(groups)), results]
        elif native.function == "linear":
            arguments = [tensors, pointer, results]
        else:
            dropout, causal, scale = native.scalars
            scale_text = "nullptr"
            if scale is not None:
                scale_text = f"&{optional}_scale"
                self.steps.append(f"f64 {optional}_scale = {literal(float(scale), torch.float64)};")
            arguments = [
                tensors,
                literal(dropout, torch.float64),
                str(int(causal)),
                pointer,
                scale_text,
            ]
            arguments.append(results)
        called = "linear" if native.function == "linear" else f"api.{native.function}"
        if packed is not None and native.function == "convolution":
            called = "packed_convolution"
        self.steps.append(f"if ({called}({', '.join(arguments)})) {self._fail(call)}")
        for name, slot in zip(call.outputs, slots, strict=True):
            if name is not None:
                self._settle(call, name, slot)

    def _settle(self, call: ExternCall, name: str, slot: int) -> None:
        layout = self.schedule.buffers[name].layout
        self.steps.append(
            f"if (!settle_layout(c.owned[{slot}], {len(layout.size)}, {self._array(layout.size)}, "
            f"{self._array(layout.stride)}, {_torch.dtype_code(layout.dtype)})) {self._fail(call)}"
        )
        self.steps.append(f"c.{name} = ({memory_type(layout.dtype)}*)data_of(c.owned[{slot}]);")

    def _callback(self, call: ExternCall, number: int) -> None:
        self.uses_python = True
        buffers = [None if n is None else self.schedule.buffers[n] for n in call.outputs]
        into_memory = self._writes_into(call)
        views = views_of(call)
        if into_memory and call.outputs[0] is not None:
            views = [*views, self._whole_view(call.outputs[0])]
        symbols = symbols_of(call, buffers)
        position = self._object(make_callback(call, buffers, into_memory))
        lines = self._pass_arguments(views, symbols)
        lines.append(
            f"Object result = api.PyObject_CallObject(c.program->objects[{position}], passed);"
        )
        lines.append("api.Py_DecRef(passed);")
        lines.append("if (!result) return python_error;")
        kept = 0
        for name in call.outputs:
            if name is None or into_memory:
                continue
            slot = self._own(name)
            self.sources[name] = f"handle_of(c.made[{slot}])"
            lines += self._drops("made", [slot])
            lines.append(f"c.made[{slot}] = api.PyTuple_GetItem(result, {kept});")
            lines.append(f"api.Py_IncRef(c.made[{slot}]);")
            type_name = memory_type(self.schedule.buffers[name].layout.dtype)
            lines.append(f"c.{name} = ({type_name}*)data_of(handle_of(c.made[{slot}]));")
            kept += 1
        lines.append("api.Py_DecRef(result);")
        self.steps += ["{", *("  " + line for line in lines), "}"]

    def _pass_arguments(
        self, views: list[BufferView], symbols: Sequence[sympy.Symbol]
    ) -> list[str]:
        """Make the tuple ``passed``: fresh tensors on the views, then the symbols' values."""
        saved, self.steps = self.steps, []
        self.steps.append(f"Object passed = api.PyTuple_New({len(views) + len(symbols)});")
        for position, view in enumerate(views):
            made = self._made_object(view)
            if made is not None:
                self.steps.append(
                    f"api.Py_IncRef({made}); api.PyTuple_SetItem(passed, {position}, {made});"
                )
                continue
            self.steps.append(f"View view{position} = {{}};")
            self._set_view(f"view{position}", view)
            self.steps.append(
                f"api.PyTuple_SetItem(passed, {position}, api.wrap(view{position}.handle)); "
                f"api.delete_tensor(view{position}.handle);"
            )
        for position, symbol in enumerate(symbols, len(views)):
            make = "PyLong_FromLongLong" if symbol.is_integer else "PyFloat_FromDouble"
            self.steps.append(
                f"api.PyTuple_SetItem(passed, {position}, api.{make}(c.{symbol.name}));"
            )
        lines, self.steps = self.steps, saved
        return lines

    # -- results -----------------------------------------------------------------------------------------

    def _results(self) -> str:
        lines = [
            "// The tuple that the call returns.",
            "static Object results(Call& c) {",
            f"  Object tuple = api.PyTuple_New({len(self.schedule.outputs)});",
            "  Object item = nullptr;",
        ]
        made: dict[str, int] = {}  # outputs that are whole buffers, returned as one object
        for position, output in enumerate(self.schedule.outputs):
            lines += ["  " + line for line in self._result(output, position, made)]
            lines.append("  if (!item) { api.Py_DecRef(tuple); return nullptr; }")
            lines.append(f"  api.PyTuple_SetItem(tuple, {position}, item);")
        return "\n".join([*lines, "  return tuple;", "}", ""])

    def _result(self, output: Any, position: int, made: dict[str, int]) -> list[str]:
        if isinstance(output, sympy.Expr):
            return [f"item = api.PyLong_FromLongLong({self.index(output)});"]
        if not isinstance(output, BufferView):
            return [f"item = c.program->objects[{self._object(output)}];", "api.Py_IncRef(item);"]
        name = output.buffer
        layout = self.schedule.buffers[name].layout
        if output.dtype != layout.dtype:
            raise CodegenError(f"a result that views {layout.dtype} as {output.dtype}")
        if name not in self.sources:
            raise CodegenError(f"a result lies in the arena ({name})")
        handle = self.sources[name]
        if not self._is_whole(output):
            view = f"{handle}, {len(output.size)}, {self._array(output.size)}"
            return [
                f"item = shared_view({view}, {self._array(output.stride)}, {self.index(output.offset)});"
            ]
        if name in made:
            return [f"item = api.PyTuple_GetItem(tuple, {made[name]});", "api.Py_IncRef(item);"]
        made[name] = position
        if name in self.positions:
            return [f"item = c.arguments[{self.positions[name]}];", "api.Py_IncRef(item);"]
        if name in self.constants:
            return [f"item = c.program->objects[{self.constants[name]}];", "api.Py_IncRef(item);"]
        if handle.startswith("handle_of("):
            return [f"item = {handle[len('handle_of(') : -1]};", "api.Py_IncRef(item);"]
        return [f"item = api.wrap({handle});"]

    # -- functions ---------------------------------------------------------------------------------------

    def _steps_function(self) -> str:
        lines = ["static Status steps(Call& c) {"]
        if self.options.poison_arena:
            where = self._first_kernel_line()
            self.steps.insert(where, "__builtin_memset(c.frame->arena, 0xff, c.frame->bytes);")
        lines += ["  " + s for s in self.steps]
        return "\n".join([*lines, "  return ok;", "}", ""])

    def _first_kernel_line(self) -> int:
        return next(
            (k for k, s in enumerate(self.steps) if not s.startswith(("c.", "{ i64* sizes"))),
            len(self.steps),
        )

    def _entry(self) -> str:
        arena = sympy.sympify(self.schedule.memory.arena_bytes)
        return print_entry(
            Entry(
                self.input_count,
                tuple(self.positions.values()),
                tuple(self._early_symbols(arena.free_symbols)),
                print_index(arena, {}),
                self.views,
                len(self.owned),
                self.calls_torch,
                self.uses_python,
            )
        )

    def _early_symbols(self, symbols: set[sympy.Symbol]) -> list[str]:
        """Read the sizes that the arena's size depends on, before there is a frame."""
        lines = []
        for symbol in sorted(symbols, key=lambda s: str(s.name)):
            source = self.symbols[symbol]
            if source.input is None:
                lines.append(
                    f"const i64 {symbol.name} = api.PyLong_AsLongLong(arguments[{self._argument(source)}]);"
                )
            else:
                lines.append(
                    f"i64* {symbol.name}_sizes = nullptr; "
                    f"{_getter(source)}({self.sources[source.input]}, &{symbol.name}_sizes);"
                )
                lines.append(f"const i64 {symbol.name} = {symbol.name}_sizes[{source.dimension}];")
        return lines


def _number_type(symbol: sympy.Symbol) -> str:
    return "i64" if symbol.is_integer else "f64"


def _getter(source: SymbolInput) -> str:
    """The function that reads the sizes, or the strides, of which one defines a symbol."""
    return "api.get_strides" if source.is_stride else "api.get_sizes"


def _last_uses(schedule: Schedule) -> dict[str, float]:
    """The number of the last step that touches each buffer; infinite for those of results."""
    last: dict[str, float] = {}
    for number, step in enumerate(schedule.steps):
        last.update(dict.fromkeys((*item_reads(step), *item_writes(step)), number))
    for view in schedule.outputs:
        if isinstance(view, BufferView):
            last[view.buffer] = float("inf")
    return last

"""The stages of this package in a row: print kernels, print the host program, compile, load."""

from __future__ import annotations

import copy
import functools
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import sympy
import torch
import torch.fx
from weft_loop_ir import (
    AttentionGradientKernel,
    AttentionKernel,
    BufferKind,
    Codegen,
    DifferentiatedAttention,
    ExportedProgram,
    Kernel,
    Loop,
    LoweringOptions,
    ParallelKernels,
    Prerequisite,
    Schedule,
    ScheduleOptions,
    Step,
    SymbolInput,
    Unsupported,
    all_items,
    devices_of,
    fuse_attention,
    fuse_attention_gradients,
    fuse_prologues,
    merge_matmuls,
    recompute_probabilities,
    replace_attention_calls,
    size_hints,
    slice_known_indices,
    use_library_attention,
)

from weft_codegen_triton.attention.choose_attention import AttentionChooser
from weft_codegen_triton.attention.few_queries import MAX_NEW_ROWS, parts_of_keys
from weft_codegen_triton.attention.functions import MAX_KEYS, MAX_TRAINED_KEYS
from weft_codegen_triton.attention.print_attention import print_attention, tiles_of
from weft_codegen_triton.attention.print_gradients import gradient_tiles, print_gradients
from weft_codegen_triton.attention.print_split import print_split
from weft_codegen_triton.attention.suitability import (
    computes_operand,
    has_enough_programs,
    suits_gradients,
    suits_template,
)
from weft_codegen_triton.column_sums.find_sums import sum_columns_by_rows
from weft_codegen_triton.compilation.binary import triton_version
from weft_codegen_triton.compilation.cache import cache_directory
from weft_codegen_triton.compilation.client import compile_server, has_triton, require_triton
from weft_codegen_triton.errors import DeviceUnavailable
from weft_codegen_triton.exported import PortableProgram, export_program
from weft_codegen_triton.generated import GeneratedProgram, PrintedProgram
from weft_codegen_triton.gpu import REFERENCE, Gpu
from weft_codegen_triton.host.host_printer import print_host
from weft_codegen_triton.host.printed_host import KernelLaunch
from weft_codegen_triton.host.regions import every_step
from weft_codegen_triton.kernel.frame import RowLimits
from weft_codegen_triton.kernel.index_bounds import ALWAYS_WIDE, SymbolicIndices
from weft_codegen_triton.kernel.kernel_printer import Function, PrintedKernel, print_kernel
from weft_codegen_triton.kernel.merging import merge_kernels
from weft_codegen_triton.load_launches import Load, host_functions
from weft_codegen_triton.matmuls.choose_matmuls import MatmulChooser
from weft_codegen_triton.matmuls.find_matmuls import MatmulKernel
from weft_codegen_triton.matmuls.fuse_matmuls import all_forms, fuse_matmuls
from weft_codegen_triton.matmuls.precision import (
    ByPrecision,
    Precision,
    ProgramByPrecision,
    Settings,
)
from weft_codegen_triton.matmuls.print_matmul import print_matmul
from weft_codegen_triton.matmuls.untimed_choice import choose_untimed
from weft_codegen_triton.options import TritonOptions, options_for_mode
from weft_codegen_triton.program import TritonProgram
from weft_codegen_triton.program_loops.find_loops import ProgramLoop, put_loops_into_programs
from weft_codegen_triton.program_loops.print_loop import print_program_loop
from weft_codegen_triton.recordable import calls_of, is_recordable, may_raise
from weft_codegen_triton.rewriting.rewrite import rewrite
from weft_codegen_triton.runtime.cuda_device import CudaDevice
from weft_codegen_triton.runtime.interpreter import InterpretedDevice
from weft_codegen_triton.scheduling import scheduling_for

MIN_MASKED_SCORES = 1 << 22
"""Scores of a head from which attention with a mask, that is not known to be causal, is the library's.

It has slower kernels for that than matmuls and a softmax are; for more scores the memory counts.
"""
NEVER = sys.maxsize
"""More scores than there are.

In 16 bits, without gradients, attention with a mask is a kernel of our own.
"""

PLAIN_PRECISION = Precision()
"""torch's settings where nobody has changed them."""

INTERPRETER = "Triton's interpreter"
"""What programs of files need where kernels run in it: its version."""


class TritonCodegen(Codegen):
    """Compiles schedules for CUDA devices.

    ``compile`` raises :class:`DeviceUnavailable` without Triton or a GPU, :class:`CompileError` when Triton
    fails, and :class:`Unsupported` for a schedule that has no form on this device.
    """

    device_type = "cuda"
    writes_inputs = True

    def __init__(self, options: TritonOptions | None = None) -> None:
        self.options = options if options is not None else TritonOptions()

    @property
    def schedule_options(self) -> ScheduleOptions:
        """How to schedule loops for the GPU, which needs many outer iterations where there is much to do."""
        return scheduling_for(self._gpu)

    @property
    def _gpu(self) -> Gpu:
        """What graphs are scheduled for, before it is known where they run."""
        if self.options.gpu is not None or self.interprets or not torch.cuda.is_available():
            return self.options.gpu or REFERENCE
        return CudaDevice(None, self._folder(), self.options).gpu

    @property
    def lowering_options(self) -> LoweringOptions:
        """Made anew for each graph: some of them are torch's settings at that moment."""
        return LoweringOptions(
            scans=True,
            selects_through_views=True,
            widened_instructions=24,
            inlined_vectors=1 << 10,
            inlined_columns=8,
            inlined_terms=3,
            written_out_terms=8,
        )

    def for_mode(self, mode: str) -> Self:
        """The code generator that torch.compile's ``mode`` asks for; raises ValueError for an unknown one."""
        return self._with(options_for_mode(self.options, mode))

    def with_cache_limit(self, limit: int) -> Self:
        """The same that keeps its cache below ``limit`` bytes."""
        return self._with(replace(self.options, cache_limit=limit))

    def _with(self, options: TritonOptions) -> Self:
        """The same with other options, of a subclass too."""
        changed = copy.copy(self)
        changed.options = options
        return changed

    def _folder(self) -> Path:
        return cache_directory(self.options.cache_directory, self.options.cache_limit)

    def rewrite(self, graph_module: torch.fx.GraphModule) -> None:
        """Change a functional ATen graph in place so that libraries and kernels run it faster.

        To be called before ``graph_module`` is lowered.  Its results stay what they were, strides included.
        """
        rewrite(graph_module.graph, self._gpu)
        graph_module.recompile()

    def rewrite_frozen(
        self, graph_module: torch.fx.GraphModule, constants: Collection[torch.fx.Node]
    ) -> None:
        """The same where ``constants`` are computed once: matmuls of one matrix with several become one."""
        merge_matmuls(graph_module.graph, constants)
        self.rewrite(graph_module)

    def writes_attention(self, keys: int, *, trains_mask: bool) -> bool:
        """Whether kernels of our own are faster than the library's."""
        most = MAX_TRAINED_KEYS if trains_mask else MAX_KEYS
        return self.options.fuse_attention is not False and keys <= most

    def rewrite_functional(
        self, graph_module: torch.fx.GraphModule, *, differentiated: bool
    ) -> None:
        """Have the library run attention that is written out, and read known places as slices.

        Both before gradients are recorded.  Attention is left where a kernel of our own takes its place, once
        the graph is scheduled.
        """
        has_kernel = self.options.fuse_attention is not False
        count = slice_known_indices(graph_module.graph)
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            in_half = dtype.itemsize == 2
            count += use_library_attention(
                graph_module.graph,
                (dtype,),
                min_masked_scores=NEVER if has_kernel and in_half else MIN_MASKED_SCORES,
                few_keys=MAX_KEYS if has_kernel and in_half else 0,
                differentiated=differentiated,
            )
        if count:
            graph_module.recompile()

    def rewrite_joint(self, graph_module: torch.fx.GraphModule, *, output_count: int) -> None:
        """Have backward of attention compute weights again, where kernels of our own take its place.

        ``output_count``: how many of the graph's first results are forward's.
        """
        chosen = self.options.fuse_attention

        def accept(attention: DifferentiatedAttention) -> bool:
            return suits_gradients(attention) if chosen is None else chosen

        if recompute_probabilities(graph_module.graph, output_count, accept):
            graph_module.recompile()

    @property
    def interprets(self) -> bool:
        """Whether kernels run on the CPU through Triton's interpreter."""
        chosen = self.options.interpret
        return os.environ.get("TRITON_INTERPRET") == "1" if chosen is None else chosen

    def start(self) -> None:
        """Start the compile server, which imports Triton while the stages before this one run."""
        if not self.interprets and has_triton():
            folder = self._folder()
            compile_server(folder, self.options.compile_processes).start()

    def compile(
        self, schedule: Schedule, constants: Mapping[str, torch.Tensor]
    ) -> TritonProgram | ProgramByPrecision:
        """Compile ``schedule``, with each CONSTANT buffer bound to its tensor in ``constants``."""
        device = self._device(devices_of(schedule))
        if isinstance(device, CudaDevice):
            require_triton()
        bound = {**schedule.constants, **constants}
        for name, buffer in schedule.buffers.items():
            if buffer.kind is BufferKind.CONSTANT and name not in bound:
                raise ValueError(f"the constant {name} is not bound to a tensor")
        schedule = self._with_attention(schedule, device)
        schedule = sum_columns_by_rows(
            schedule, self.schedule_options, device.gpu, self.options.persistent_elements
        )

        def choose(precision: Precision) -> Schedule:
            chosen = self._with_matmuls(schedule, device, precision)
            if not self.options.program_loops:
                return chosen
            return put_loops_into_programs(chosen, device.gpu)

        def generate(precision: Precision) -> GeneratedProgram:
            return self._generate(choose(precision), bound, device, precision)

        def load(generated: GeneratedProgram) -> TritonProgram:
            return self._load(generated, device)

        precision = Precision.current()
        chosen = choose(precision)
        program = load(self._generate(chosen, bound, device, precision))
        settings = Settings.of(chosen)
        if not settings:
            return program
        return ProgramByPrecision(settings, program, precision, generate, load)

    def _generate(
        self,
        schedule: Schedule,
        bound: Mapping[str, torch.Tensor],
        device: CudaDevice | InterpretedDevice,
        precision: Precision,
    ) -> GeneratedProgram:
        """What the program of ``schedule``, whose constants are ``bound``, is made of."""
        printed = self.print(schedule, precision, gpu=device.gpu)
        host = printed.host
        return GeneratedProgram(
            printed,
            self.print(schedule, precision, wide=True, gpu=device.gpu)
            if host.may_not_fit
            else None,
            tuple(bound[name] for name in host.constants),
            extern_count=len(calls_of(schedule)),
            scalars=_scalars(host.inputs, schedule),
            constant_scalars=_scalars(host.constants, schedule),
            is_recordable=is_recordable(schedule),
            is_dynamic=bool(schedule.symbols) or not all(isinstance(i, str) for i in host.inputs),
            device=next(iter(devices_of(schedule)), None),
            calls_may_raise=any(may_raise(c, device.asserts_later) for c in calls_of(schedule)),
        )

    def load(self, generated: GeneratedProgram | ByPrecision) -> TritonProgram | ProgramByPrecision:
        """The program that another one, maybe of another process, had as its ``generated``.

        Kernels that are no longer in the cache are compiled again.
        """
        if isinstance(generated, ByPrecision):
            return ProgramByPrecision.of(generated, self._load_one)
        return self._load_one(generated)

    def _load_one(self, generated: GeneratedProgram) -> TritonProgram:
        return self._load(generated, self._device_of(generated))

    def _load(
        self,
        generated: GeneratedProgram,
        device: CudaDevice | InterpretedDevice,
        load_functions: Load | None = None,
    ) -> TritonProgram:
        """``generated`` on ``device``; what is for larger sizes is loaded when a call has them.

        ``load_functions``: what loads kernels if not the device, which compiles them.
        """
        wider = generated.for_larger_sizes
        functions = host_functions(generated.printed, device, load_functions)
        worth = generated.steps_before_tail >= self.options.min_recorded_steps
        record = self.options.cuda_graphs and worth and device.records and generated.is_recordable
        return TritonProgram(
            functions,
            device,
            generated,
            record=record,
            copied_bytes=self.options.copied_bytes,
            load_wider=None
            if wider is None
            else functools.partial(self._load, wider, device, load_functions),
        )

    def prerequisites(self) -> Sequence[Prerequisite]:
        """A GPU and Triton."""
        gpu = Prerequisite(
            "GPU", "none that torch sees", "only for programs on a GPU: look at its driver"
        )
        if torch.cuda.is_available():
            gpu = Prerequisite("GPU", torch.cuda.get_device_name())
        elif torch.version.cuda is None:
            gpu = Prerequisite("GPU", "this torch is for the CPU")
        if not has_triton():
            remedy = "only for programs on a GPU: pip install triton"
            return gpu, Prerequisite("Triton", "not installed", remedy)
        return gpu, Prerequisite("Triton", triton_version())

    def environment(self) -> str:
        """What generated programs depend on besides their schedules: options, Triton, the devices."""
        devices = [
            (torch.cuda.get_device_name(k), torch.cuda.get_device_capability(k))
            for k in range(torch.cuda.device_count())
        ]
        options = replace(self.options, cache_limit=None)
        return f"{options} {triton_version()} {self.interprets} {devices}"

    def export(self, generated: GeneratedProgram | ByPrecision) -> ExportedProgram:
        """The program without kernels' text, and as code the host program and all kernels, compiled.

        It needs a device of the same compute capability, and where kernels are timed the same device.
        """
        one = generated.any if isinstance(generated, ByPrecision) else generated
        device = self._device_of(one)
        program, code = export_program(generated, device.compile_variants)
        return ExportedProgram(program, code, _needs(device, is_timed=self.options.autotune))

    def load_exported(
        self, generated: PortableProgram | ByPrecision, code: Sequence[bytes]
    ) -> TritonProgram | ProgramByPrecision:
        """The program whose host program and kernels are ``code``; Triton is not looked for."""
        if isinstance(generated, ByPrecision):
            load = functools.partial(self._load_exported, code=code)
            return ProgramByPrecision.of(generated, load)
        return self._load_exported(generated, code)

    def _load_exported(self, generated: PortableProgram, code: Sequence[bytes]) -> TritonProgram:
        program = generated.with_sources(code)
        device = self._device_of(program)

        def load_functions(functions: Mapping[str, Function]) -> dict[str, Callable[..., None]]:
            return {
                name: device.load_variants(
                    name,
                    function,
                    {k: v.compiled(code) for k, v in generated.kernels[function].items()},
                )
                for name, function in functions.items()
            }

        return self._load(program, device, load_functions)

    def target(self) -> Mapping[str, Sequence[str]]:
        """The GPUs, and the interpreter where kernels run in it."""
        interpreter = {INTERPRETER: [triton_version()]} if self.interprets else {}
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return {k: v for index in range(count) for k, v in _of_gpu(index).items()} | interpreter

    def print(
        self,
        schedule: Schedule,
        precision: Precision = PLAIN_PRECISION,
        *,
        wide: bool = False,
        gpu: Gpu | None = None,
    ) -> PrintedProgram:
        """The generated code of ``schedule``; needs neither Triton nor a GPU.

        With ``wide`` it is for calls of any size; else indices have 32 bits where that is known to do, or
        where the sizes of a call decide, which the host program looks at before it begins: not where data
        decide of sizes.
        """
        of_data = any(call.defines for call in calls_of(schedule))
        indices = SymbolicIndices(wide or of_data, _counters(schedule))
        functions: dict[str, Function] = {}
        known: dict[Function, str] = {}
        launches: dict[str, list[KernelLaunch]] = {}
        for step in every_step(schedule.steps):
            for own_name, origins, printed in self._print_step(
                step, schedule, precision, indices, gpu or self.options.gpu or REFERENCE
            ):
                name = known.setdefault(printed.function, own_name)
                if name not in functions or not printed.function.is_repeatable:
                    functions[name] = printed.function
                launch = KernelLaunch(name, printed, own_name, origins)
                launches.setdefault(step.name, []).append(launch)
        host = print_host(schedule, launches, self.options.narrow_below)
        return PrintedProgram(functions, host)

    def _print_step(
        self,
        step: Step,
        schedule: Schedule,
        precision: Precision,
        indices: SymbolicIndices,
        gpu: Gpu,
    ) -> Iterator[tuple[str, tuple[str, ...], PrintedKernel]]:
        """What a step launches; each with its name and the names of the nodes that it computes."""
        tile = step.tile if isinstance(step, ProgramLoop) else 0
        limits = self._row_limits(gpu, tile)
        hints = size_hints(schedule.symbols)
        if isinstance(step, ProgramLoop):  # its parts are handed counters of 64 bits
            indices = ALWAYS_WIDE

        def printed(kernel: Kernel) -> PrintedKernel:
            if isinstance(kernel, AttentionKernel):
                parts = parts_of_keys(kernel, gpu)
                if parts > 1:
                    return print_split(kernel, schedule.buffers, indices, parts, gpu)
                return print_attention(kernel, schedule.buffers, indices, gpu)
            if isinstance(kernel, AttentionGradientKernel):
                return print_gradients(kernel, schedule.buffers, indices, gpu)
            if isinstance(kernel, MatmulKernel):
                return print_matmul(kernel, schedule.buffers, precision, indices)
            overwritten = _overwritten(kernel, schedule)
            return print_kernel(kernel, schedule.buffers, limits, overwritten, indices, hints)

        if isinstance(step, Kernel):
            yield step.name, step.origins, printed(step)
        elif isinstance(step, ParallelKernels):
            for merged in merge_kernels([printed(kernel) for kernel in step.kernels], gpu):
                members = [step.kernels[k] for k in merged.members]
                origins = dict.fromkeys(o for kernel in members for o in kernel.origins)
                yield members[0].name, tuple(origins), merged.printed
        elif isinstance(step, ProgramLoop):
            kernels = [k for k in all_items([step]) if isinstance(k, Kernel)]
            origins = dict.fromkeys(o for kernel in kernels for o in kernel.origins)
            yield step.name, tuple(origins), print_program_loop(step, schedule.buffers, printed)

    def _with_attention(
        self, schedule: Schedule, device: CudaDevice | InterpretedDevice
    ) -> Schedule:
        """``schedule`` with those attentions in a kernel that options, times or dtypes say are to be."""
        chosen = self.options.fuse_attention
        if chosen is False:
            return schedule
        choose = None
        if chosen is None and self.options.autotune and isinstance(device, CudaDevice):
            folder = self._folder()
            choose = AttentionChooser(
                device, folder, schedule.buffers, self._row_limits(device.gpu)
            )

        def accept(attention: AttentionKernel) -> bool:
            fits = bool(tiles_of(attention, schedule.buffers, device.gpu))
            if chosen is not None or not fits:
                return fits
            is_faster = None if choose is None else choose(attention)
            return suits_template(attention, schedule) if is_faster is None else is_faster

        def accept_gradients(kernel: AttentionGradientKernel) -> bool:
            is_busy = chosen is not None or has_enough_programs(kernel, device.gpu)
            return is_busy and bool(gradient_tiles(kernel, schedule.buffers, device.gpu))

        def accept_call(attention: AttentionKernel) -> bool:
            return parts_of_keys(attention, device.gpu) > 1

        with device.guard():
            schedule = fuse_attention(schedule, accept, self.schedule_options)
        schedule = replace_attention_calls(schedule, accept_call, self.schedule_options)
        schedule = fuse_attention_gradients(schedule, accept_gradients, self.schedule_options)
        computes = functools.partial(computes_operand, buffers=schedule.buffers, gpu=device.gpu)
        return fuse_prologues(
            schedule, computes, lambda a: MAX_NEW_ROWS * accept_call(a), self.schedule_options
        )

    def _row_limits(self, gpu: Gpu, tile: int = 0) -> RowLimits:
        return RowLimits(self.options.persistent_elements, self.options.loop_elements, tile, gpu)

    def _with_matmuls(
        self, schedule: Schedule, device: CudaDevice | InterpretedDevice, precision: Precision
    ) -> Schedule:
        """``schedule`` with those matmuls in kernels that options or times say are to be."""
        if self.options.fuse_matmuls is not None:
            if not self.options.fuse_matmuls:
                return schedule
            return fuse_matmuls(schedule, lambda forms: forms[0], self.schedule_options, device.gpu)
        if not self.options.autotune or not isinstance(device, CudaDevice):
            return fuse_matmuls(schedule, choose_untimed, self.schedule_options, device.gpu)
        folder = self._folder()
        with device.guard():
            limits = self._row_limits(device.gpu)
            choose = MatmulChooser(device, folder, schedule.buffers, limits, precision)
            choose.prepare(all_forms(schedule, device.gpu))
            return fuse_matmuls(schedule, choose, self.schedule_options, device.gpu)

    def _device_of(self, generated: GeneratedProgram) -> CudaDevice | InterpretedDevice:
        return self._device(set() if generated.device is None else {generated.device})

    def _device(self, devices: Collection[torch.device]) -> CudaDevice | InterpretedDevice:
        """Where a program runs whose buffers are on ``devices``."""
        folder = self._folder()
        if self.interprets and all(d.type == "cpu" for d in devices):
            return InterpretedDevice(folder, self._gpu)
        if any(d.type != "cuda" for d in devices):
            raise Unsupported("not on a GPU", ", ".join(sorted(map(str, devices))))
        if len(devices) > 1:
            raise Unsupported("a graph over several GPUs")
        if not torch.cuda.is_available():
            raise DeviceUnavailable("the graph is on a CUDA device, and torch finds none")
        return CudaDevice(next(iter(devices), None), folder, self.options)


def _counters(schedule: Schedule) -> dict[sympy.Symbol, sympy.Expr]:
    """What bounds the counter of each loop of the host: the sum of its ends' magnitudes."""
    counts = [s.count for s in every_step(schedule.steps) if isinstance(s, Loop) and s.count]
    return {
        count.symbol: sympy.oo
        if count.stop is None
        else sympy.Add(count.start, count.stop, evaluate=False)
        for count in counts
    }


def _scalars(names: Sequence[str | SymbolInput], schedule: Schedule) -> tuple[int, ...]:
    """The positions of buffers without dimensions that are to be where the kernels run."""
    devices = devices_of(schedule)
    layouts = [schedule.buffers[n].layout if isinstance(n, str) else None for n in names]
    return tuple(
        position
        for position, layout in enumerate(layouts)
        if layout is not None and not layout.size and layout.device in devices
    )


def _overwritten(kernel: Kernel, schedule: Schedule) -> frozenset[str]:
    """The buffers that ``kernel`` reads whose memory it writes, by name or because the plan shares it."""
    offsets, reused = schedule.memory.offsets, schedule.memory.reused
    written = {offsets[name] for name in kernel.writes if name in offsets}
    taken = {reused[name] for name in kernel.writes if name in reused}
    return frozenset(
        name
        for name in kernel.reads
        if name in kernel.writes or name in taken or offsets.get(name) in written
    )


def _of_gpu(index: int) -> dict[str, list[str]]:
    """What exported programs may need of a GPU, by what it is called in a refusal."""
    major, minor = torch.cuda.get_device_capability(index)
    return {
        f"cuda:{index} of compute capability": [f"{major}.{minor}"],
        f"cuda:{index} for which kernels were timed,": [torch.cuda.get_device_name(index)],
    }


def _needs(device: CudaDevice | InterpretedDevice, *, is_timed: bool) -> Mapping[str, list[str]]:
    """What a program that was compiled on ``device`` needs."""
    if isinstance(device, InterpretedDevice):
        return {INTERPRETER: [triton_version()]}
    capability, name = _of_gpu(device.index).items()
    return dict([capability, name] if is_timed else [capability])

"""A define-by-run loop IR for ATen graphs: lowering, fusion, memory planning, a reference evaluator."""

from weft_loop_ir import bodies, ops
from weft_loop_ir.attention import (
    AttentionGradientKernel,
    AttentionKernel,
    GradientSum,
    KeyBounds,
    MatrixOperand,
    RowStatistic,
    fuse_attention,
    fuse_attention_gradients,
    fuse_prologues,
    replace_attention_calls,
)
from weft_loop_ir.bodies import (
    COMBINED,
    LEFT,
    OPERATIONS,
    RIGHT,
    CombineFunction,
    Instruction,
    LoopBody,
    Value,
)
from weft_loop_ir.callees import (
    CALLEES,
    OperandLayout,
    OperandRule,
    accepts,
    call_library,
    needs_check,
)
from weft_loop_ir.codegen import Codegen, CompiledProgram, ExportedProgram, Prerequisite
from weft_loop_ir.data_symbols import definitions, sized_within
from weft_loop_ir.digits import loop_values
from weft_loop_ir.evaluate import evaluate
from weft_loop_ir.expressions import FloorDiv, Mod
from weft_loop_ir.format import format_loop_graph, format_schedule
from weft_loop_ir.host_interpreter import HostInterpreter
from weft_loop_ir.host_walk import HostWalk, StepVisitor
from weft_loop_ir.index_simplify import ranges_for
from weft_loop_ir.ir import (
    Branch,
    Buffer,
    BufferKind,
    BufferView,
    Count,
    Expansion,
    ExternCall,
    FusedKernel,
    Kernel,
    Layout,
    LocalBuffer,
    Loop,
    LoopVariable,
    MemoryPlan,
    ParallelKernels,
    Region,
    Requirement,
    Schedule,
    Stage,
    Step,
    SymbolDefinition,
    SymbolInput,
    is_dense,
    size_hints,
)
from weft_loop_ir.library_results import settle
from weft_loop_ir.loop_graph import (
    Item,
    LoopGraph,
    LoopNode,
    all_items,
    changes_state,
    copied_results,
    devices_of,
    is_on_several_devices,
    item_reads,
    item_writes,
    last_uses,
    raises_by_value,
)
from weft_loop_ir.lowering import LoweringOptions, NoLowering, lower, register_lowering
from weft_loop_ir.ops import OpsHandler
from weft_loop_ir.printing import IndexSpelling, NumberSpelling, print_index, print_number
from weft_loop_ir.private_results import with_private_results
from weft_loop_ir.rewriting.attention import use_library_attention
from weft_loop_ir.rewriting.attention_gradients import (
    DifferentiatedAttention,
    recompute_probabilities,
)
from weft_loop_ir.rewriting.channels_last import convolve_channels_last
from weft_loop_ir.rewriting.constant_values import ConstantValues
from weft_loop_ir.rewriting.freezing import freeze, has_effects
from weft_loop_ir.rewriting.known_indices import slice_known_indices
from weft_loop_ir.rewriting.merged_matmuls import merge_matmuls
from weft_loop_ir.schedule import (
    ReplacedSteps,
    ScheduleOptions,
    bytes_outside_arena,
    plan_memory,
    schedule,
    step_meets,
)
from weft_loop_ir.schedule.check_first import check_first
from weft_loop_ir.schedule.independent_loops import independent_iterations
from weft_loop_ir.schedule.iterations import trip_count
from weft_loop_ir.schedule.kernel_names import kernel_name
from weft_loop_ir.schedule.rows_apart import rows_apart
from weft_loop_ir.size_float import SizeFloat
from weft_loop_ir.unsupported import Unsupported
from weft_loop_ir.verify import VerificationError, verify
from weft_loop_ir.write_back import write_back

__all__ = [
    "CALLEES",
    "COMBINED",
    "LEFT",
    "OPERATIONS",
    "RIGHT",
    "AttentionGradientKernel",
    "AttentionKernel",
    "Branch",
    "Buffer",
    "BufferKind",
    "BufferView",
    "Codegen",
    "CombineFunction",
    "CompiledProgram",
    "ConstantValues",
    "Count",
    "DifferentiatedAttention",
    "Expansion",
    "ExportedProgram",
    "ExternCall",
    "FloorDiv",
    "FusedKernel",
    "GradientSum",
    "HostInterpreter",
    "HostWalk",
    "IndexSpelling",
    "Instruction",
    "Item",
    "Kernel",
    "KeyBounds",
    "Layout",
    "LocalBuffer",
    "Loop",
    "LoopBody",
    "LoopGraph",
    "LoopNode",
    "LoopVariable",
    "LoweringOptions",
    "MatrixOperand",
    "MemoryPlan",
    "Mod",
    "NoLowering",
    "NumberSpelling",
    "OperandLayout",
    "OperandRule",
    "OpsHandler",
    "ParallelKernels",
    "Prerequisite",
    "Region",
    "ReplacedSteps",
    "Requirement",
    "RowStatistic",
    "Schedule",
    "ScheduleOptions",
    "SizeFloat",
    "Stage",
    "Step",
    "StepVisitor",
    "SymbolDefinition",
    "SymbolInput",
    "Unsupported",
    "Value",
    "VerificationError",
    "accepts",
    "all_items",
    "bodies",
    "bytes_outside_arena",
    "call_library",
    "changes_state",
    "check_first",
    "convolve_channels_last",
    "copied_results",
    "definitions",
    "devices_of",
    "evaluate",
    "format_loop_graph",
    "format_schedule",
    "freeze",
    "fuse_attention",
    "fuse_attention_gradients",
    "fuse_prologues",
    "has_effects",
    "independent_iterations",
    "is_dense",
    "is_on_several_devices",
    "item_reads",
    "item_writes",
    "kernel_name",
    "last_uses",
    "loop_values",
    "lower",
    "merge_matmuls",
    "needs_check",
    "ops",
    "plan_memory",
    "print_index",
    "print_number",
    "raises_by_value",
    "ranges_for",
    "recompute_probabilities",
    "register_lowering",
    "replace_attention_calls",
    "rows_apart",
    "schedule",
    "settle",
    "size_hints",
    "sized_within",
    "slice_known_indices",
    "step_meets",
    "trip_count",
    "use_library_attention",
    "verify",
    "with_private_results",
    "write_back",
]

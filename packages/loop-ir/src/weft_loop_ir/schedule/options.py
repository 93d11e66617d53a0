"""What the scheduler may be told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ScheduleOptions:
    """What is fused, split and kept where.

    ``max_members``: loop nodes in one kernel: of more, compilers take more than their share of time, and one
    more buffer costs little.
    ``max_instructions``: what these compute for an element.
    ``max_distance``: graph distance, in nodes, over which kernels without a dependency are fused.
    ``max_search``: nodes visited to prove that a fusion makes no cycle; beyond it the fusion is refused.
    ``min_outer_iterations``: outer iterations of a reduction from which pointwise work of any size joins it.
    ``max_serial_elements``: elements below which it joins one that has fewer.
    ``max_crossed_elements``: pointwise work that stores or reads crosswise joins no reduction of longer rows;
    None: it may.
    ``max_local_bytes``: the largest row kept in a local buffer.
    ``split_reduction_elements``: a reduction of at least so many elements to few results is split in two
    kernels; None never splits.
    ``split_reduction_parts``: how many partial results such a split makes of one, at most.
    ``split_rows``: how many results count as few where the elements of each lie side by side.
    ``split_columns``: how many do where the elements of neighbours lie side by side.
    ``split_column_elements``: how long a reduction must be that is split for the latter.
    ``split_column_programs``: how many programs run at once that each reduce some columns of known length,
    which are split in about as many; 0: in as many parts as others.
    ``split_column_tile``: the columns and rows that such a program reads at once.
    ``split_varying``: so are reductions whose sizes vary, by those of the call that the graph was made for.
    ``split_short_rows``: rows of at most so many elements side by side, between which the rows of other
    results lie, are added up for all results together and reduced then.
    ``split_scan_rows``: a scan of fewer rows (of as many groups of columns) is split in pieces of them; 0
    never splits.
    ``split_scan_parts``: about how many pieces, in all.
    ``whole_scan_elements``: rows of at least so many elements, where sizes are known and elements aren't
    costly to combine, stay whole, for a kernel that scans parts of one at once; None: none do.
    ``parallel_kernels``: how many independent kernels become one step at most; 1 leaves each a step.
    ``parallel_bytes``: kernels that touch more bytes of intermediates stay apart, for memory's sake.
    ``moved_bytes``: how many bytes all kernels that join others may hold longer; 0 also leaves what makes
    results of inputs alone where it is.
    ``early_bytes``: fusion doesn't begin a larger buffer, of which it writes a part, long before its other
    parts; None: it may.
    ``expanded_bytes``: what a loop's iterations need for themselves, all together, for it to become a kernel
    over all of them at most.
    ``again_elements``: what is stored of so many elements or more is computed again where its readers read
    what it is made of, and take few operations for it; None: it never is.
    ``selected_elements``: branches whose sides together compute at most so many elements run both sides; 0
    keeps every branch.
    ``reuse_memory``: the memory plan may let buffers take memory that others have left, and a kernel's
    result that of an operand.
    ``reuse_rows``: and where a kernel reads a row several times before it writes one in its place, as that of
    a softmax: for programs that run an outer iteration's loop nests one after another, in one thread.
    ``reuse_results``: kernels may overwrite results that calls have allocated.
    ``own_bytes``: intermediates of at least so many bytes are allocated one by one; None: all lie in
    the arena.
    ``alignment``: of buffers, in bytes.
    ``round_low_precision``: as in :class:`~weft_loop_ir.LoweringOptions`, for values forwarded between fused
    nodes.
    ``verify``: check the program before, between and after the passes.
    """

    max_members: int = 64
    max_instructions: int = 512
    max_distance: int = 64
    max_search: int = 256
    min_outer_iterations: int = 8
    max_serial_elements: int = 1 << 16
    max_crossed_elements: int | None = None
    max_local_bytes: int = 1 << 18
    split_reduction_elements: int | None = 1 << 16
    split_reduction_parts: int = 64
    split_rows: int = 1
    split_columns: int = 1
    split_column_elements: int = 1 << 16
    split_column_programs: int = 0
    split_column_tile: tuple[int, int] = (32, 64)
    split_varying: bool = False
    split_short_rows: int = 0
    split_scan_rows: int = 0
    split_scan_parts: int = 1024
    whole_scan_elements: int | None = None
    parallel_kernels: int = 1
    parallel_bytes: int = 1 << 20
    moved_bytes: int = 0
    early_bytes: int | None = None
    expanded_bytes: int = 1 << 26
    again_elements: int | None = None
    selected_elements: int = 16
    reuse_memory: bool = True
    reuse_rows: bool = False
    reuse_results: bool = False
    own_bytes: int | None = None
    alignment: int = 64
    round_low_precision: bool = True
    verify: bool = False

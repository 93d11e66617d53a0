"""What is changed in a graph before it is lowered, for the sake of the GPU's libraries.

A pass changes where values lie (the device and the strides of a node's fake value, which lowering follows) or
replaces nodes.  Results keep their strides, and every operator is rounded as before.  Only random numbers
become others.
"""

from __future__ import annotations

import torch.fx
from weft_loop_ir import convolve_channels_last

from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.rewriting.aligned_matmuls import align_matmuls
from weft_codegen_triton.rewriting.convolution_bias import separate_biases, sum_bias_gradients
from weft_codegen_triton.rewriting.few_rows import sum_few_rows
from weft_codegen_triton.rewriting.folded_batches import fold_batches
from weft_codegen_triton.rewriting.random_numbers import draw_in_kernels
from weft_codegen_triton.rewriting.repeated_heads import share_heads
from weft_codegen_triton.rewriting.scalar_lanes import compute_side_by_side
from weft_codegen_triton.rewriting.scalars import move_scalars
from weft_codegen_triton.rewriting.small_sums import widen_small_sums
from weft_codegen_triton.rewriting.turned_joins import join_turned


def rewrite(graph: torch.fx.Graph, gpu: Gpu) -> None:
    """Apply every pass to ``graph``, a functional ATen graph with fake values, in place."""
    if not compute_side_by_side(graph):
        move_scalars(graph)
    join_turned(graph)
    share_heads(graph)
    draw_in_kernels(graph)
    sum_few_rows(graph, gpu)
    widen_small_sums(graph)
    fold_batches(graph, gpu)
    align_matmuls(graph, gpu)
    separate_biases(graph)
    sum_bias_gradients(graph)
    convolve_channels_last(graph)
    graph.lint()

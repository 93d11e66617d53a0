"""Attention of a schedule as one kernel: two matmuls and the softmax between them."""

from weft_loop_ir.attention.find_attention import AttentionKernel as AttentionKernel
from weft_loop_ir.attention.find_attention import fuse_attention as fuse_attention
from weft_loop_ir.attention.find_gradients import AttentionGradientKernel as AttentionGradientKernel
from weft_loop_ir.attention.find_gradients import GradientSum as GradientSum
from weft_loop_ir.attention.find_gradients import (
    fuse_attention_gradients as fuse_attention_gradients,
)
from weft_loop_ir.attention.key_bounds import KeyBounds as KeyBounds
from weft_loop_ir.attention.library_calls import (
    replace_attention_calls as replace_attention_calls,
)
from weft_loop_ir.attention.operands import MatrixOperand as MatrixOperand
from weft_loop_ir.attention.prologues import fuse_prologues as fuse_prologues
from weft_loop_ir.attention.softmax_rows import RowStatistic as RowStatistic

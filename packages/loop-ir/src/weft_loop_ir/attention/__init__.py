"""Attention of a schedule as one kernel: two products and the softmax between them."""

from weft_loop_ir.attention.find_attention import AttentionKernel as AttentionKernel
from weft_loop_ir.attention.find_attention import fuse_attention as fuse_attention
from weft_loop_ir.attention.key_bounds import KeyBounds as KeyBounds
from weft_loop_ir.attention.operands import Operand as Operand

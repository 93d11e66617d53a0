"""Lowering of ATen graphs to loop graphs.  The rules are in one file for each family of operators."""

from weft_loop_ir.lowering import activations as activations
from weft_loop_ir.lowering import arithmetic as arithmetic
from weft_loop_ir.lowering import concatenation as concatenation
from weft_loop_ir.lowering import contractions as contractions
from weft_loop_ir.lowering import creation as creation
from weft_loop_ir.lowering import grid_sampling as grid_sampling
from weft_loop_ir.lowering import indexing as indexing
from weft_loop_ir.lowering import interpolation as interpolation
from weft_loop_ir.lowering import normalization as normalization
from weft_loop_ir.lowering import pointwise as pointwise
from weft_loop_ir.lowering import pooling as pooling
from weft_loop_ir.lowering import pooling_adaptive as pooling_adaptive
from weft_loop_ir.lowering import pooling_backward as pooling_backward
from weft_loop_ir.lowering import random_numbers as random_numbers
from weft_loop_ir.lowering import reductions as reductions
from weft_loop_ir.lowering import scans as scans
from weft_loop_ir.lowering import scattering as scattering
from weft_loop_ir.lowering import views as views
from weft_loop_ir.lowering.context import LoweringOptions
from weft_loop_ir.lowering.devices import device_of_loops
from weft_loop_ir.lowering.lower import lower
from weft_loop_ir.lowering.registry import NoLowering, register_lowering

__all__ = ["LoweringOptions", "NoLowering", "device_of_loops", "lower", "register_lowering"]

"""What kind of work an operator is, as the partition sees it."""

from __future__ import annotations

import enum
import operator

import torch
import torch.fx
from weft_functionalize import SYMBOLIC_TYPES

from .._torch import OpOverload
from ..passes.storage_origins import is_view


class OperatorClass(enum.Enum):
    """Kinds of work, by what computing it a second time costs."""

    NUMBER = "a size, or what is computed from sizes: free"
    VIEW = "an index expression: free"
    CREATION = "values without reading: free where fused"
    POINTWISE = "one value from each of the arguments' : free where fused"
    GATHER = "loads at computed places: free where fused"
    REDUCTION = "many values to one"
    CONTRACTION = "a contraction, or a library call of that cost"
    RANDOM = "other values at each run"
    OTHER = "unknown, or with effects"


# Operators by name, where neither schema nor tags tell.
_BY_NAME: dict[OperatorClass, str] = {
    OperatorClass.CREATION: (
        "arange empty empty_like empty_permuted empty_strided eye fill full full_like linspace logspace "
        "new_empty new_empty_strided new_full new_ones new_zeros ones ones_like scalar_tensor "
        "tril_indices triu_indices zeros zeros_like"
    ),
    OperatorClass.POINTWISE: (
        "_to_copy _prelu_kernel cat constant_pad_nd copy diagonal_scatter flip glu repeat roll "
        "select_scatter slice_scatter stack tril triu unsafe_masked_fill"
    ),
    OperatorClass.GATHER: "embedding gather index index_select take _unsafe_index",
    OperatorClass.REDUCTION: (
        "all amax amin any argmax argmin logsumexp linalg_vector_norm max mean min norm prod std "
        "std_mean sum var var_mean cumsum cumprod _softmax _log_softmax _safe_softmax "
        "native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit "
        "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training nll_loss_forward "
        "avg_pool2d _adaptive_avg_pool2d max_pool2d_with_indices _fused_rms_norm"
    ),
    OperatorClass.CONTRACTION: (
        "addbmm addmm addmv addr baddbmm bmm convolution dot mm mv vdot _addmm_activation "
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_attention_math_for_mps mkldnn_rnn_layer"
    ),
}
_KNOWN_NAMESPACES = ("aten", "prims", "weft")  # the last: random numbers that a seed determines
_CLASS_OF_NAME = {name: kind for kind, names in _BY_NAME.items() for name in names.split()}


def classify(node: torch.fx.Node) -> OperatorClass:
    """The class of a ``call_function`` node."""
    if node.target is torch.ops.aten._local_scalar_dense.default:
        return OperatorClass.OTHER  # waits for the data
    if isinstance(node.meta.get("val"), SYMBOLIC_TYPES):
        return OperatorClass.NUMBER
    if node.target is torch.ops.aten._to_copy.default and _changes_device(node):
        return OperatorClass.OTHER  # no kernel can, and the host may wait
    if is_view(node) or node.target is operator.getitem:
        return OperatorClass.VIEW
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace not in _KNOWN_NAMESPACES:
        return OperatorClass.OTHER
    if torch.Tag.nondeterministic_seeded in target.tags:
        return OperatorClass.RANDOM
    known = _CLASS_OF_NAME.get(target._schema.name.partition("::")[2])
    if known is not None:
        return known
    return OperatorClass.POINTWISE if torch.Tag.pointwise in target.tags else OperatorClass.OTHER


def _changes_device(copy: torch.fx.Node) -> bool:
    (source,) = copy.all_input_nodes
    return bool(source.meta["val"].device != copy.meta["val"].device)

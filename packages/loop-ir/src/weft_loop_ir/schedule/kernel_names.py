"""Names of kernels that say what they compute, by the operators of a loop nest: ``add_layer_norm_3``."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_WORDS = 4
MAX_LENGTH = 40
"""Of a name without its number: profilers' columns are narrow."""

WORDS = {
    "_softmax_backward_data": "softmax_backward",
    "_log_softmax_backward_data": "log_softmax_backward",
    "_native_batch_norm_legit": "batch_norm",
    "_native_batch_norm_legit_functional": "batch_norm",
    "cudnn_batch_norm": "batch_norm",
    "threshold_backward": "relu_backward",
    "convolution": "conv",
    "convolution_backward": "conv_backward",
    **dict.fromkeys(("mm", "bmm", "baddbmm", "addbmm", "_scaled_mm", "_grouped_mm"), "matmul"),
    "addmm": "linear",
    "embedding_dense_backward": "embedding_backward",
    "max_pool2d_with_indices": "max_pool2d",
    "max_pool2d_with_indices_backward": "max_pool2d_backward",
    "nll_loss_forward": "nll_loss",
    "uniform_at": "rand",
    "normal_at": "randn",
    "pow": "power",
    "_unsafe_index": "index",
    "_unsafe_index_put": "index_put",
    "_scaled_dot_product_flash_attention_for_cpu": "attention",
    "_scaled_dot_product_flash_attention": "attention",
    "_scaled_dot_product_efficient_attention": "attention",
    "_scaled_dot_product_cudnn_attention": "attention",
}
"""What is said of an operator, by its name without namespace and overload, where that isn't the name."""

QUIET = {
    "_to_copy": "cast", "clone": "copy", "copy": "copy", "alias": "copy",
    "full": "fill", "full_like": "fill", "zeros": "fill", "zeros_like": "fill", "ones": "fill",
    "ones_like": "fill", "new_zeros": "fill", "new_full": "fill", "empty": "fill", "scalar_tensor": "fill",
    "arange": "arange", "view": "copy", "_unsafe_view": "copy", "reshape": "copy", "expand": "copy",
    "permute": "copy", "transpose": "copy", "t": "copy", "slice": "copy", "select": "copy",
    "unsqueeze": "copy", "squeeze": "copy", "as_strided": "copy", "detach": "copy", "where": "where",
    "while_loop": "loop", "cond": "branch",
    "lift_fresh_copy": "copy", "split": "copy", "unbind": "copy", "diagonal": "copy",
}  # fmt: skip
"""The same for operators that say something only of a kernel that has no others."""

_HEAVY = re.compile(
    r"norm|softmax|attention|matmul|linear|conv|pool|loss|cum|embedding|scatter|index|sort"
)
_REDUCTIONS = frozenset(
    "sum mean amax amin argmax argmin prod var var_mean any all max min".split()
)


def kernel_name(operators: Iterable[str]) -> str:
    """The name, without a number, of a kernel of ``operators`` (``"aten::_softmax"``), in their order.

    Each is named once.  Of many, those that take the time stay, then the first ones.
    """
    loud: dict[str, None] = {}
    quiet: dict[str, None] = {}
    for operator in operators:
        name = operator.rpartition("::")[2].partition(".")[0]
        if name in QUIET:
            quiet[QUIET[name]] = None
        else:
            loud[WORDS.get(name, re.sub(r"\W", "_", name).strip("_").removeprefix("native_"))] = (
                None
            )
    words = list(loud or quiet)
    by_weight = sorted(words, key=_weight)
    while len(words) > MAX_WORDS or (len("_".join(words)) > MAX_LENGTH and len(words) > 1):
        words.remove(by_weight.pop())
    return "_".join(words)[:MAX_LENGTH].strip("_") or "kernel"


def _weight(word: str) -> int:
    """0 for what takes a kernel's time, 2 for arithmetic on elements."""
    return 0 if _HEAVY.search(word) else 1 if word.partition("_")[0] in _REDUCTIONS else 2


def renamed(name: str, words: str) -> str:
    """The name of a kernel that computes more, or something else: with its number, which is its own."""
    return f"{words}_{name.rpartition('_')[2]}"

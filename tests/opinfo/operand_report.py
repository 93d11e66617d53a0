"""Bad operands for all that is lowered or decomposed: ``python -m tests.opinfo.operand_report --help``.

Calls are made up from schemas.  Where eager raises an error, the compiled call has to raise the same one, and
to leave the storages of its operands as eager does, with what lies in them before and after the operands.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch._ops import OpOverload
from weft_aot_autograd import default_decompositions
from weft_loop_ir.lowering.registry import RULES

from tests.opinfo.checking import UNDEFINED, Case, Outcome
from tests.opinfo.error_report import check_attempts
from tests.opinfo.layout_report import evaluate_schedules
from tests.opinfo.made_operands import made_calls
from tests.opinfo.sweeps import command

CRASHES = frozenset(
    f"aten.{name}"
    for name in (
        "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward _batch_norm_impl_index_backward "
        "_embedding_bag_forward_only _log_softmax_backward_data _native_batch_norm_legit_functional "
        "_native_batch_norm_legit_no_training _pad_packed_sequence _remove_batch_dim _sobol_engine_draw "
        "_scaled_dot_product_flash_attention_for_cpu _thnn_differentiable_gru_cell_backward "
        "_thnn_differentiable_lstm_cell_backward _weight_norm _weight_norm_interface "
        "adaptive_max_pool2d_backward adaptive_max_pool3d_backward choose_qparams_optimized "
        "embedding_bag embedding_dense_backward fbgemm_pack_gemm_matrix_fp16 native_batch_norm "
        "native_batch_norm_backward promote_types quantized_lstm_cell reflection_pad1d_backward "
        "reflection_pad2d_backward"
    ).split()
)
"""Operators of which torch 2.13 itself crashes on some of these calls."""


def operators() -> dict[str, OpOverload]:
    """What is lowered or decomposed, and its form in place, by name."""
    found: dict[str, OpOverload] = {}
    for operator in (*RULES, *default_decompositions()):
        names = operator._schema.name.partition("::")[2], operator._overloadname
        if operator.namespace != "aten" or names[0] in UNDEFINED or not operator._schema.arguments:
            continue
        if any(argument.is_out for argument in operator._schema.arguments):
            continue
        if str(operator).rpartition(".")[0] in CRASHES:
            continue
        found[str(operator)] = operator
        packet = getattr(torch.ops.aten, names[0] + "_", None)
        if packet is not None and names[1] in packet.overloads():
            found[f"aten.{names[0]}_.{names[1]}"] = getattr(packet, names[1])
    return dict(sorted(found.items()))


def operand_cases() -> Iterator[Case]:
    """Every operator, with static sizes and with dynamic ones."""
    for name in operators():
        for dynamic in (False, True):
            yield Case(name, torch.float32, dynamic)


def check_operands(case: Case, samples: int, every: int = 1) -> Outcome:
    """Compare calls that eager refuses, of ``samples`` calls that it takes changed in every way."""
    operator = operators()[case.name]
    return check_attempts(operator, made_calls(operator, samples), case.dynamic, every)


def serve_one(case: Case, samples: int) -> Outcome:
    evaluate_schedules()
    return check_operands(case, samples)


if __name__ == "__main__":
    command(operand_cases, serve_one, "tests.opinfo.operand_report")

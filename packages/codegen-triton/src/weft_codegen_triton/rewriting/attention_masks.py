"""Attention whose mask is known while compiling: without the mask, or causal, by the kernels made for that.

A library of models makes its masks in the forward function, of positions that are packed, padded or causal;
what comes out is mostly "everything" or "what came before".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.fx

from weft_codegen_triton.rewriting.constants import Constants

aten = torch.ops.aten


@dataclass(frozen=True)
class AttentionArguments:
    """Where an attention operator has its query, its mask (a position, or a keyword) and ``is_causal``."""

    query: int
    mask: int | str
    causal: int


OPERATORS = {
    aten._scaled_dot_product_cudnn_attention.default: AttentionArguments(0, 3, 6),
    aten._scaled_dot_product_cudnn_attention_backward.default: AttentionArguments(1, 8, 14),
    aten._scaled_dot_product_efficient_attention.default: AttentionArguments(0, 3, 6),
    aten._scaled_dot_product_efficient_attention_backward.default: AttentionArguments(1, 4, 11),
    aten._scaled_dot_product_flash_attention_for_cpu.default: AttentionArguments(0, "attn_mask", 4),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: AttentionArguments(
        1, "attn_mask", 8
    ),
}


def drop_known_masks(graph: torch.fx.Graph) -> None:
    """Take constant masks that hide nothing, or all later positions, from attention operators."""
    constants = Constants()
    for target, where in OPERATORS.items():
        for node in graph.find_nodes(op="call_function", target=target):
            mask = _argument(node, where.mask)
            if not isinstance(mask, torch.fx.Node) or _argument(node, where.causal):
                continue
            value = constants.value(mask)
            if value is None:
                continue
            visible = value if value.dtype == torch.bool else value == 0
            if visible.all():
                _replace(node, where, False)
            elif _is_causal(value, visible):
                _replace(node, where, True)


def _argument(node: torch.fx.Node, place: int | str) -> object:
    if isinstance(place, str):
        return node.kwargs.get(place)
    return node.args[place] if place < len(node.args) else None


def _is_causal(value: torch.Tensor, visible: torch.Tensor) -> bool:
    """Whether a query sees just the keys up to its own position."""
    rows, columns = visible.shape[-2:]
    if rows != columns or not bool((visible == visible.new_ones(rows, columns).tril()).all()):
        return False
    return value.dtype == torch.bool or bool((value[~visible] == -torch.inf).all())


def _replace(node: torch.fx.Node, where: AttentionArguments, causal: bool) -> None:
    defaults = [a.default_value for a in node.target._schema.arguments]  # type: ignore[union-attr]
    arguments = [*node.args, *defaults[len(node.args) : where.causal + 1]]
    arguments[where.causal] = causal
    if isinstance(where.mask, str):
        node.kwargs = {k: v for k, v in node.kwargs.items() if k != where.mask}
    else:
        arguments[where.mask] = None
    node.args = tuple(arguments)

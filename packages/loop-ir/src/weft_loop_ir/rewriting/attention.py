"""Attention that is written out becomes one call of the library's, in graphs that have no gradients yet.

``scaled_dot_product_attention`` never has the scores in memory, and keeps little for its gradients.  It adds
up in float32 what the separate operators round in between, so results agree within the rounding of those.
Its backward computes scores again, in another order than forward did.  Where scores are about 1e5 in float32
they then differ by a percent, gradients too: ``dtypes`` are for who calls it to say.
Rows without any key to see are NaN there, and stay so (:func:`_with_hidden_rows`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import sympy
import torch
import torch.fx

from weft_loop_ir.rewriting.attention_patterns import (
    Attention,
    Mask,
    find_attention,
    hides_nothing,
    hides_rows,
    is_causal,
    is_finite,
    keeps_order,
    lowest,
    sizes,
)
from weft_loop_ir.rewriting.fakes import ConstantValues, call_before, insert_call, source_of

aten = torch.ops.aten

Node = torch.fx.Node

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def use_library_attention(
    graph: torch.fx.Graph,
    dtypes: Collection[torch.dtype] = DTYPES,
    *,
    min_scores: int = 0,
    min_masked_scores: int = 0,
    few_keys: int = 0,
    differentiated: bool = True,
) -> int:
    """Replace softmaxes between matmuls in ``graph``, a functional ATen graph; gives how many.

    Left as they are: those in other ``dtypes``, with fewer than ``min_scores`` scores a head, with at most
    ``few_keys`` keys, with dropout, with scores or probabilities that anything else reads.  Results lie
    as they did.  ``differentiated``: gradients are to be recorded, which have to be
    eager's in rows without any key to see, too.  A call with a mask needs
    ``min_masked_scores``; one whose mask is known to be causal has none.
    """
    known = ConstantValues(graph)
    return sum(
        _replace(found, known, differentiated, min_masked_scores)
        for found in find_attention(graph, known)
        if _is_eligible(found, dtypes, min_scores, few_keys)
    )


def _is_eligible(
    found: Attention, dtypes: Collection[torch.dtype], min_scores: int, few_keys: int
) -> bool:
    operands = (found.query, found.key, found.value, found.result)
    if len({node.meta["val"].dtype for node in operands}) != 1:
        return False
    (_, _, width), (*_, keys), (*_, columns) = (sizes(node) for node in operands[:3])
    if width != columns or any(n == 0 for n in (*sizes(found.query), keys)):
        return False
    if keys.is_Integer and int(keys) <= few_keys:
        return False
    return _has_scores(found, min_scores) and found.result.meta["val"].dtype in dtypes


def _has_scores(found: Attention, least: int) -> bool:
    """Whether a head has so many scores; where their number varies, it is taken to have few."""
    scores = sizes(found.query)[1] * sizes(found.key)[-1]
    return least == 0 or bool(scores.is_Integer and int(scores) >= least)


def _replace(
    found: Attention, known: ConstantValues, differentiated: bool, min_masked_scores: int
) -> bool:
    """Put a call in the place of a match; False where its operands have no form for that."""
    batch = _batch(found)
    masks = [m for m in found.masks if not _hides_nothing(m, known)]
    query, turned, value = (_with_batch(node, batch, found.result) for node in found.operands)
    if query is None or turned is None or value is None or not _are_addable(masks, found):
        return False
    is_causal_call = len(masks) == 1 and _is_causal(masks[0], known)
    if masks and not is_causal_call and not _has_scores(found, min_masked_scores):
        return False
    hides = bool(masks) and _may_hide_rows(masks, known)
    if hides and differentiated and any(m.fill is not None for m in masks):
        return False  # scores that are not seen get no gradients, not NaN
    key = _turned(turned, found.result)
    key = _with_batch(key, batch, found.result) or key
    keywords: dict[str, Any] = {"scale": found.scale}
    mask = None
    if is_causal_call:
        keywords["is_causal"] = True
    elif masks:
        mask = _joined([_prepared(m, batch, found.result) for m in masks], found.result)
    few_keys, few_values = _repeated(key), _repeated(value)
    if mask is None and few_keys is not None and few_values is not None:
        key, value = few_keys, few_values
        keywords["enable_gqa"] = True
    attention = aten.scaled_dot_product_attention.default
    call = call_before(found.result, attention, query, key, value, mask, **keywords)
    if mask is not None and hides:
        call = _with_hidden_rows(call, mask, found.result)
    return _settle(found, call)


# ---- operands --------------------------------------------------------------------------------------------


def _batch(found: Attention) -> tuple[sympy.Expr, sympy.Expr]:
    """The two batch dimensions, such as images and heads, that scores or queries have somewhere."""
    count, queries, _ = sizes(found.query)
    for node in (*found.nodes, *_same_elements(found.query)):
        size = sizes(node)
        if len(size) == 4 and size[2] == queries and _is_zero(size[0] * size[1] - count):
            return size[0], size[1]
    return sympy.S.One, count


def _is_zero(expression: sympy.Expr) -> bool:
    return bool(sympy.expand(expression) == 0)


def _same_elements(node: Node) -> list[Node]:
    """``node`` and what it is a copy or view of, as far as that has the same elements in order."""
    found = [node]
    while keeps_order(node):
        node = source_of(node)
        found.append(node)
    return found


def _with_batch(node: Node, batch: tuple[Any, Any], before: Node) -> Node | None:
    """The matrices of ``node`` as ``[*batch, _, _]``, before they were copied where they were."""
    size = (*batch, *sizes(node)[-2:])
    for source in reversed(_same_elements(node)):
        if sizes(source) == size:
            return source
    return _viewed(node, size, before)


def _viewed(node: Node, size: Sequence[sympy.Expr], before: Node) -> Node | None:
    """A view; None if more than one of its extents varies."""
    extents = [int(n) if n.is_Integer else -1 for n in size]
    return call_before(before, aten.view.default, node, extents) if extents.count(-1) < 2 else None


def _turned(key: Node, before: Node) -> Node:
    """``key`` with its last two dimensions exchanged."""
    source = key.args[0] if key.target is aten.transpose.int else None
    if isinstance(source, Node) and set(key.args[1:]) in ({2, 3}, {-1, -2}):
        return source
    return call_before(before, aten.transpose.int, key, 2, 3)


def _repeated(node: Node) -> Node | None:
    """The heads that ``node`` holds several times each, one after another; None if it doesn't."""
    for source in _same_elements(node):
        if source.target is aten.expand.default:
            row = source_of(source)
            before, after = sizes(row), sizes(source)
            is_row = len(before) == 5 and before[2] == 1 and row.target is aten.unsqueeze.default
            if is_row and (*before[:2], *before[3:]) == (*after[:2], *after[3:]):
                return source_of(row) if row.args[1] in (2, -3) else None
    return None


# ---- masks -----------------------------------------------------------------------------------------------


def _value(mask: Mask, known: ConstantValues) -> torch.Tensor | None:
    """What ``mask`` always is, true where keys are seen if it is not added."""
    value = known.tensor(mask.node)
    if value is None or (mask.fill is not None and value.dtype != torch.bool):
        return None
    return ~value if mask.hides else value


def _hides_nothing(mask: Mask, known: ConstantValues) -> bool:
    value = _value(mask, known)
    return value is not None and hides_nothing(value)


def _is_causal(mask: Mask, known: ConstantValues) -> bool:
    value = _value(mask, known)
    return value is not None and is_causal(value)


def _are_addable(masks: Sequence[Mask], found: Attention) -> bool:
    """Whether the library takes the masks: of the operands' dtype, and no larger than the scores.

    A finite number in the place of scores is added to them.  They are lost in float32 and bfloat16; beside
    other masks, or in float16, a row that is hidden wholly would differ.
    """
    dtype = found.result.meta["val"].dtype
    if any(_is_finite_fill(m) for m in masks) and (len(masks) > 1 or dtype == torch.float16):
        return False
    count, queries, keys = (*sizes(found.query)[:2], sizes(found.key)[-1])
    scores = (count, queries, keys), (*_batch(found), queries, keys)
    return all(_is_addable(m, dtype) and sizes(m.scores) in scores for m in masks)


def _is_finite_fill(mask: Mask) -> bool:
    return mask.fill is not None and math.isfinite(mask.fill)


def _is_addable(mask: Mask, dtype: torch.dtype) -> bool:
    value, size, scores = mask.node.meta["val"], sizes(mask.node), sizes(mask.scores)
    if value.dtype != (dtype if mask.fill is None else torch.bool):
        return False
    if len(size) > len(scores) or size[-1:] != scores[-1:]:
        return False
    return len(scores) == 4 or len(size) < 3 or size[0] == 1 or _has_one_symbol(size)


def _has_one_symbol(size: Sequence[sympy.Expr]) -> bool:
    return sum(not n.is_Integer for n in size) < 2


def _prepared(mask: Mask, batch: tuple[Any, Any], before: Node) -> Node:
    """The mask with four dimensions, true where keys are seen if it is not added."""
    node, size = mask.node, sizes(mask.node)
    if len(sizes(mask.scores)) == 3 and len(size) == 3 and size[0] != 1:
        viewed = _viewed(node, (*batch, *size[1:]), before)
        assert viewed is not None
        node = viewed
    for _ in range(4 - len(sizes(node))):
        node = call_before(before, aten.unsqueeze.default, node, 0)
    if mask.hides:
        node = call_before(before, aten.logical_not.default, node)
    if _is_finite_fill(mask):
        dtype = before.meta["val"].dtype
        zero, fill = (_number(n, dtype, before) for n in (0.0, lowest(dtype)))
        node = call_before(before, aten.where.self, node, zero, fill)
    return node


def _number(number: float, dtype: torch.dtype, before: Node) -> Node:
    device = before.meta["val"].device
    with before.meta["val"].fake_mode:
        value = torch.empty((), dtype=dtype, device=device)
    return insert_call(
        before, value, aten.full.default, [], number, dtype=dtype, device=device, pin_memory=False
    )


def _joined(masks: Sequence[Node], before: Node) -> Node:
    """Several prepared masks as one."""
    seen = [m for m in masks if m.meta["val"].dtype == torch.bool]
    added = [m for m in masks if m.meta["val"].dtype != torch.bool]
    for group, operator in ((seen, aten.logical_and.default), (added, aten.add.Tensor)):
        while len(group) > 1:
            group[:2] = [call_before(before, operator, *group[:2])]
    if seen and added:
        nothing = _number(-math.inf, added[0].meta["val"].dtype, before)
        return call_before(before, aten.where.self, seen[0], added[0], nothing)
    return (seen or added)[0]


def _may_hide_rows(masks: Sequence[Mask], known: ConstantValues) -> bool:
    """Whether a row may have no key to see; sums of several masks are not looked into."""
    if len(masks) > 1:
        return True
    (mask,) = masks
    value = _value(mask, known)
    if value is not None:
        return hides_rows(value)
    if mask.fill is not None:
        return not math.isfinite(mask.fill)
    return not is_finite(mask.node, known)


def _with_hidden_rows(call: Node, mask: Node, before: Node) -> Node:
    """``call`` with NaN in the rows in which ``mask`` hides all keys.

    A factor, so that gradients of and through such a row are NaN as a softmax's are.
    """
    dtype = before.meta["val"].dtype
    if mask.meta["val"].dtype == torch.bool:
        seen = call_before(before, aten.any.dim, mask, -1, True)
    else:
        largest = call_before(before, aten.amax.default, mask, [-1], True)
        seen = call_before(before, aten.ne.Scalar, largest, -math.inf)
    one, nothing = _number(1.0, dtype, before), _number(math.nan, dtype, before)
    factor = call_before(before, aten.where.self, seen, one, nothing)
    return call_before(before, aten.mul.Tensor, call, factor)


# ---- the result ------------------------------------------------------------------------------------------


def _settle(found: Attention, call: Node) -> bool:
    """Let ``call`` take the place of the match's result, laid out as that is."""
    result = found.result
    dense = call_before(result, aten.clone.default, call, memory_format=torch.contiguous_format)
    users = list(result.users)
    reshapes = (aten._unsafe_view.default, aten.view.default)
    if all(u.target in reshapes and sizes(u) == sizes(call) for u in users):
        for user in users:
            user.replace_all_uses_with(dense)
        gone = users
    else:
        flat = _viewed(dense, sizes(result), result)
        if flat is None:
            return False
        result.replace_all_uses_with(flat)
        gone = []
    for node in (*gone, *reversed(found.nodes)):
        node.graph.erase_node(node)
    return True

"""Random masks of zeros and ones are kept for backward as booleans, a quarter of the bytes of float32."""

from __future__ import annotations

import torch
import torch.fx

aten = torch.ops.aten

# Operators whose results hold zeros and ones only.
_MASKS = (aten.bernoulli.p, aten.bernoulli.default)


def compress_masks(graph: torch.fx.Graph) -> None:
    """Put a boolean between each mask and its readers: converting back costs nothing where it is fused."""
    for target in _MASKS:
        for mask in graph.find_nodes(op="call_function", target=target):
            value = mask.meta["val"]
            if value.dtype is torch.bool or all(user.op == "output" for user in mask.users):
                continue
            readers = [user for user in mask.users if user.op != "output"]
            with graph.inserting_after(mask):
                narrow = graph.call_function(aten._to_copy.default, (mask,), {"dtype": torch.bool})
            with graph.inserting_after(narrow):
                wide = graph.call_function(aten._to_copy.default, (narrow,), {"dtype": value.dtype})
            _describe(narrow, mask, torch.bool)
            _describe(wide, mask, value.dtype)
            for reader in readers:
                reader.replace_input_with(mask, wide)


def _describe(node: torch.fx.Node, mask: torch.fx.Node, dtype: torch.dtype) -> None:
    value = mask.meta["val"]
    node.meta.update({key: entry for key, entry in mask.meta.items() if key != "val"})
    with value.fake_mode, torch.no_grad():
        node.meta["val"] = torch.empty_strided(
            value.shape, value.stride(), dtype=dtype, device=value.device
        )

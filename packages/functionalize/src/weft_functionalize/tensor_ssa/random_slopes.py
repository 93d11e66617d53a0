"""``rrelu``, whose operators write the slopes that they have drawn into a tensor for backward.

What differentiates the functional form that torch has reads that tensor as it was before, so that gradients
were those of whatever was in memory.  Here the form is asked for slopes alone, of which gradients know
nothing; the result is their product with the values, as in torch's kernel.
"""

from __future__ import annotations

import torch
import torch.fx

from ..unsupported import Unsupported
from .alias_graph import argument_value
from .emitter import Emitter

aten = torch.ops.aten

RRELU = (aten.rrelu_with_noise.default, aten.rrelu_with_noise_.default)


def scale_at_random(emit: Emitter, node: torch.fx.Node) -> list[torch.fx.Node]:
    """The new values of what ``node`` writes: the slopes, behind the product where that is written too.

    Where it is not, ``node`` becomes the product.
    """
    value, training = argument_value(node, "self"), argument_value(node, "training")
    assert isinstance(value, torch.fx.Node)
    form = aten.rrelu_with_noise_functional.default
    writes_value = node.target is aten.rrelu_with_noise_.default
    if not training:
        call = emit.call(form, *node.args, **node.kwargs)
        return [emit.item(call, 0), emit.item(call, 1)]
    constant = emit.call(aten.detach.default, value)
    slopes = emit.item(emit.call(form, constant, *node.args[1:], **node.kwargs), 1)
    if writes_value:
        return [emit.call(aten.mul.Tensor, value, slopes), slopes]
    node.target, node.args, node.kwargs = aten.mul.Tensor, (value, slopes), {}
    return [slopes]


def leave_unwritten(node: torch.fx.Node) -> None:
    """Let a ``node`` that writes nothing be an operator that never does."""
    if node.target is not aten.rrelu_with_noise.default:
        return
    lower, upper = (argument_value(node, name) for name in ("lower", "upper"))
    if not (isinstance(lower, int | float) and isinstance(upper, int | float)):
        raise Unsupported("symbolic number", f"a slope of {node.target}", "Pass numbers.")
    slope = (lower + upper) / 2
    node.target, node.args, node.kwargs = aten.leaky_relu.default, (node.args[0], slope), {}

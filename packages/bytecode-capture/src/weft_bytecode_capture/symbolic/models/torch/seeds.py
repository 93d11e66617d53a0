"""``torch.manual_seed(seed)`` before the graph draws: the seeds are set on entry of the frame.

Imported when a program's function of ``torch.random`` is met first, since torch's compiler, which is imported
for symbols of sizes, puts another function in the place of ``torch.manual_seed``.
"""

from __future__ import annotations

from typing import Any

import torch
from weft_guards import ConstantSource

from ...._torch import HigherOrderOperator
from ...._torch.symbols import import_what_fake_tensors_need
from ....unsupported import Unsupported
from ...graph.purity import draws
from ...protocol import Evaluator
from ...variables.base import Variable
from ..objects.opaque import OpaqueVariable
from ..table import models
from .drawn_tensors import GeneratorVariable, draw_on_entry

_KIND = "state of a random number generator"
_SET = [torch.manual_seed]
import_what_fake_tensors_need()
_SET += [torch.manual_seed] if torch.manual_seed is not _SET[0] else []


@models(*_SET)
def _manual_seed(function: Any, evaluator: Evaluator, seed: Variable, /) -> Variable:
    """Seeds of all of torch's generators."""
    what = f"torch.manual_seed({seed!r})"
    if function is not torch.manual_seed:
        raise Unsupported(_KIND, what, "another function has taken its place")
    nodes = evaluator.graph.outermost.nodes
    if any(draws(node) or isinstance(node.target, HigherOrderOperator) for node in nodes):
        raise Unsupported(_KIND, what, "the graph has drawn before")
    own = torch.default_generator
    place = ConstantSource("torch.default_generator", own)

    def set_seed(generator: torch.Generator, number: int) -> None:
        if generator is own:
            torch.manual_seed(number)
        else:  # a copy, from which only the numbers of the frame are drawn
            generator.manual_seed(number)

    draw_on_entry(evaluator, GeneratorVariable(own, place), set_seed, [seed], {})
    return OpaqueVariable(own, place)

"""Options of functionalization."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.fx

StepObserver = Callable[[str, torch.fx.Graph], None]


@dataclass(frozen=True)
class FunctionalizeOptions:
    """How to convert, and who sees it.

    ``verify``: prove after the conversion that no operator writes.
    ``aliased_inputs``: groups of positions of user inputs known to share storage.  A graph that mutates
    one of a group is not supported; what the example inputs themselves share is found without this.
    ``observe``: is called with the name of each step of algorithm 1 ("recorded", "rewritten", "renamed",
    "converted") and a block's graph after it, which is not to be changed: innermost blocks come first.
    """

    verify: bool = True
    aliased_inputs: tuple[frozenset[int], ...] = ()
    observe: StepObserver | None = None

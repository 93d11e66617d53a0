"""What a model needs in order to be tested and timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class ModelCase:
    """A model with random weights and two differently shaped inputs.

    ``build(large)`` makes the module in eval mode: small for tests, large for timing.
    ``inputs(large, variant)`` gives keyword arguments; ``variant`` 0 and 1 differ in shape.
    """

    name: str
    build: Callable[[bool], torch.nn.Module]
    inputs: Callable[[bool, int], dict[str, Any]]

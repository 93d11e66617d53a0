"""Values of torch that are neither tensors nor functions: number formats."""

from __future__ import annotations

import torch

from ..builder import register_constant_types

register_constant_types(torch.finfo, torch.iinfo)

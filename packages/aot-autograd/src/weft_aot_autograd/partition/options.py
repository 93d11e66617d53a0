"""Options of the partition."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PartitionOptions:
    """What is kept for backward.

    ``activation_memory_budget``: bytes kept for backward, as a share (0 to 1) of what is kept by default.
    At 1 only what :data:`~.recompute_policy.POLICY` lets be is computed twice.  Below, the operators that are
    cheapest for the bytes they free are too, contractions last; inputs are kept as they are for this, as
    ``torch.utils.checkpoint`` keeps them, and writing to one before backward is an error.  Raises ValueError
    outside of 0 to 1.
    ``keep_operators``: none is written out for the sake of what backward reads, which rounds otherwise.
    """

    activation_memory_budget: float = 1.0
    keep_operators: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.activation_memory_budget <= 1:
            raise ValueError(
                f"activation_memory_budget is from 0 to 1, got {self.activation_memory_budget}"
            )

"""Clean-ups of a pure ATen graph, one file a pass; each returns how many nodes it removed."""

from __future__ import annotations

from .collectives import overlap_collectives as overlap_collectives
from .common_subexpressions import (
    eliminate_common_subexpressions as eliminate_common_subexpressions,
)
from .dead_code import eliminate_dead_code as eliminate_dead_code
from .identities import remove_identities as remove_identities

"""Locals that one branch binds, which the program reads nowhere before it binds them again.

In ``for e in hit: with torch.no_grad(): a, b = f(e)`` the ``with`` might swallow what ``f`` raises, so that a
later iteration reads the locals of the one before.  Where none does, what they are is never asked.
"""

from __future__ import annotations

from ....frame.emitter import Emitter
from ...variables.base import Variable
from ..decisions import RegionRefused


class ChosenLocal(Variable):
    """A local that is bound or not as data decides.  Reading it gives up the region that binds it."""

    def __init__(self, refusal: RegionRefused) -> None:
        self._refusal = refusal

    def read(self) -> None:
        """
        :raises RegionRefused: always.
        """
        raise self._refusal

    def reconstruct(self, emitter: Emitter) -> None:
        self.read()

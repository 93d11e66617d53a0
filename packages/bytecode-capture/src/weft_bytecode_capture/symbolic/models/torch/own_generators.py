"""Generators of random numbers that a program makes, as tensors know them."""

from __future__ import annotations

from abc import abstractmethod

from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ..objects.opaque import OpaqueVariable


class OwnGenerator(OpaqueVariable):
    """A generator beside torch's own."""

    @abstractmethod
    def fill(
        self,
        evaluator: Evaluator,
        tensor: Variable,
        name: str,
        arguments: Arguments,
        keywords: Keywords,
    ) -> Variable:
        """``tensor.normal_(generator=generator)`` and its like, ``keywords`` without the generator."""

"""``random.Random`` made during evaluation: its state is known, and so is what it draws."""

from __future__ import annotations

import random
from typing import Any

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ..builtins.methods import call_method_of
from ..table import method_models

GENERATOR: Any = random.Random.__base__


class GeneratorStateVariable(Variable):
    """What an instance keeps in C: ``generator`` is one of the evaluator's own, in the same state."""

    kind: Any = GENERATOR

    def __init__(self) -> None:
        self.generator = random.Random(0)
        self.is_seeded = False

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        return call_method_of(evaluator, GENERATOR, self, name, arguments, keywords)

    def reconstruct(self, emitter: Emitter) -> None:
        """Push the state."""
        emitter.load_object(GENERATOR.getstate(self.generator))


@method_models(("random", "getrandbits", "seed", "getstate", "setstate"), GENERATOR)
def _call(
    name: str, evaluator: Evaluator, state: GeneratorStateVariable, /, *arguments: Variable
) -> Variable:
    kind, context = "call of a builtin function", f"Random.{name}"
    by_system = name == "seed" and all(argument.is_none() for argument in arguments)
    if by_system or not (name in ("seed", "setstate") or state.is_seeded):
        raise Unsupported(kind, context, "its seed is the operating system's")
    if evaluator.graph.is_in_region:
        raise Unsupported(kind, context, "each iteration draws another number")
    state.is_seeded = True
    positional, _ = evaluator.snapshots(arguments, {}, context)
    method = getattr(GENERATOR, name)
    return evaluator.wrap_result(evaluator.pure(method, state.generator, *positional))

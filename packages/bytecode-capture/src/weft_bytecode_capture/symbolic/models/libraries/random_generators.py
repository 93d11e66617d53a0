"""``random.Random`` made during evaluation: its state is known, and so is what it draws."""

from __future__ import annotations

import random
from typing import Any

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ..builtins.methods import call_method_of
from ..table import method_model

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


def _register(name: str) -> None:
    @method_model(name, GENERATOR)
    def _call(
        evaluator: Evaluator, state: GeneratorStateVariable, /, *arguments: Variable
    ) -> Variable:
        seeds = name in ("seed", "setstate")
        if (name == "seed" and all(argument.is_none() for argument in arguments)) or not (
            seeds or state.is_seeded
        ):
            raise Unsupported(
                "call of a builtin function", f"Random.{name}", "its seed is the operating system's"
            )
        if evaluator.graph.is_in_region:
            raise Unsupported(
                "call of a builtin function",
                f"Random.{name}",
                "each iteration draws another number",
            )
        state.is_seeded = True
        positional, _ = evaluator.snapshots(arguments, {}, f"Random.{name}")
        method = getattr(GENERATOR, name)
        return evaluator.wrap_result(evaluator.pure(method, state.generator, *positional))


for _name in ("random", "getrandbits", "seed", "getstate", "setstate"):
    _register(_name)

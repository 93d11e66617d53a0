"""``hashlib``: digests of known bytes are known."""

from __future__ import annotations

import hashlib
from typing import Any

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import ConstantVariable
from ..builtins.methods import BuiltinMethodVariable
from ..table import model, models

_NAMES = ("md5", "sha1", "sha224", "sha256", "sha384", "sha512", "sha3_256", "sha3_512")
_METHODS = frozenset(("update", "digest", "hexdigest", "copy"))
_FACTS = frozenset(("name", "digest_size", "block_size"))


class DigestVariable(Variable):
    """``digest`` is one of the evaluator's own, in the state of the program's, by the bytes ``given``."""

    def __init__(self, digest: Any, make: Any, options: dict[str, Any], given: bytes) -> None:
        self.digest = digest
        self.kind: Any = type(digest)
        self._make = make
        self._options = options
        self._given = given

    def truth(self, evaluator: Evaluator) -> bool:
        return True

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in _FACTS:
            return evaluator.wrap_result(getattr(self.digest, name))
        if name in _METHODS:
            return BuiltinMethodVariable(self, name)
        if not hasattr(self.digest, name):
            evaluator.pure(getattr, self.digest, name)  # raises
        return super().get_attribute(evaluator, name)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name not in _METHODS or evaluator.graph.is_in_region:
            return super().call_method(evaluator, name, arguments, keywords)
        positional, named = evaluator.snapshots(arguments, keywords, f"{self!r}.{name}")
        result = evaluator.pure(getattr(self.digest, name), *positional, **named)
        if name == "copy":
            return DigestVariable(result, self._make, self._options, self._given)
        if name == "update":
            self._given += bytes(positional[0])
        return evaluator.wrap_result(result)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(self._make)
        emitter.load_constant(self._given)
        for value in self._options.values():
            emitter.load_object(value)
        emitter.call(1 + len(self._options), tuple(self._options))

    def __repr__(self) -> str:
        return f"{self.digest.name} digest"


@models(*(getattr(hashlib, name) for name in _NAMES))
def _of(
    make: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> DigestVariable:
    positional, named = evaluator.snapshots(arguments, keywords, make.__name__)
    digest = evaluator.pure(make, *positional, **named)
    data = positional[0] if positional else b""
    for name in ("string", "data"):  # as it is called until CPython 3.13, and after
        data = named.pop(name, data)
    return DigestVariable(digest, make, named, bytes(data))


@model(hashlib.new)
def _new(
    evaluator: Evaluator, name: Variable, data: Variable | None = None, **keywords: Variable
) -> Variable:
    known = name.as_constant()
    if known not in _NAMES:
        raise Unsupported("call of a builtin function", f"hashlib.new({name!r})")
    make = evaluator.wrap_known(getattr(hashlib, known))
    return evaluator.call_function(make, [data or ConstantVariable(b"")], keywords)

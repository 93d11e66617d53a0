"""Entries of the program cache that somebody has made or changed: none is run, each is made again."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
import weft
from weft.allowed_values import allowed, expression_of_parts, expression_parts
from weft.pipeline import Pipeline
from weft.program_cache import ProgramCache
from weft_loop_ir import disk_cache
from weft_loop_ir.disk_cache import CacheWarning


def function(x: torch.Tensor) -> torch.Tensor:
    return (x * 2 + 1).sum(0)


def compiled(folder: Path) -> tuple[Any, ProgramCache]:
    programs = ProgramCache(folder)
    pipeline = Pipeline(weft.CompileOptions(), raise_errors=True, programs=programs)
    return weft.compile(function, backend=pipeline), programs


class Planted:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call[0], self.call[1:]


def sealed(*values: Any) -> bytes:
    content = b"".join(map(pickle.dumps, values))
    return hashlib.sha256(content).digest() + content


def test_nothing_that_an_entry_names_is_called(tmp_path: Path) -> None:
    x, witness = torch.randn(3, 4), tmp_path / "witness"
    folder = tmp_path / "programs"
    compiled(folder)[0](x)
    (entry,) = folder.iterdir()
    good = entry.read_bytes()
    touch = f"open({str(witness)!r}, 'w')"
    plants = [
        Planted(os.system, f"touch {witness}"),
        Planted(eval, touch),
        Planted(exec, touch),
        Planted(sympy.sin, f"exec({touch!r})"),
        Planted(sympy.sympify, touch),
        Planted(torch.load, str(witness)),
        Planted(os.mkdir, str(witness)),
        Planted(weft.compile, print),
        Planted(Path.touch, witness),
    ]
    for plant in plants:
        for content in (sealed(plant, plant), sealed(((), ()), plant)):
            entry.write_bytes(content)
            run, programs = compiled(folder)
            torch.testing.assert_close(run(x), function(x))
            assert programs.counts["damaged"] == 1, plant.call
            assert not witness.exists(), plant.call
            assert entry.read_bytes()[:8] != content[:8]
    assert len(entry.read_bytes()) == len(good)


@pytest.mark.parametrize(
    "name",
    """
    builtins.eval builtins.getattr os.system _operator.attrgetter torch.load subprocess.Popen sympy.sin
    weft_codegen_cpp.toolchain.run_compiler weft_codegen_cpp.codegen.os weft.program_cache.pickle.loads
    torch._utils._rebuild_tensor_v2 torch.storage._load_from_bytes weft.nothing
    """.split(),
)
def test_what_may_not_be_named(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    with pytest.raises((pickle.UnpicklingError, AttributeError, ImportError)):
        allowed(module, attribute)


def test_expressions_are_the_same_again() -> None:
    n = sympy.Symbol("n", integer=True, positive=True)
    m = sympy.Symbol("m", integer=True)
    expressions = [
        n, m, n + 1, 2 * n * m, n / 3, sympy.Integer(-5), sympy.Rational(2, 7), sympy.Float("0.1"), sympy.oo,
        sympy.true, sympy.Eq(n, m), sympy.Lt(n, 4), sympy.Max(n, m), sympy.floor(m / 2), sympy.Mod(m, 8),
        sympy.And(sympy.Lt(m, 4), sympy.Ge(m, 0)),
    ]  # fmt: skip

    def again(value: sympy.Basic) -> sympy.Basic:
        kind, *parts = expression_parts(value)
        parts = [again(p) if isinstance(p, sympy.Basic) else p for p in parts]
        return expression_of_parts(kind, *parts)

    for expression in expressions:
        assert again(expression) == expression
    for parts in (
        ("made of", "sympy", "sin", "exit()"),
        ("made of", "os", "system", n),
        ("symbol", n, ()),
    ):
        with pytest.raises(pickle.UnpicklingError):
            expression_of_parts(*parts)


def damage(entry: Path, other: bytes, generator: random.Random) -> str:
    """Change an entry in one of many ways; which."""
    content = bytearray(entry.read_bytes())
    kinds = [
        "cut",
        "flip",
        "other",
        "fifo",
        "folder",
        "link",
        "unreadable",
        "theirs",
        "open",
        "empty",
    ]
    kind = generator.choice(kinds)
    if kind == "cut":
        entry.write_bytes(content[: generator.randrange(len(content))])
    elif kind == "flip":
        for _ in range(generator.randrange(1, 5)):
            content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        entry.write_bytes(content)
    elif kind == "other":
        entry.write_bytes(other)
    elif kind == "empty":
        entry.write_bytes(b"")
    elif kind == "unreadable":
        entry.chmod(0)
    elif kind == "open":
        entry.chmod(0o666)
    elif kind == "theirs" and os.geteuid() == 0:
        os.chown(entry, 12345, 12345)
    else:
        entry.unlink()
        if kind == "fifo":
            os.mkfifo(entry)
        elif kind == "folder":
            (entry / "inner").mkdir(parents=True)
        elif kind == "link":
            entry.symlink_to("/dev/zero")
    return kind


@pytest.mark.filterwarnings(f"ignore::{CacheWarning.__module__}.{CacheWarning.__qualname__}")
def test_any_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all files of all caches, libraries and their checksums too."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    generator = random.Random(0)
    x = torch.randn(3, 4)
    compiled(tmp_path / "programs")[0](x)
    for _ in range(60):
        disk_cache._warned.clear()
        files = [p for p in tmp_path.glob("*/*") if p.suffix in (".program", ".sum", ".so")]
        entry = generator.choice(sorted(files))
        other = generator.choice([p for p in files if p.is_file()]).read_bytes()
        if entry.suffix == ".so":  # it is mapped: another file takes its place
            content = entry.read_bytes()
            entry.unlink()
            entry.write_bytes(content)
            entry.chmod(0o700)
        kind = damage(entry, other, generator)
        run, programs = compiled(tmp_path / "programs")
        torch.testing.assert_close(run(x), function(x))
        assert programs.counts["hit"] + programs.counts["stored"] >= 1, (entry, kind)

"""What of a C extension's shared object says that it is up to date."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = """
#include <Python.h>
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_small", NULL, -1, NULL};
PyMODINIT_FUNC PyInit__small(void) { return PyModule_Create(&definition); }
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    sources = tmp_path / "src" / "small" / "csrc"
    sources.mkdir(parents=True)
    (sources / "small.c").write_text(SOURCE)
    (tmp_path / "hatch_build.py").write_text("")
    monkeypatch.syspath_prepend(str(ROOT))
    return tmp_path


def test_it_is_built_when_contents_change_not_when_times_do(package: Path) -> None:
    from native_extension import NativeExtension

    extension = NativeExtension(package, "small", "_small")
    source = extension.sources / "small.c"

    def build() -> tuple[int, bytes]:
        extension.build()
        return extension.path.stat().st_ino, extension.path.read_bytes()

    first = build()
    os.utime(source, (2**32, 2**32))
    assert build() == first

    source.write_text(SOURCE.replace('"_small", NULL', '"_small", "words"'))
    os.utime(source, (0, 0))
    second = build()
    assert second[0] != first[0]
    assert b"words" in second[1]

    extension.path.write_bytes(
        first[1]
    )  # a copy of another state's, which is newer than the sources
    assert build()[1] == second[1]


def test_it_can_be_imported(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from native_extension import NativeExtension

    extension = NativeExtension(package, "small", "_small")
    extension.build()
    monkeypatch.syspath_prepend(str(extension.path.parent))
    assert __import__("_small").__file__ == str(extension.path)
    del sys.modules["_small"]

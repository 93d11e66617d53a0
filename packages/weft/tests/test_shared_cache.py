"""A store of compiled programs that machines share: looked into, added to, harmless where it fails."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import pytest
import torch
import weft
from weft.shared_cache import SharedCache

fsspec = pytest.importorskip("fsspec")

PROGRAM = """
import torch, weft
log = weft.CompileLog()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 2))
x = torch.arange(32.0).reshape(4, 8)
with weft.observe(log):
    result = weft.compile(model)(x)
result.sum().backward()
torch.testing.assert_close(result, model(x))
print(log.graphs[0].cache)
"""


def test_what_one_machine_compiles_others_load(tmp_path, monkeypatch, capfd) -> None:
    """A machine is a folder of caches.  This process is one, another process the second, twice."""
    store = tmp_path / "store"
    monkeypatch.setenv("WEFT_STRICT", "0")  # strict stages look at everything, and keep no program
    monkeypatch.setenv("WEFT_SHARED_CACHE", f"file://{store}")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "first"))
    exec(PROGRAM, {})
    (bundle,) = store.iterdir()
    with zipfile.ZipFile(bundle) as archive:
        assert {name.partition("/")[0] for name in archive.namelist()} >= {"programs", "cpp"}
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "second"))
    command = [sys.executable, "-W", "ignore", "-c", f"{PROGRAM}\nweft.reset()\n{PROGRAM}"]
    subprocess.run(command, check=True)
    assert capfd.readouterr().out.splitlines() == ["miss, stored, sent", "fetched, hit", "hit"]


def test_options_and_environment_name_it(monkeypatch) -> None:
    assert weft.CompileOptions().shared_cache is None
    monkeypatch.setenv("WEFT_SHARED_CACHE", "memory://x")
    from weft.options import resolve_options

    assert resolve_options(None, None).shared_cache == "memory://x"
    assert resolve_options(None, {"shared_cache": None}).shared_cache is None
    with pytest.raises(RuntimeError, match="should be str"):
        resolve_options(None, {"shared_cache": 3})


@pytest.mark.parametrize("url", ["nothing://bucket/x", "file:///proc/nowhere/x"])
def test_a_store_that_fails_is_one_warning(url, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    options = {"shared_cache": url, "strict": False, "verify": False}
    x = torch.ones(3)
    functions = (lambda x: x.sin() + 3, lambda x: x.cos() * 5)
    compiled = [weft.compile(function, options=options) for function in functions]
    with pytest.warns(weft.WeftWarning, match="shared cache") as caught:
        results = [function(x) for function in compiled]
    torch.testing.assert_close(results, [function(x) for function in functions])
    assert len([w for w in caught if "shared cache" in str(w.message)]) == 1


def test_what_is_no_archive_is_not_unpacked(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "own"))
    name = f"{'a' * 40}.program"
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / name).write_bytes(b"rm -rf")
    with pytest.warns(weft.WeftWarning, match="ArchiveError"):
        assert not SharedCache(f"file://{tmp_path}/store").fetch(name)
    with zipfile.ZipFile(tmp_path / "store" / name, "w") as archive:
        archive.writestr("manifest.json", '{"format": 1, "program": "weft"}')
        archive.writestr("../../escaped.so", "x")
    with pytest.warns(weft.WeftWarning, match="no entry of a cache"):
        assert not SharedCache(f"file://{tmp_path}/store").fetch(name)
    assert not list(tmp_path.rglob("escaped*"))

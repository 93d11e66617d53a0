"""Archives of caches: what they may hold, and artifacts that carry one process's work to another."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile

import pytest
import torch
import weft
from weft import caches
from weft.caches import CACHES, MANIFEST, ArchiveError, cache_infos, pack_caches, unpack_caches

KEY = "0123456789abcdef" * 2


def archive(manifest: object = None, **files: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as made:
        made.writestr(MANIFEST, json.dumps({"format": 1} if manifest is None else manifest))
        for name, entry in files.items():
            made.writestr(name, entry)
    return content.getvalue()


@pytest.fixture(autouse=True)
def own_caches(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "caches"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK no zip",
        archive(manifest=[]),
        archive(manifest={"format": 2}),
        archive(**{f"../{KEY}.so": b""}),
        archive(**{f"cpp/../{KEY}.so": b""}),
        archive(**{f"cpp/{KEY}.so/x": b""}),
        archive(**{f"/cpp/{KEY}.so": b""}),
        archive(**{f"other/{KEY}.so": b""}),
        archive(**{"cpp/short.so": b""}),
        archive(**{f"cpp/{KEY}.lock": b""}),
        archive(**{f"cpp/{KEY}.so": b"fine", "cpp/x": b"not"}),
        archive(**{f"cpp/{KEY}.so": b"some bytes of it"})[:-40],
        archive(**{f"cpp/{KEY}.so": b"0123456789"}).replace(b"0123456789", b"0123456780", 1),
    ],
)
def test_other_files_are_refused_whole(content, tmp_path) -> None:
    with pytest.raises(ArchiveError):
        unpack_caches(content)
    assert not list((tmp_path / "caches").rglob(f"{KEY}*"))


def test_what_is_packed_is_unpacked(tmp_path) -> None:
    files = {f"{name}/{KEY}.{end}": name.encode() for name in CACHES for end in ("so", "sum")}
    assert unpack_caches(archive(**files)).entries == 3
    assert [info.entries for info in cache_infos()] == [1, 1, 1]
    with zipfile.ZipFile(io.BytesIO(pack_caches()[0])) as again:
        assert {name: again.read(name) for name in files} == files
    assert pack_caches(since=4e9)[1].entries == 0


def test_entries_that_another_process_discards_meanwhile_are_not_counted(monkeypatch) -> None:
    unpack_caches(archive(**{f"cpp/{key}.so": b"entry" for key in (KEY, KEY[::-1])}))
    files = caches._files

    def discarding(folder):
        for item in files(folder):
            if item.name.startswith(KEY):
                os.unlink(item.path)
            yield item

    monkeypatch.setattr(caches, "_files", discarding)
    assert [(info.entries, info.size) for info in cache_infos()] == [(1, 5), (0, 0), (0, 0)]


LATER = """
import sys, torch, weft
sys.path.insert(0, {folder!r})
from made import doubled
print(weft.load_cache_artifacts(open({file!r}, "rb").read()).entries)
log = weft.CompileLog()
with weft.observe(log), torch.no_grad():
    assert torch.equal(weft.compile(doubled)(torch.ones(4)), torch.full((4,), 2.5))
print([graph.cache for graph in log.graphs])
"""


def test_artifacts_of_one_process_serve_another(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("WEFT_STRICT", "0")  # in strict mode every stage runs
    (tmp_path / "made.py").write_text("def doubled(x):\n    return x * 2 + 0.5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    from made import doubled as function  # a file that both processes have

    with torch.no_grad():
        weft.compile(function)(torch.ones(4))
    file = tmp_path / "artifacts"
    file.write_bytes(weft.save_cache_artifacts())
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "other"))
    program = LATER.format(folder=str(tmp_path), file=str(file))
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    # a program, its library, and what its operators give on fake tensors
    assert run.stdout.splitlines() == ["3", "['hit']"], run.stderr

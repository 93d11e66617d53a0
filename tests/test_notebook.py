"""The notebook in `examples/` runs from its first cell to its last, and draws its pictures."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parent.parent / "examples" / "one_model.ipynb"


def test_the_notebook_runs_and_draws(tmp_path, monkeypatch) -> None:
    """``WEFT_PICTURES``: a folder that the pictures are written to, to be looked at."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))  # so that every stage runs
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute(cwd=str(tmp_path))
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [o["data"]["image/png"] for o in outputs if "image/png" in o.get("data", {})]
    assert len(pictures) == 4
    assert any("library calls" in output.get("text", "") for output in outputs)
    folder = os.environ.get("WEFT_PICTURES")
    for number, picture in enumerate(pictures if folder else []):
        (Path(str(folder)) / f"{number}.png").write_bytes(base64.b64decode(picture))

"""The examples of every README and page of documentation run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
READMES = [ROOT / "README.md", *sorted(ROOT.glob("packages/*/README.md"))]
PAGES = [page for page in sorted(ROOT.glob("docs/**/*.md")) if "```python" in page.read_text()]


@pytest.mark.parametrize(
    "readme", READMES + PAGES, ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_examples_run(readme: Path, monkeypatch, tmp_path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    assert blocks
    monkeypatch.chdir(tmp_path)
    # Functions of the examples are captured from their source file, as a reader's would be.
    program = tmp_path / "example.py"
    program.write_text("\n".join(blocks))
    exec(compile(program.read_text(), str(program), "exec"), {"__name__": "__main__"})

"""The README's example runs and prints what it says."""

import re
from pathlib import Path


def test_example(capsys):
    text = Path(__file__).parents[1].joinpath("README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    promised = " ".join(line[1:] for line in code.splitlines() if line.startswith("#"))
    assert capsys.readouterr().out.split() == promised.split()

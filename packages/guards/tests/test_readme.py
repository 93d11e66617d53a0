"""The README's examples run one after the other and print what they say."""

import re
from pathlib import Path


def test_examples(capsys):
    text = Path(__file__).parents[1].joinpath("README.md").read_text()
    names = {}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(code, "README.md", "exec"), names)
        promised = " ".join(line[1:] for line in code.splitlines() if line.startswith("#"))
        assert capsys.readouterr().out.split() == promised.split()

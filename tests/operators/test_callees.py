"""Every function of a library that weft's sources call of their own choice is in the table of callees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from weft_loop_ir import CALLEES
from weft_loop_ir.lowering import contractions

SOURCES = Path(__file__).parents[2] / "packages"

LIBRARIES = ("mkldnn", "quantized", "xnnpack", "_cudnn", "onednn")
"""Namespaces of operators that call a library at once, whatever eager would do."""

SPELLED = re.compile(rf"\b(aten|{'|'.join(LIBRARIES)})\b|_foreach_")
"""What a file has that calls any operator."""

QUESTIONS = {"_is_mkldnn_bf16_supported"}
"""Of those, what computes nothing."""

ALWAYS_CALLED = {
    *contractions.LIBRARY,
    *(operator._schema.name.removeprefix("aten::") for operator in contractions.OUT_VARIANTS),
    "convolution",
}


def _operators(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Namespace and name of each operator that is spelled ``aten.name`` or ``torch.ops.aten.name``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            holder = node.value
            if isinstance(holder, ast.Name):
                yield holder.id, node.attr
            elif isinstance(holder, ast.Attribute) and holder.attr != "ops":
                yield holder.attr, node.attr


def _library_calls(path: Path) -> Iterator[str]:
    """The operators in a file that have to be in the table."""
    text = path.read_text()
    if not SPELLED.search(text):
        return
    made_here = "rewriting" in path.parts or path.stem in ("_torch", "contractions")
    for namespace, name in _operators(ast.parse(text)):
        if namespace in LIBRARIES and namespace != "mkldnn":
            yield f"{namespace}::{name}"
        if namespace == "mkldnn" and name.startswith("_") and name not in QUESTIONS:
            yield f"mkldnn::{name}"
        is_fused = name.startswith(("_scaled_dot_product", "_fused_", "_addmm_", "_foreach_"))
        if (namespace == "aten" and (is_fused or (made_here and name in ALWAYS_CALLED))) or (
            "codegen" in str(path) and namespace == "torch" and name.startswith("_foreach_")
        ):
            yield f"aten::{name}"


@pytest.mark.kept
def test_calls_of_libraries_are_in_the_table() -> None:
    found = {path: list(_library_calls(path)) for path in SOURCES.glob("*/src/**/*.py")}
    assert any("aten::convolution" in calls for calls in found.values())
    missing = {path: set(calls) - set(CALLEES) for path, calls in found.items()}
    assert not {path: names for path, names in missing.items() if names}

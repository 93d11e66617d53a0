"""The documentation names all that there is: torch's API, variables, logs, options, public names, pages."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch
import weft
import weft_aot_autograd
import weft_bytecode_capture
import weft_codegen_cpp
import weft_codegen_triton
import weft_functionalize
import weft_loop_ir
from weft.doctor import VARIABLES
from weft.logs import ALL_LOGS

DOCS = Path(__file__).parents[1] / "docs"
NAV = re.findall(r"^ +- .*?: (\S+\.md)$", (DOCS.parent / "mkdocs.yml").read_text(), re.MULTILINE)


LATER_NAMES = (
    "nonstrict_trace",
    "cudagraph_mark_warmup_incomplete",
    "precompile",
    "PrecompileError",
)
"""Of torch.compiler, in releases later than the oldest that is tested."""


def text(page: str) -> str:
    return (DOCS / page).read_text()


@pytest.mark.parametrize("name", [*torch.compiler.__all__, *LATER_NAMES])
def test_the_table_of_migration_has_all_of_torchs_compiler(name) -> None:
    assert f"`{name}`" in text("coming_from_torch_compile.md")


def test_the_table_of_migration_has_all_arguments_of_stances() -> None:
    for name, parameter in inspect.signature(torch.compiler.set_stance).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            assert f"`set_stance({name}=" in text("coming_from_torch_compile.md")


@pytest.mark.parametrize("name", [*VARIABLES, *ALL_LOGS])
def test_variables_and_logs_are_told(name) -> None:
    assert f"`{name}`" in text("caches_and_variables.md")


@pytest.mark.parametrize("name", weft.__all__)
def test_public_names_are_in_the_reference(name) -> None:
    assert f"::: weft.{name}\n" in text("reference/weft.md")
    assert getattr(weft, name).__doc__


@pytest.mark.parametrize("page", [page for page in NAV if page.startswith("reference/")])
def test_names_of_the_reference_exist(page) -> None:
    for name in re.findall(r"^::: (\S+)$", text(page), re.MULTILINE):
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


OPTIONS = (
    weft.CompileOptions,
    weft_aot_autograd.PartitionOptions,
    weft_bytecode_capture.CaptureOptions,
    weft_codegen_cpp.CppOptions,
    weft_codegen_triton.TritonOptions,
    weft_functionalize.FunctionalizeOptions,
    weft_loop_ir.LoweringOptions,
    weft_loop_ir.ScheduleOptions,
)


@pytest.mark.parametrize("options", OPTIONS)
def test_options_have_one_shape(options) -> None:
    """A frozen dataclass, whose documentation has a line that begins with each field, in their order."""
    names = [field.name for field in dataclasses.fields(options)]
    assert re.findall(r"^ *``(\w+)``:", options.__doc__, re.MULTILINE) == names
    assert options.__dataclass_params__.frozen


def test_every_page_has_a_place_in_the_site() -> None:
    """A new page is listed in mkdocs.yml."""
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert pages == set(NAV) and len(NAV) == len(pages)


@pytest.mark.parametrize("page", NAV)
def test_links_between_pages_lead_somewhere(page) -> None:
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text(page)):
        assert ((DOCS / page).parent / link).exists(), link

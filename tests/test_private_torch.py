"""What is private to torch is reached in one place a package: `_torch.py`, or its folder `_torch`.

And whatever the packages name of torch exists in the torch that is installed: private names, private
attributes of values, and names in texts, which would fail, or just never match, where they are used.
"""

from __future__ import annotations

import ast
import functools
import gc
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.attention import flex_attention

pytestmark = pytest.mark.kept

PACKAGES = Path(__file__).resolve().parent.parent / "packages"
DOCUMENTED = ("torch._check", "torch._foreach_")
"""How names begin that torch's reference documents although they have an underscore."""


def dotted(node: ast.expr) -> str | None:
    """``torch._C._nn`` for the attribute access of that name, None for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return owner and f"{owner}.{node.attr}"
    return None


def torch_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and full name of everything of torch that is imported or reached by attribute."""
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute) and (name := dotted(node)):
            yield node.lineno, name
            continue  # the owner is part of this name
        pending += ast.iter_child_nodes(node)


def is_private(name: str) -> bool:
    package, *parts = name.split(".")
    if parts[:1] == ["ops"]:
        return False  # what follows names an operator, not a place in torch
    # A dunder is part of a public protocol, such as torch.__version__.
    if name.startswith(DOCUMENTED):
        return False
    return package == "torch" and any(
        part.startswith("_") and not part.startswith("__") for part in parts
    )


@functools.cache
def sources() -> tuple[tuple[Path, ast.Module], ...]:
    """The packages' files, parsed; garbage among millions of nodes takes ten times as long to look for."""
    paths = sorted(PACKAGES.glob("*/src/**/*.py"))
    gc.disable()
    try:
        return tuple((path, ast.parse(path.read_text())) for path in paths)
    finally:
        gc.enable()


@functools.cache
def named() -> tuple[tuple[Path, int, str], ...]:
    """The file, line and full name of everything of torch that the packages reach."""
    return tuple(
        (path, line, name)
        for path, tree in sources()
        for line, name in torch_names(tree)
        if name.startswith("torch.")
    )


@pytest.fixture(autouse=True, scope="module")
def parsed_for_these_tests() -> Iterator[None]:
    """Later tests look for garbage, too, which would go through the nodes each time."""
    yield
    sources.cache_clear()


@pytest.mark.parametrize("package", [path.name for path in sorted(PACKAGES.iterdir())])
def test_private_names_are_reached_in_one_place(package: str) -> None:
    found = {
        f"{path.relative_to(PACKAGES)}:{line}: {name}"
        for path, line, name in named()
        if is_private(name)
        and path.is_relative_to(PACKAGES / package)
        and "_torch" not in (path.stem, path.parent.name)
    }
    assert not found, "move to the package's _torch.py:\n" + "\n".join(sorted(found))


def resolve(name: str) -> Any:
    """What a dotted name stands for, importing the modules in it.

    Raises ``AttributeError`` or ``ModuleNotFoundError`` where there is no such thing.
    """
    path, *parts = name.split(".")
    found = importlib.import_module(path)
    for k, part in enumerate(parts, 1):
        path = f"{path}.{part}"
        if k < len(parts) and path in sys.modules:  # a function in it may have its name
            found = sys.modules[path]
        elif hasattr(found, part) or not hasattr(found, "__path__"):
            found = getattr(found, part)
        else:
            found = importlib.import_module(path)
    return found


@functools.cache
def exists(name: str) -> bool:
    try:
        resolve(name)
    except (AttributeError, ModuleNotFoundError):
        return False
    return True


ONLY_IN_SOME = (
    "torch._C._cuda_",  # builds for CUDA
    "torch.ops.mkldnn",  # builds with oneDNN
    "torch.ops.higher_order",  # made when first asked for
)


def test_private_names_exist() -> None:
    missing = {
        f"{path.relative_to(PACKAGES)}:{line}: {name}"
        for path, line, name in named()
        if name.startswith("torch.") and not name.startswith(ONLY_IN_SOME) and not exists(name)
    }
    assert not missing, "\n".join(sorted(missing))


@functools.cache
def graph() -> torch.fx.GraphModule:
    return torch.fx.symbolic_trace(torch.nn.ReLU())


def context() -> Any:
    """What the forward of an autograd function is given."""
    contexts = []

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            contexts.append(ctx)
            return x * 2

    result = Keeps.apply(torch.ones(1, requires_grad=True))
    contexts[0].result = result  # which dies with what is saved: torch 2.11 and 2.12 refuse it then
    return contexts[0]


@functools.cache
def custom_operator() -> Any:
    """An operator of ``torch.library.custom_op``."""

    def kept(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    return torch.library.custom_op("weft_tests::kept", kept, mutates_args=())


# For each private attribute that is read of a value, something that has it.
OWNERS: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(("_base", "_cdata", "_is_view", "_version"), lambda: torch.ones(1)),
    **dict.fromkeys(
        ("_has_symbolic_sizes_strides", "_post_accumulate_grad_hooks"), lambda: torch.ones(1)
    ),
    **dict.fromkeys(
        ("_schema", "_op_dk", "_opname", "_overloadname", "_can_decompose"),
        lambda: torch.ops.aten.add.Tensor,
    ),
    **dict.fromkeys(
        ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks"),
        torch.nn.Module,
    ),
    **dict.fromkeys(("_buffers", "_call_impl", "_modules"), torch.nn.Module),
    **dict.fromkeys(
        ("_metadata_cache", "_ragged_idx"),
        lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
    ),
    **dict.fromkeys(
        ("_backend_fns", "_backward_fn", "_init_fn", "_setup_context_fn"), custom_operator
    ),
    "_qualified_op_name": lambda: torch.ops.aten.add,
    "_erased": lambda: next(iter(graph().graph.nodes)),
    **dict.fromkeys(("_root", "_target_to_str"), lambda: graph().graph),
    "_allow_unsafe_data_ptr_access": FakeTensorMode,
    "_backward_error": lambda: FakeTensorMode().fake_tensor_converter.meta_converter,
    "_get_memo": lambda: FakeTensorMode().fake_tensor_converter,
    "_register_hook_dict": lambda: torch.ones(1, requires_grad=True).exp().grad_fn,
    "_eliminate_unbacked": ShapeEnv,
    "_rename_unbacked_to": ShapeEnv,
    **dict.fromkeys(("_input_metadata", "_raw_saved_tensors", "_sequence_nr"), context),
    "_backward_cls": lambda: torch.autograd.Function,
    "_LARGE_SPARSE_BLOCK_SIZE": lambda: flex_attention,
    "_current_level": lambda: torch.autograd.forward_ad,
    "_get_active_ddp_module": lambda: torch.nn.parallel.DistributedDataParallel,
    **dict.fromkeys(
        (
            "_get_creation_meta",
            "_push_saved_tensors_default_hooks",
            "_saved_tensors_hooks_is_enabled",
            "_set_creation_meta",
        ),
        lambda: resolve("torch._C._autograd"),
    ),
    **dict.fromkeys(
        (
            *(
                f"_{kind}_{step}_nesting"
                for kind in ("vmap", "grad", "jvp")
                for step in ("increment", "decrement")
            ),
            *("_add_batch_dim", "_remove_batch_dim", "_wrap_for_grad", "_unwrap_for_grad"),
        ),
        lambda: resolve("torch._C._functorch"),
    ),
    **dict.fromkeys(
        ("_get_default_group", "_get_group_size_by_name"),
        lambda: resolve("torch.distributed.distributed_c10d"),
    ),
    "_are_we_tracing": lambda: resolve("torch.distributed._functional_collectives"),
    "_create_work_from_future": lambda: resolve("torch._C._distributed_c10d"),
}

# Attributes of other values: the standard library's, SymPy's, and our own that no assignment names.
OTHERS = frozenset(
    "_exit _getframe _inline_cache_entries _inst _is_owned _lru_cache_wrapper _member_map_ _name_ _nb_ops "
    "_patch_attr _prec _value_ _check _current_frames _compiled_forward _common_constants".split()
)


def own_names(tree: ast.Module) -> Iterator[str]:
    """Private names that a file of ours gives to functions, classes and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                inner = target.elts if isinstance(target, ast.Tuple) else [target]
                yield from (t.attr for t in inner if isinstance(t, ast.Attribute))
                yield from (t.id for t in inner if isinstance(t, ast.Name))


def value_attributes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and name of private attributes of values, which may be of torch's classes."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not re.match("_[^_]", node.attr):
            continue
        owner = dotted(node.value)
        if owner is None or owner.partition(".")[0] not in ("torch", "aten", "self", "cls"):
            yield node.lineno, node.attr


def test_private_attributes_of_values_are_known() -> None:
    ours = {name for _, tree in sources() for name in own_names(tree)} - OWNERS.keys()
    unknown = {
        f"{path.relative_to(PACKAGES)}:{line}: {name}"
        for path, tree in sources()
        for line, name in value_attributes(tree)
        if name not in ours and name not in OWNERS and name not in OTHERS
    }
    assert not unknown, "give each an owner in OWNERS:\n" + "\n".join(sorted(unknown))


@pytest.mark.parametrize("name", OWNERS)
def test_private_attributes_of_values_exist(name: str) -> None:
    assert hasattr(OWNERS[name](), name)


def test_schemas_tell_what_is_read_of_them() -> None:
    schema = torch.ops.aten.add.out._schema
    assert (schema.name, schema.overload_name, schema.is_mutable) == ("aten::add", "out", True)
    first, *_, last = schema.arguments
    assert (first.name, str(first.type), first.alias_info, first.is_out) == (
        "self", "Tensor", None, False
    )  # fmt: skip
    assert (last.name, last.kwarg_only, last.is_out, last.alias_info.is_write) == (
        "out", True, True, True
    )  # fmt: skip
    assert schema.arguments[2].default_value == 1
    assert [result.alias_info.is_write for result in schema.returns] == [True]


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


PREFIXES = frozenset({"torch._", "torch.q", "torch.nn.modules.module._global"})
"""Beginnings of names, to which the code adds something."""


def test_places_in_torch_that_texts_name_exist() -> None:
    missing = {
        f"{path.relative_to(PACKAGES)}:{line}: {text}"
        for path, tree in sources()
        for line, text in texts(tree)
        if re.fullmatch(r"torch(\.[A-Za-z_]\w*)+", text)
        if text not in PREFIXES and not exists(text)
    }
    assert not missing, "\n".join(sorted(missing))


PLACES = (
    torch, torch.Tensor, torch.nn.functional, torch._C._nn, torch.ops.aten, torch.ops.prims,
    torch.distributed,
)  # fmt: skip

GONE = frozenset({"has_names", "names"})
"""What some release of torch has, and others don't."""

OURS = frozenset("is left_shift right_shift rint truediv truncdiv".split())
"""Operations of loop bodies and of guards."""


def name_lists(tree: ast.Module) -> Iterator[tuple[int, list[str]]]:
    """The texts of displays, of dicts' keys, and of a text that is split, where there are five or more."""
    for node in ast.walk(tree):
        found: list[ast.expr | None] = []
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            found = list(node.elts)
        elif isinstance(node, ast.Dict):
            found = list(node.keys)
        words = [e.value for e in found if isinstance(e, ast.Constant) and isinstance(e.value, str)]
        if len(words) < len(found):
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            text = node.func.value
            if node.func.attr == "split" and not node.args and isinstance(text, ast.Constant):
                words = str(text.value).split()
        if len(words) >= 5:
            yield node.lineno, words


@functools.cache
def is_torchs(word: str) -> bool:
    name = word.removeprefix("aten::").partition(".")[0]
    return name in GONE | OURS or any(hasattr(place, name) for place in PLACES)


def test_operators_that_texts_name_exist() -> None:
    """In a list of which nine tenths are names of torch's functions, all are."""
    missing = {
        f"{path.relative_to(PACKAGES)}:{line}: {word}"
        for path, tree in sources()
        for line, words in name_lists(tree)
        if sum(map(is_torchs, words)) >= 0.9 * len(words)
        for word in words
        if not is_torchs(word)
    }
    assert not missing, "\n".join(sorted(missing))

"""Programs saved in files: what they compute, what is refused, and that they need no compiler."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
import weft
from weft.plain_data import NotPlain, decode, encode
from weft.saved_file import read_file, write_file
from weft_codegen_cpp import CppCodegen
from weft_loop_ir import ExportedProgram

Pair = collections.namedtuple("Pair", "first second")


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(4, 4, bias=False)
        self.b = torch.nn.Linear(4, 4, bias=False)
        self.b.weight = self.a.weight
        self.register_buffer("part", torch.arange(12.0).reshape(3, 4)[1])

    def forward(self, x):
        return self.b(self.a(x)) + self.part


class Results(torch.nn.Module):
    def forward(self, x, *, scale: float, flags: dict):
        y = x * scale
        pair = Pair(y.t(), x) if flags["pair"] else None
        return {"y": [y, y.sum()], "pair": pair, "same": x, 3: (scale, None)}


def libraries(x):
    return torch.linalg.qr(x)[0].abs(), x.sort(dim=0).indices


def drawn(x):
    return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)


def counted(x):
    return torch.where(x > 0, x, x.exp()).cumsum(0)


def read(x):
    return x + x.sum().item()


def literals(x):
    return x[[3, 0]] * torch.tensor([1.0, 2.0]), torch.tensor([5, 6])


def grown(x):
    for _ in range(20):
        x = x * 1.01
    return x.to(torch.bfloat16)


TABLE = torch.arange(12.0).view(3, 4)


class Holder:
    """An object that is neither a module nor an argument."""

    def __init__(self) -> None:
        self.offset = torch.full((4,), 0.5)


HOLDER = Holder()


def enclosing():
    """A function with tensors from outside: it reads two, counts in another, and returns one that it has."""
    scale, calls, row = torch.randn(4), torch.zeros(()), TABLE[1]

    def inner(x):
        calls.add_(1)
        return x * scale + TABLE.sum(0) + row + HOLDER.offset * calls, {"scale": scale}

    return inner


NET = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten()
)
CASES = {
    "linear": (torch.nn.Linear(4, 3), [(5, 4)], {}),
    "halves": (torch.nn.Linear(4, 3).bfloat16(), [(5, 4)], {}),
    "tied and viewed": (Tied(), [(2, 4)], {}),
    "norm in training": (NET, [(2, 3, 6, 6)], {}),
    "results": (Results(), [(3, 4)], {"scale": 2.5, "flags": {"pair": True}}),
    "libraries": (libraries, [(4, 4)], {}),
    "random": (drawn, [(4, 4)], {}),
    "number of a tensor": (read, [(4,)], {}),
    "function": (counted, [(6,)], {}),
    "method": (torch.nn.Linear(4, 3).forward, [(2, 4)], {}),
    "literals": (literals, [(4,)], {}),
    "loop": (grown, [(3,)], {}),
    "tensors from outside": (enclosing(), [(3, 4)], {}),
    "no elements": (counted, [(0, 3)], {}),
}


def inputs(name: str) -> list[torch.Tensor]:
    dtype = torch.bfloat16 if name == "halves" else torch.float32
    return [torch.randn(size, dtype=dtype) for size in CASES[name][1]]


def plain(value):
    """A result with mappings and tuples of every kind as one kind."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("name", CASES)
def test_loaded_programs_give_what_eager_gives(name, tmp_path) -> None:
    """Also for other values than those of the call that was saved, and what they write is theirs."""
    function, _, keywords = CASES[name]
    path = tmp_path / "program.weft"
    with torch.no_grad():
        torch.manual_seed(1)
        weft.save(weft.compile(function), path, inputs(name), keywords)
        program = weft.load(path)
        for seed in (2, 3):
            arguments = inputs(name)
            torch.manual_seed(seed)
            result = program(*arguments, **keywords)
            torch.manual_seed(seed)
            expected = function(*arguments, **keywords)
            torch.testing.assert_close(plain(result), plain(expected))
        if name == "results":
            assert result["same"] is arguments[0] and result["pair"].second is arguments[0]
            assert result["pair"].first.data_ptr() == result["y"][0].data_ptr()
        if name == "norm in training":
            saved = program.weights
            for key, value in function.state_dict().items():
                if key != "1.num_batches_tracked":
                    torch.testing.assert_close(saved[key], value)


@pytest.mark.parametrize("setting", [{"mode": "max-autotune"}, {"numerics": "eager"}, {}])
def test_what_it_was_compiled_with_counts(setting, tmp_path) -> None:
    """The mode, and kernels that give eager's bits."""

    def function(x):
        return x.softmax(-1).exp() + x.mean()

    weft.save(weft.compile(function, **setting), tmp_path / "p", [torch.randn(7, 33)])
    header, _ = read_file(tmp_path / "p")
    expected = {"mode": "default", "numerics": "fast", **setting}
    assert {name: header[name] for name in expected} == expected
    x = 30 * torch.randn(7, 33)
    torch.testing.assert_close(weft.load(tmp_path / "p")(x), function(x))
    if setting == {"numerics": "eager"}:
        assert torch.equal(weft.load(tmp_path / "p")(x), function(x))


def test_modules_compiled_in_place_have_their_options(tmp_path) -> None:
    model = weft.compile_module(torch.nn.Linear(4, 3), mode="reduce-overhead")
    weft.save(model, tmp_path / "p", [torch.ones(2, 4)])
    assert read_file(tmp_path / "p")[0]["mode"] == "reduce-overhead"


def test_frozen_programs_are_saved_with_weights_that_change(tmp_path) -> None:
    model, other = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    x = torch.randn(2, 4)
    with torch.no_grad():
        weft.save(weft.compile(model, options={"freezing": True}), tmp_path / "p", [x])
        torch.testing.assert_close(
            weft.load(tmp_path / "p", weights=other.state_dict())(x), other(x)
        )


def test_views_share_memory_as_in_eager(tmp_path) -> None:
    weft.save(lambda x: (x[1:], x * 2), tmp_path / "p", [torch.ones(4)])
    x = torch.ones(4)
    view, _ = weft.load(tmp_path / "p")(x)
    view.add_(1)
    assert x.tolist() == [1, 2, 2, 2]


PROGRAM = """
import sys, time, torch, weft
start = time.perf_counter()
program = weft.load(sys.argv[1])
result = program(torch.arange(20.0).reshape(5, 4))
print(time.perf_counter() - start, file=sys.stderr)
torch.save(result, sys.argv[2])
for name in ("weft_bytecode_capture.symbolic.root_frame", "triton", "weft_codegen_triton"):
    assert name not in sys.modules, name
"""


def test_no_compiler_and_no_capture_is_needed(tmp_path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GELU())
    weft.save(model, tmp_path / "p", [torch.ones(5, 4)])
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "CXX": "/no/such/compiler",
        "PATH": str(tmp_path),
        "WEFT_CACHE_DIR": str(tmp_path / "empty"),
    }
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "p"), str(tmp_path / "result")],
        env=environment,
        check=True,
    )
    expected = model(torch.arange(20.0).reshape(5, 4))
    torch.testing.assert_close(torch.load(tmp_path / "result"), expected.detach())
    assert not (tmp_path / "empty").exists()


def test_weights_may_be_others(tmp_path) -> None:
    first, second, x = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3), torch.randn(2, 4)
    weft.save(first, tmp_path / "p", [x])
    program = weft.load(tmp_path / "p", weights=second.state_dict())
    torch.testing.assert_close(program(x), second(x).detach())
    for wrong, message in (
        ({"weight": torch.ones(4, 4)}, r"weight of shape \(3, 4\)"),
        ({"bias": torch.ones(3).double()}, "float64"),
        ({"nothing": torch.ones(3)}, "no weights"),
    ):
        with pytest.raises(weft.SavedProgramError, match=message):
            weft.load(tmp_path / "p", weights=wrong)


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ([(2, 3)], {"scale": 1.0}, r"tensor of shape \(2, 3\)"),
        ([(3, 2)], {"scale": 2.0}, "is 2.0"),
        ([(3, 2)], {"scale": 1}, "is 1"),
        ([(3, 2), (3, 2)], {"scale": 1.0}, "2 positional"),
        ([(3, 2)], {}, "other arguments"),
        ([(3, 2)], {"scale": None}, "None"),
    ],
)
def test_other_calls_are_refused(arguments, keywords, message, tmp_path) -> None:
    def function(x, *more, scale=1.0):
        return x * scale

    weft.save(function, tmp_path / "p", [torch.ones(3, 2)], {"scale": 1.0})
    program = weft.load(tmp_path / "p")
    with pytest.raises(weft.SavedProgramError, match=message):
        program(*map(torch.ones, arguments), **keywords)
    for x in (torch.ones(3, 2).double(), torch.ones(2, 3).t()):
        with pytest.raises(weft.SavedProgramError, match="saved for"):
            program(x, scale=1.0)


def test_tensors_from_outside_have_names_and_may_be_others(tmp_path) -> None:
    scale = torch.ones(3)

    def function(x):
        return x * scale + TABLE[0, 0] + HOLDER.offset[0]

    weft.save(function, tmp_path / "p", [torch.ones(3)])
    program = weft.load(tmp_path / "p")
    assert {"scale", "TABLE"} <= program.weights.keys()
    scale.fill_(5)  # the file has what it was
    assert program(torch.ones(3)).tolist() == [1.5] * 3
    changed = weft.load(tmp_path / "p", weights={"scale": torch.full((3,), 2.0)})
    assert changed(torch.ones(3)).tolist() == [2.5] * 3
    program.weights["scale"].fill_(3)
    assert program(torch.ones(3)).tolist() == [3.5] * 3


def test_an_argument_that_is_a_tensor_from_outside_is_refused(tmp_path) -> None:
    """One input of the graph stands for both; another call's argument would take the other's place."""
    scale = torch.ones(3)

    def function(x):
        return x * scale

    with pytest.raises(weft.SavedProgramError, match="save it for another argument"):
        weft.save(function, tmp_path / "p", [scale])


class _CallsBehind:
    """Computes before it calls a function; the computing runs as it is."""

    def __init__(self, function) -> None:
        self._function = function
        self._add = weft.disable(lambda x: x + 1)

    def __call__(self, x):
        return self._function(self._add(x))


def test_what_was_made_before_the_graph_is_no_weight(tmp_path) -> None:
    """It is made of this call's arguments, and would stay so in all others."""
    with pytest.raises(weft.SavedProgramError, match=r"one graph|not an argument"):
        weft.save(_CallsBehind(lambda made: made * 2), tmp_path / "p", [torch.ones(3)])


SEEN: list[int] = []


def printing(x):
    y = x + 1
    time.sleep(0)
    return y * 2


def noting(x):
    SEEN.append(1)
    return x + 1


def test_what_a_program_changes_besides_tensors_is_named(tmp_path) -> None:
    with pytest.warns(weft.WeftWarning, match="SEEN"):
        weft.save(noting, tmp_path / "p", [torch.ones(3)])
    SEEN.clear()
    assert weft.load(tmp_path / "p")(torch.ones(3)).tolist() == [2, 2, 2] and SEEN == []


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (printing, "graph break|one graph"),
        (lambda x: (x + 1, object), "type"),
        (lambda x: x, "one graph"),
    ],
)
def test_what_can_not_be_saved_is_told(function, message, tmp_path) -> None:
    with pytest.raises(weft.WeftError, match=message):
        weft.save(function, tmp_path / "p", [torch.ones(3)])
    assert not list(tmp_path.iterdir())


def changed(path, change) -> None:
    header, blocks = read_file(path)
    header.pop("blocks")
    contents = [bytes(block) for block in blocks]
    change(header, contents)
    write_file(path, header, contents)


CHANGES = {
    "an older version": (lambda h, b: h["versions"].update(weft="0.0.1"), "saved with weft 0.0.1"),
    "another torch": (lambda h, b: h["versions"].update(torch="2.0.0"), "saved with torch 2.0.0"),
    "another format": (lambda h, b: h.update(format=9), "format 9"),
    "another processor": (
        lambda h, b: h["programs"][0]["needs"].update(instructions=["avx9000"]),
        "avx9000",
    ),
    "another system": (
        lambda h, b: h["programs"][0]["needs"].update(system=["Plan9"]),
        "lacks system Plan9",
    ),
    "other code": (lambda h, b: b.__setitem__(-1, b"x" + b[-1]), "code is not what was saved"),
    "a call": (
        lambda h, b: h["programs"][0].update(program=["data", "os", "system", {}]),
        "damaged",
    ),
    "a class": (
        lambda h, b: h["programs"][0].update(program=["data", "subprocess", "Popen", {}]),
        "damaged",
    ),
    "code of none": (lambda h, b: h["programs"][0].update(codes=[[9, ""]]), "damaged"),
    "another mode": (lambda h, b: h.update(mode="max-speed"), "damaged: mode 'max-speed'"),
    "no programs": (lambda h, b: h.update(programs=[]), "no program"),
    "no program": (lambda h, b: h["programs"][0].update(program=["list", 1]), "no program"),
    "fewer weights": (lambda h, b: h["weights"].pop(), "damaged"),
    "an operator of none": (
        lambda h, b: h["programs"][0].update(program=["operator", "load_library"]),
        "damaged",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_files_that_do_not_fit_are_refused(name, tmp_path) -> None:
    change, message = CHANGES[name]
    path = tmp_path / "p"
    weft.save(torch.nn.Linear(4, 3), path, [torch.ones(2, 4)])
    changed(path, change)
    with pytest.raises(weft.SavedProgramError, match=message):
        weft.load(path)


class Theirs(CppCodegen):
    """A code generator whose programs need a card, of which ``cards`` are there."""

    cards: ClassVar[list[str]] = ["a", "b"]
    breaks: ClassVar[bool] = False

    def export(self, generated: Any) -> ExportedProgram:
        exported = super().export(generated)
        return dataclasses.replace(exported, needs={**exported.needs, "the card": ["b"]})

    def load_exported(self, generated: Any, code: Sequence[bytes]) -> Any:
        if self.breaks:
            raise RuntimeError("the driver is too old")
        return super().load_exported(generated, code)

    def target(self) -> Any:
        return {**super().target(), "the card": self.cards}


@pytest.mark.parametrize("training", [False, True])
def test_code_generators_say_what_their_programs_need(training, tmp_path, monkeypatch) -> None:
    """One that somebody else has written, by the public base class."""
    monkeypatch.setattr(weft.registry, "codegens", {})
    path, model, x = tmp_path / "p", torch.nn.Linear(4, 3), torch.randn(2, 4)
    weft.save(model, path, [x])
    with monkeypatch.context() as patch:
        patch.setitem(weft.registry.codegens, "cpu", Theirs)
        with pytest.raises(weft.SavedProgramError, match=r"lacks the code generator .*CppCodegen"):
            weft.load(path)
        weft.save(model, path, [x], training=training)
        torch.testing.assert_close(weft.load(path)(x), model(x), check_stride=True)
        patch.setattr(Theirs, "cards", ["a"])
        with pytest.raises(weft.SavedProgramError, match="this one lacks the card b"):
            weft.load(path)
        patch.setattr(Theirs, "cards", ["b", "c"])
        patch.setattr(Theirs, "breaks", True)
        with pytest.raises(weft.SavedProgramError, match="loaded here: the driver is too old"):
            weft.load(path)
    with pytest.raises(weft.SavedProgramError, match=r"lacks the code generator .*Theirs"):
        weft.load(path)


def test_damaged_files_are_refused_or_whole(tmp_path) -> None:
    """Cut anywhere, and with any byte of the header changed: an error of weft's, or what was saved."""
    path = tmp_path / "p"
    weft.save(torch.nn.Linear(4, 3), path, [torch.ones(2, 4)])
    content = path.read_bytes()
    length = 16 + int.from_bytes(content[8:16], "little")
    random.seed(0)
    for _ in range(60):
        path.write_bytes(content[: random.randrange(len(content))])
        with pytest.raises(weft.SavedProgramError):
            weft.load(path)
    for _ in range(60):
        at = random.randrange(length)
        path.write_bytes(
            content[:at] + bytes([content[at] ^ 1 << random.randrange(7)]) + content[at + 1 :]
        )
        try:
            weft.load(path)
        except weft.SavedProgramError:
            continue
    with pytest.raises(FileNotFoundError):
        weft.load(tmp_path / "none")


VALUES = [
    None, True, 3, -(1 << 70), 0.1, float("inf"), float("-inf"), "text", [1, (2, {3})], {"a": (1,)},
    {(1, 2): frozenset({4})}, torch.float16, torch.device("cpu"), torch.Size([2, 3]), slice(1, None, 2),
    torch.contiguous_format, torch.strided, torch.ops.aten.add.Tensor,
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_plain_data_is_json_and_back(value) -> None:
    text = json.dumps(encode(value, lambda tensor: 0))
    again = decode(json.loads(text), lambda number: torch.ones(1))
    assert again == value and type(again) is type(value)


NOT_PLAIN = {
    "object": object(), "builtin": len, "class": type, "environment": os.environ, "lambda": lambda: 1,
}  # fmt: skip


@pytest.mark.parametrize("value", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_other_values_are_not_plain(value) -> None:
    with pytest.raises(NotPlain):
        encode(value, lambda tensor: 0)


@pytest.mark.parametrize(
    "text",
    [
        '["data", "os", "environ", {}]', '["enum", "os", "system", "x"]', '["nothing", 1]', "[]",
        '["operator", "__class__.__base__"]', '["torch", "load"]', '["torch", "hub.load"]', "{}",
        '["named tuple", "subprocess", "Popen", "ls"]', '["device", "nowhere"]', '["int", "x"]',
        '["expression", "made of", "os", "system", "ls"]', '["expression", "symbol"]', '["dict", 1]',
    ],
)  # fmt: skip
def test_texts_that_name_other_things_are_refused(text) -> None:
    with pytest.raises(NotPlain):
        decode(json.loads(text), lambda number: torch.ones(1))

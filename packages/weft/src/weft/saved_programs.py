"""``weft.save`` and ``weft.load``: a compiled program in a file, which runs where nothing can be compiled.

A file holds what the code generator made of one whole graph, the weights, and a description of both as plain
data.  Reading a file runs nothing; a loaded program runs the machine code that is in the file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.fx
import weft_bytecode_capture as capture
import weft_functionalize
from weft_functionalize import check_operands, storage_identity

from .errors import WeftWarning
from .explain import original_of
from .graph_description import GraphDescription
from .options import CompileOptions
from .pipeline import Pipeline
from .plain_data import NotPlain, decode, encode
from .program_cache import CachedProgram, ProgramCache, empty_graph
from .registry import find_codegen, stage_folders
from .saved_file import SavedProgramError, read_file, write_file
from .trees import flatten, unflatten

VERSION = 1
_PLAIN = (bool, int, float, str, type(None))


def save(
    compiled: Any,
    path: str | os.PathLike[str],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = {},
) -> None:
    """Save a function or module, compiled for calls like ``compiled(*args, **kwargs)``, which is made once.

    ``weft.load(path)`` gives a callable for arguments of the same shapes, dtypes and containers, whose
    numbers and texts are those of this call; no gradients are recorded.  The file has the parameters and
    buffers, and machine code for this kind of processor.  Programs on the CPU are saved that are one graph;
    a warning names what they change besides tensors, which is not saved.

    :raises SavedProgramError: it can't be saved; the message says why.
    """
    function = original_of(compiled)
    leaves: list[Any] = []
    arguments = flatten([list(args), dict(kwargs)], leaves)
    recorder = _Recorder()
    with torch.no_grad():
        call = _record_call(function, arguments, leaves, recorder)
    if recorder.entry is None:
        raise SavedProgramError(f"this program can't be saved: {recorder.reason()}")
    entry = recorder.entry
    codegen = find_codegen(entry.device_type)
    exported = codegen.export(entry.generated)
    if exported is None:
        raise SavedProgramError(f"programs for {entry.device_type} can't be saved")
    weights = _Weights(function)
    try:
        lifted = entry.functional(recorder.source or empty_graph()).lifted
        names = {index: f"weight_{weights.number(tensor)}" for index, tensor in lifted.items()}
        saved = dataclasses.replace(entry, generated=exported[0], lifted=names)
        program = encode(saved, weights.number)
        header = {
            "format": VERSION,
            "versions": _versions(),
            "target": codegen.target(),
            "arguments": arguments,
            "leaves": [_describe_leaf(leaf) for leaf in leaves],
            "inputs": call.inputs,
            "result": call.result,
            "outputs": call.outputs,
            "program": program,
            "code": hashlib.sha256(exported[1]).hexdigest(),
            "weights": weights.described,
        }
    except NotPlain as error:
        raise SavedProgramError(f"this program can't be saved: it holds {error}") from error
    write_file(Path(path), header, [exported[1], *weights.blocks])


def load(
    path: str | os.PathLike[str], weights: Mapping[str, torch.Tensor] | None = None
) -> SavedProgram:
    """A program that :func:`save` wrote; no compiler is needed, and nothing is captured.

    Calling it runs the machine code in the file: load only files that you, or whom you trust, have made.
    ``weights`` take the place of those in the file, by their names, as a ``state_dict()`` has them.

    :raises SavedProgramError: it is no saved program, was saved by other versions or for another processor,
        or the weights are not of the shapes that it was compiled for.
    :raises OSError: the file can't be read.
    """
    header, blocks = read_file(Path(path))
    if header.get("format") != VERSION:
        raise SavedProgramError(
            f"{path} was saved in format {header.get('format')!r}, not {VERSION}"
        )
    for name, version in _versions().items():
        saved = header["versions"].get(name)
        if saved != version:
            raise SavedProgramError(
                f"{path} was saved with {name} {saved}, this is {name} {version}"
            )
    if not blocks or hashlib.sha256(blocks[0]).hexdigest() != header.get("code"):
        raise SavedProgramError(f"{path} is damaged: its code is not what was saved")
    try:
        return SavedProgram(str(path), header, blocks, weights or {})
    except (NotPlain, LookupError, TypeError, ValueError) as error:
        raise SavedProgramError(f"{path} is damaged: {error}") from error


class SavedProgram:
    """A loaded program: call it as what was saved was called.

    ``weights`` are its parameters and buffers by name: what is written to them in place, later calls see.
    """

    def __init__(
        self,
        path: str,
        header: Mapping[str, Any],
        blocks: Sequence[memoryview],
        weights: Mapping[str, torch.Tensor],
    ) -> None:
        self._path = path
        self._arguments = header["arguments"]
        self._leaves = header["leaves"]
        self._inputs = header["inputs"]
        self._result = header["result"]
        self._outputs = header["outputs"]
        tensors, self.weights = _load_weights(header["weights"], blocks, weights)
        entry = decode(header["program"], lambda number: tensors[number])
        if not isinstance(entry, CachedProgram):
            raise SavedProgramError(f"{path} is damaged: it holds no program")
        codegen = find_codegen(entry.device_type)
        _require_target(path, header["target"], codegen.target())
        source = empty_graph()
        for number, tensor in enumerate(tensors):
            source.register_buffer(f"weight_{number}", tensor)
        functional = entry.functional(source)
        program = codegen.load_exported(entry.generated, bytes(blocks[0]))
        self._run = weft_functionalize.wrap(functional, program)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves: list[Any] = []
        arguments = flatten([list(args), kwargs], leaves)
        if arguments != self._arguments:
            raise SavedProgramError(
                f"{self._path} was saved for other arguments: {_shown(self._arguments)}, "
                f"not {_shown(arguments)}"
            )
        self._check(leaves)
        with torch.no_grad():
            results = self._run(*(leaves[number] for number in self._inputs))
        return unflatten(
            self._result, lambda number: _output(self._outputs[number], results, leaves)
        )

    def _check(self, leaves: Sequence[Any]) -> None:
        for number, (leaf, saved) in enumerate(zip(leaves, self._leaves, strict=True)):
            found = _describe_leaf(leaf)
            if found != saved:
                raise SavedProgramError(
                    f"{self._path}: argument {number} is {_told(found)}, "
                    f"and the program was saved for {_told(saved)}"
                )
        tensors = [id(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if len(set(tensors)) < len(tensors):
            raise SavedProgramError(f"{self._path}: one tensor is passed twice")

    def __repr__(self) -> str:
        return f"<SavedProgram: {self._path}>"


# -- saving ------------------------------------------------------------------------------------------------


class _Recorder(ProgramCache):
    """Takes the program that a pipeline would keep on disk."""

    entry: CachedProgram | None = None
    source: torch.fx.GraphModule | None = None

    def find(self, description: GraphDescription, source: torch.fx.GraphModule) -> None:
        return None

    def store(
        self, description: GraphDescription, entry: CachedProgram, source: torch.fx.GraphModule
    ) -> None:
        self.entry, self.source = entry, source

    def reason(self) -> str:
        """Why there is none."""
        reasons = [name.removeprefix("not stored: ") for name in self.counts]
        return ", ".join(reasons) or "it has no tensor operation"


@dataclasses.dataclass
class _Call:
    """How the graph of a recorded call was called: ``inputs`` are leaves of the arguments, by number.

    ``outputs`` says what each leaf of ``result`` is: ``["output", n]``, ``["argument", n]`` or
    ``["value", v]``.
    """

    inputs: list[int]
    result: Any
    outputs: list[list[Any]]


def _record_call(function: Any, arguments: Any, leaves: list[Any], recorder: _Recorder) -> _Call:
    options = CompileOptions()
    pipeline = Pipeline(options, raise_errors=True, programs=recorder)
    calls: list[tuple[tuple[Any, ...], Sequence[Any]]] = []
    reports: list[capture.CaptureReport] = []

    def backend(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        run = pipeline(graph_module, example_inputs)

        def recorded(*inputs: Any) -> Sequence[Any]:
            results: Sequence[Any] = run(*inputs)
            calls.append((inputs, results))
            return results

        return recorded

    settings = capture.CaptureOptions(
        fullgraph=True,
        dynamic=False,
        backend_folders=stage_folders(),
        check_operands=check_operands,
    )
    context = capture.make_context(backend, settings, None, reports.append)
    args, kwargs = unflatten(arguments, leaves.__getitem__)
    try:
        result = capture.compile_in(context, function)(*args, **kwargs)
    except capture.GraphBreakError as error:
        text = f"only a program that is one graph can be saved: {error}"
        raise SavedProgramError(text) from error
    if len(calls) != 1:
        raise SavedProgramError(
            f"only a program that is one graph can be saved, this is {len(calls)}"
        )
    changed = {name for report in reports for name in report.side_effects} - _own_dictionaries(
        function
    )
    if changed:
        text = f"weft: what the program changes besides tensors is not saved: {sorted(changed)}"
        capture.warn(text, WeftWarning)
    inputs, outputs = calls[0]
    found: list[Any] = []
    described = flatten(result, found)
    return _Call(
        [_place_of(value, leaves, "an argument") for value in inputs],
        described,
        [_describe_output(leaf, outputs, leaves) for leaf in found],
    )


def _own_dictionaries(function: Any) -> set[str]:
    """The names of the dictionaries and tuples that a call makes of its arguments."""
    code = getattr(getattr(function, "forward", function), "__code__", None)
    if code is None:
        return set()
    first = code.co_argcount + code.co_kwonlyargcount
    count = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return {f"L[{name!r}]" for name in code.co_varnames[first : first + count]}


def _place_of(value: Any, among: Sequence[Any], what: str) -> int:
    for number, other in enumerate(among):
        if other is value and isinstance(value, torch.Tensor):
            return number
    raise SavedProgramError(
        f"the graph takes {type(value).__name__} that is not {what} of the call"
    )


def _describe_output(leaf: Any, outputs: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
    for number, value in enumerate(outputs):
        if not isinstance(value, torch.Tensor):
            raise SavedProgramError("a program that reads numbers from tensors can't be saved")
        if value is leaf:
            return ["output", number]
    if isinstance(leaf, torch.Tensor):
        for number, value in enumerate(leaves):
            if value is leaf:
                return ["argument", number]
        raise SavedProgramError("a result is a tensor that is neither computed nor an argument")
    if type(leaf) not in _PLAIN:
        raise SavedProgramError(f"a result is a {type(leaf).__qualname__}, which can't be saved")
    return ["value", leaf]


class _Weights:
    """The tensors that a program holds, each storage once."""

    def __init__(self, function: Any) -> None:
        self.blocks: list[memoryview] = []
        self.described: list[dict[str, Any]] = []
        self._numbers: dict[int, int] = {}
        self._storages: dict[Any, int] = {}
        self._kept: list[torch.Tensor] = []
        self._names = _names_of(function)

    def number(self, tensor: torch.Tensor) -> int:
        """Which of the described tensors it is; it is described if it was not yet."""
        if id(tensor) in self._numbers:
            return self._numbers[id(tensor)]
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            raise NotPlain(f"a tensor on {tensor.device} of layout {tensor.layout}")
        storage = storage_identity(tensor)
        if storage not in self._storages:
            self._storages[storage] = len(self.blocks) + 1  # block 0 is the code
            self.blocks.append(_bytes_of(tensor))
        self.described.append(
            {
                "name": self._names.get(id(tensor)),
                "block": self._storages[storage],
                "layout": encode(_layout(tensor), self.number),
            }
        )
        self._kept.append(tensor)
        self._numbers[id(tensor)] = len(self.described) - 1
        return self._numbers[id(tensor)]


def _names_of(function: Any) -> dict[int, str]:
    """The names of a module's parameters and buffers, by identity; of a method's module too."""
    module = getattr(function, "__self__", function)
    if not isinstance(module, torch.nn.Module):
        return {}
    named = (*module.named_parameters(), *module.named_buffers())
    return {id(tensor): name for name, tensor in named}


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    storage = tensor.detach().untyped_storage()
    plain: Any = torch.empty(0, dtype=torch.uint8).set_(storage)
    return memoryview(plain.numpy())


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype


def _describe_leaf(leaf: Any) -> list[Any]:
    if isinstance(leaf, torch.Tensor):
        places = zip(leaf.shape, leaf.stride(), strict=True)
        stride = [step if size > 1 else 0 for size, step in places]  # of one element: any
        return ["tensor", list(leaf.shape), stride, str(leaf.dtype), str(leaf.device)]
    if type(leaf) in _PLAIN:
        return ["value", leaf, type(leaf).__name__]
    raise SavedProgramError(f"an argument is a {type(leaf).__qualname__}, which can't be saved")


def _versions() -> dict[str, str]:
    from . import __version__

    python = ".".join(platform.python_version_tuple()[:2])
    return {"weft": __version__, "torch": torch.__version__, "Python": python}


# -- loading -----------------------------------------------------------------------------------------------


def _load_weights(
    described: Sequence[Mapping[str, Any]],
    blocks: Sequence[memoryview],
    given: Mapping[str, torch.Tensor],
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """The tensors by number, and those that have a name; ``given`` ones take the place of the file's."""
    names = {weight["name"] for weight in described} - {None}
    unknown = given.keys() - names
    if unknown:
        raise SavedProgramError(f"the program has no weights {sorted(unknown)}")
    tensors = []
    for weight in described:
        size, stride, offset, dtype = decode(weight["layout"], _no_tensor)
        tensor = given.get(weight["name"])
        if tensor is None:
            tensor = _tensor_of(blocks[weight["block"]], size, stride, offset, dtype)
        elif (tuple(tensor.shape), tensor.stride(), tensor.dtype) != (size, stride, dtype):
            raise SavedProgramError(
                f"the program was compiled for {weight['name']} of shape {size}, strides {stride} and "
                f"{dtype}, not {tuple(tensor.shape)}, {tensor.stride()} and {tensor.dtype}"
            )
        tensors.append(tensor.detach())
    named = {w["name"]: t for w, t in zip(described, tensors, strict=True) if w["name"] is not None}
    return tensors, named


def _tensor_of(
    block: memoryview, size: Any, stride: Any, offset: int, dtype: torch.dtype
) -> torch.Tensor:
    if not len(block):
        return torch.empty_strided(size, stride, dtype=dtype)
    flat = torch.frombuffer(block, dtype=torch.uint8)
    made = torch.empty(0, dtype=dtype)
    return made.set_(flat.untyped_storage(), offset, size, stride)


def _no_tensor(number: Any) -> torch.Tensor:
    raise NotPlain(f"tensor {number} in a layout")


def _require_target(
    path: str, saved: Mapping[str, Sequence[str]], here: Mapping[str, Sequence[str]]
) -> None:
    for kind, names in saved.items():
        missing = sorted(set(names) - set(here.get(kind, ())))
        if missing:
            raise SavedProgramError(
                f"{path} was saved for another machine: this one lacks {kind} {', '.join(missing)}"
            )


def _output(described: Sequence[Any], results: Sequence[Any], leaves: Sequence[Any]) -> Any:
    kind, value = described
    if kind == "output":
        return results[value]
    return leaves[value] if kind == "argument" else value


def _shown(tree: Any) -> str:
    """Positional and named arguments, by how they lie in one another."""
    _, (positional, named) = tree
    names = [str(key) for key, _ in named[1]]
    return f"{len(positional[1])} positional and {names} named"


def _told(described: Sequence[Any]) -> str:
    if described[0] == "value":
        return repr(described[1])
    size, stride, dtype, device = described[1:]
    return f"a {dtype} tensor of shape {tuple(size)} and strides {tuple(stride)} on {device}"

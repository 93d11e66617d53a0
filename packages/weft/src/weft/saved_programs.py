"""``weft.save`` and ``weft.load``: compiled programs in a file, which run where nothing can be compiled.

A file holds what the code generator made of one whole graph for each example call, forward and backward, the
weights, and a description of these as plain data.  Reading a file runs nothing; a loaded program runs the
machine code that is in the file.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args

import torch
import torch.fx
import weft_aot_autograd
import weft_bytecode_capture as capture
import weft_functionalize
from weft_loop_ir import Codegen, CompiledProgram

from ._torch import SYMBOLIC_TYPES, fake_mode_of
from .contexts import options_of
from .explain import original_of
from .options import MODES, Numerics
from .plain_data import NotPlain, decode, encode
from .program_cache import CachedProgram, empty_graph
from .recorded_call import RecordedCall, record_call
from .registry import find_codegen
from .saved_arguments import Arguments, decode_symbols, describe_arguments, flat
from .saved_file import SavedProgramError, read_file, write_file
from .saved_weights import SavedWeights, load_weights
from .trees import unflatten

VERSION = 6

Call = tuple[Sequence[Any], Mapping[str, Any]]
"""Positional and named arguments."""


def save(
    compiled: Any,
    path: str | os.PathLike[str],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = {},
    *,
    more_calls: Sequence[Call] = (),
    dynamic: bool = False,
    training: bool = False,
) -> None:
    """Save a function or module, compiled for calls like ``compiled(*args, **kwargs)``, which is made once.

    ``weft.load(path)`` gives a callable for arguments of the same shapes, dtypes and containers, whose
    numbers and texts are those of this call.  Sizes that are marked (:func:`weft.mark_dynamic`) vary, with
    ``dynamic`` all that the program does not fix.  ``more_calls`` are saved beside the first, as pairs of
    positional and named arguments.  ``training``: with gradients, forward and backward.

    The options that ``compiled`` was compiled with (``mode``, ``numerics``) are those of the saved program;
    under ``freezing`` its parameters are no constants, so that others may take their place.

    The file has the parameters and buffers, other tensors that the program reads, and machine code for this
    kind of processor or GPU.  Programs are saved that are one graph; a warning names what they change besides
    tensors, which is not saved.

    :raises SavedProgramError: it can't be saved; the message says why.
    """
    function, options = original_of(compiled), options_of(compiled)
    if getattr(function, "_compiled_call_impl", None) is not None:  # compiled in place
        function = function._call_impl
    weights = SavedWeights(function)
    programs = []
    for call_args, call_kwargs in ((args, kwargs), *more_calls):
        arguments, leaves = flat(call_args, call_kwargs)
        if dynamic:
            leaves = _with_marks(leaves)
        with torch.set_grad_enabled(training):
            call = record_call(function, arguments, leaves, options)
        codegen = _codegen(call.entry.device_type, options.mode, options.numerics)
        described = describe_arguments(arguments, leaves, call.fakes, training)
        try:
            programs.append({**described, **_describe_program(call, codegen, weights)})
        except NotPlain as error:
            raise SavedProgramError(f"this program can't be saved: it holds {error}") from error
    header = {
        "format": VERSION,
        "versions": _versions(),
        "mode": options.mode,
        "numerics": options.numerics,
        "programs": programs,
        "weights": weights.described,
    }
    write_file(Path(path), header, weights.blocks)


def _with_marks(leaves: Sequence[Any]) -> list[Any]:
    """The leaves, tensors as others on the same memory all of whose sizes may vary."""
    made: dict[int, torch.Tensor] = {}
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and id(leaf) not in made:
            alias = leaf.detach().requires_grad_(leaf.requires_grad)
            capture.maybe_mark_dynamic(alias, range(alias.dim()))
            made[id(leaf)] = alias
    return [made.get(id(leaf), leaf) for leaf in leaves]


def _describe_program(
    call: RecordedCall, codegen: Codegen, weights: SavedWeights
) -> dict[str, Any]:
    """The part of a header that :class:`_Program` reads; its code becomes blocks of the file."""
    entry = call.entry
    codes = []
    needs: dict[str, Sequence[str]] = dict(_identity(codegen))

    def exported(generated: Any) -> Any:
        """Its plain data; the code becomes a block."""
        found = codegen.export(generated)
        if found is None:
            raise SavedProgramError(f"programs for {entry.device_type} can't be saved")
        codes.append([weights.add_code(piece) for piece in found.code])
        for kind, names in found.needs.items():
            needs[kind] = sorted({*needs.get(kind, ()), *names})
        return found.generated

    for tensor, name in call.names:
        weights.name(tensor, name)

    def placed(described: Sequence[Any]) -> Sequence[Any]:
        kind, value = described
        return (kind, weights.number(value)) if kind == "weight" else described

    lifted = entry.functional(call.source).lifted
    names = {index: f"weight_{weights.number(tensor)}" for index, tensor in lifted.items()}
    saved = dataclasses.replace(entry, generated=exported(entry.generated), lifted=names)
    if entry.training is not None:
        backward = exported(entry.training.generated)
        training = dataclasses.replace(entry.training, generated=backward)
        saved = dataclasses.replace(saved, training=training)
    elif not _has_symbols((entry.outputs, entry.shared_bases)):
        saved = dataclasses.replace(saved, graph=None)  # of which nothing is read
    return {
        "inputs": [placed(described) for described in call.inputs],
        "result": call.result,
        "outputs": [placed(described) for described in call.outputs],
        "program": encode(saved, weights.number),
        "codes": codes,
        "device_type": entry.device_type,
        "needs": needs,
    }


def _identity(codegen: Codegen) -> dict[str, Sequence[str]]:
    """What every program needs: a code generator that reads it."""
    return {"the code generator": [f"{type(codegen).__module__}.{type(codegen).__qualname__}"]}


def _has_symbols(value: Any) -> bool:
    """Whether a descriptor has numbers that are made of sizes."""
    if isinstance(value, tuple | list | Mapping):
        return any(map(_has_symbols, value.values() if isinstance(value, Mapping) else value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return any(_has_symbols(getattr(value, f.name)) for f in dataclasses.fields(value))
    return isinstance(value, SYMBOLIC_TYPES)


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
    try:
        for name, version in _versions().items():
            saved = header["versions"].get(name)
            if saved != version:
                raise SavedProgramError(
                    f"{path} was saved with {name} {saved}, this is {name} {version}"
                )
        return SavedProgram(str(path), header, blocks, weights or {})
    except SavedProgramError:
        raise
    except (
        NotPlain, LookupError, TypeError, ValueError, AttributeError, RuntimeError
    ) as error:  # fmt: skip
        raise SavedProgramError(f"{path} is damaged: {error}") from error


class SavedProgram:
    """A loaded program: call it as what was saved was called.

    ``weights`` are its parameters and buffers by name: what is written to them in place, later calls see.
    Those that require gradients get them where the program was saved for training.
    """

    def __init__(
        self,
        path: str,
        header: Mapping[str, Any],
        blocks: Sequence[memoryview],
        weights: Mapping[str, torch.Tensor],
    ) -> None:
        self._path = path
        programs = header["programs"]
        codegens = [_codegen_for(path, header, program) for program in programs]
        training = any(program["training"] for program in programs)
        tensors, self.weights = load_weights(header["weights"], blocks, weights, training)
        source = _source(path, tensors)
        self._programs = [
            _Program(path, program, codegen, blocks, source, tensors)
            for program, codegen in zip(programs, codegens, strict=True)
        ]
        if not self._programs:
            raise SavedProgramError(f"{path} is damaged: it holds no program")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments, leaves = flat(args, kwargs)
        refusals = []
        for program in self._programs:
            refusal = program.arguments.refusal(arguments, leaves)
            if refusal is None:
                return program.run(leaves)
            refusals.append(refusal)
        if len(refusals) == 1:
            raise SavedProgramError(f"{self._path}: {refusals[0]}")
        told = "".join(f"\n{k}: {reason}" for k, reason in enumerate(refusals))
        raise SavedProgramError(
            f"{self._path} has {len(refusals)} programs, none saved for these:{told}"
        )

    def __repr__(self) -> str:
        return f"<SavedProgram: {self._path}>"


class _Program:
    """What runs the calls that are like one example."""

    def __init__(
        self,
        path: str,
        header: Mapping[str, Any],
        codegen: Codegen,
        blocks: Sequence[memoryview],
        source: torch.fx.GraphModule,
        tensors: Sequence[torch.Tensor],
    ) -> None:
        self.arguments = Arguments(header)
        self._inputs = [_placed(described, tensors) for described in header["inputs"]]
        self._result = header["result"]
        self._outputs = [_placed(described, tensors) for described in header["outputs"]]
        self._gradients = bool(header["training"])
        codes = [[_piece(path, blocks, *piece) for piece in code] for code in header["codes"]]
        mode = functools.cache(lambda: fake_mode_of(decode_symbols(header)))
        entry = decode(header["program"], tensors.__getitem__, mode)
        if not isinstance(entry, CachedProgram):
            raise SavedProgramError(f"{path} is damaged: it holds no program")
        functional = entry.functional(source)
        program: Any = _load_code(path, codegen, entry.generated, codes[0])
        if entry.training is not None:
            backward = _load_code(path, codegen, entry.training.generated, codes[1])
            kept = entry.training
            program = weft_aot_autograd.TrainingProgram(
                functional, kept.partitioned, program, backward, expected=kept.expected
            )
        self._run = weft_functionalize.wrap(functional, program)

    def run(self, leaves: Sequence[Any]) -> Any:
        with torch.set_grad_enabled(self._gradients and torch.is_grad_enabled()):
            results = self._run(*(_output(described, (), leaves) for described in self._inputs))
        return unflatten(
            self._result, lambda number: _output(self._outputs[number], results, leaves)
        )


def _source(path: str, tensors: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """What has the tensors as attributes, in place of the captured graph, which is not in the file."""

    def forward(*inputs: Any) -> NoReturn:
        raise SavedProgramError(
            f"{path}: arguments or weights that the program writes to share memory with others"
        )

    source = empty_graph()
    for number, tensor in enumerate(tensors):
        source.register_buffer(f"weight_{number}", tensor)
    source.forward = forward
    return source


def _piece(path: str, blocks: Sequence[memoryview], number: int, digest: str) -> bytes:
    code = bytes(blocks[number])
    if hashlib.sha256(code).hexdigest() != digest:
        raise SavedProgramError(f"{path} is damaged: its code is not what was saved")
    return code


def _load_code(
    path: str, codegen: Codegen, generated: Any, code: Sequence[bytes]
) -> CompiledProgram:
    try:
        return codegen.load_exported(generated, code)
    except (RuntimeError, OSError) as error:  # of a driver or of the system's loader
        raise SavedProgramError(f"{path}: its code can't be loaded here: {error}") from error


def _versions() -> dict[str, str]:
    from . import __version__

    python = ".".join(platform.python_version_tuple()[:2])
    return {"weft": __version__, "torch": torch.__version__, "Python": python}


def _codegen(device_type: str, mode: str, numerics: str) -> Codegen:
    return find_codegen(device_type, mode, eager_numerics=numerics == "eager")


def _codegen_for(path: str, header: Mapping[str, Any], program: Mapping[str, Any]) -> Codegen:
    """The code generator of a program in a header; this machine has to have what the program needs."""
    mode, numerics = header["mode"], header["numerics"]
    if mode not in MODES or numerics not in get_args(Numerics):
        raise SavedProgramError(f"{path} is damaged: mode {mode!r}, numerics {numerics!r}")
    codegen = _codegen(program["device_type"], mode, numerics)
    here = {**codegen.target(), **_identity(codegen)}
    for kind, names in program["needs"].items():
        missing = sorted(set(names) - set(here.get(kind, ())))
        if missing:
            raise SavedProgramError(
                f"{path} was saved for another machine: this one lacks {kind} {', '.join(missing)}"
            )
    return codegen


def _placed(described: Sequence[Any], tensors: Sequence[torch.Tensor]) -> Sequence[Any]:
    """A weight as a value, not by its number; what else there is stays."""
    kind, value = described
    return ("value", tensors[value]) if kind == "weight" else described


def _output(described: Sequence[Any], results: Sequence[Any], leaves: Sequence[Any]) -> Any:
    kind, value = described
    if kind == "output":
        return results[value]
    return leaves[value] if kind == "argument" else value

"""What a user replaces in libraries between two calls."""

import math

import pytest
import torch
from weft_bytecode_capture import CaptureOptions, compile_frames

_LINEAR = torch.nn.Linear(3, 3)
_LAYERS = torch.nn.Sequential(_LINEAR, torch.nn.GELU())
_HOOKED = torch.nn.Sequential(torch.nn.GELU())
_HOOKED[0].register_forward_hook(lambda module, inputs, output: output + 1)


class _Doubled(torch.nn.GELU):
    def forward(self, x):
        return super().forward(x) * 2


_PATCHES = {
    "forward of a class of which one is made": (
        lambda x: torch.nn.GELU()(x), torch.nn.GELU, "forward", lambda m, s: s * 7),
    "forward of a class behind one that is made": (
        lambda x: torch.nn.GELU()(x) + _LINEAR(x), torch.nn.Linear, "forward", lambda m, s: s * 7),
    "forward of a class, with a hook": (
        lambda x: _HOOKED(x), torch.nn.GELU, "forward", lambda m, s: s * 7),
    "forward, by its name": (
        lambda x: _LINEAR.forward(x), torch.nn.Linear, "forward", lambda m, s: s * 7),
    "the call of modules of which one is made": (
        lambda x: torch.nn.GELU()(x), torch.nn.Module, "__call__", lambda m, s: s * 7),
    "forward of a base": (lambda x: _Doubled()(x), torch.nn.GELU, "forward", lambda m, s: s * 7),
    "a tensor's method": (lambda x: x.relu(), torch.Tensor, "relu", lambda s: s * 7),
    "a question about a tensor": (lambda x: (x * 2, x.numel()), torch.Tensor, "numel", lambda s: 77),
    "how many rows a tensor has": (lambda x: x * len(x), torch.Tensor, "__len__", lambda s: 7),
    "the rows of a tensor": (
        lambda x: [row * 1 for row in x], torch.Tensor, "__iter__", lambda s: iter([s.neg()])),
    "sizes": (lambda x: x * x.shape[0], torch.Tensor, "shape", property(lambda s: (7,))),
    "a dtype": (
        lambda x: x * (x.dtype is torch.float32), torch.Tensor, "dtype", property(lambda s: None)),
    "a function that the program names": (
        lambda x: torch.nn.functional.gelu(x), torch.nn.functional, "gelu", lambda s: s * 7),
    "a function of torch": (lambda x: torch.relu(x), torch, "relu", lambda s: s * 7),
    "a function of Python": (lambda x: x * math.sqrt(4), math, "sqrt", lambda s: 7.0),
    "forward of a class": (lambda x: _LINEAR(x), torch.nn.Linear, "forward", lambda m, s: s * 7),
    "forward of a class, in another": (lambda x: _LAYERS(x), torch.nn.GELU, "forward", lambda m, s: s * 7),
    "the call of modules": (lambda x: _LINEAR(x), torch.nn.Module, "__call__", lambda m, s: s * 7),
    "forward of a container": (lambda x: _LAYERS(x), torch.nn.Sequential, "forward", lambda m, s: s * 7),
}  # fmt: skip
_INNER = {
    "a function that a library calls": (
        lambda x: _LAYERS(x), torch.nn.functional, "gelu", lambda s, **options: s * 7),
    "another": (lambda x: _LAYERS(x), torch.nn.functional, "linear", lambda s, w, b: s * 7),
    "what the call of modules calls": (
        lambda x: _LINEAR(x), torch.nn.Module, "_call_impl", lambda m, s: s * 7),
    "a method of a library's class": (
        lambda x: x * len(list(_LINEAR.parameters())), torch.nn.Module, "parameters", lambda m: [1, 2, 3]),
}  # fmt: skip


@pytest.mark.parametrize("name", [*_PATCHES, *_INNER])
def test_what_a_user_patches_in_libraries(name, monkeypatch):
    function, owner, attribute, patch = (_PATCHES | _INNER)[name]
    options = CaptureOptions(guard_libraries=name in _INNER)
    compiled = compile_frames(
        function,
        lambda graph_module, inputs: graph_module.forward,
        options,
        on_error=lambda error, location: None,  # where tensors don't say what they are
    )
    x = torch.tensor([1.0, -2.0, 3.0])
    for patched in (False, True, False):
        with monkeypatch.context() as context:
            if patched:
                context.setattr(owner, attribute, patch)
            found = [(compiled(x), function(x)) for _ in range(2)]
        for result, expected in found:
            assert repr(result) == repr(expected), patched

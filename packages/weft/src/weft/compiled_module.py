"""The module that ``weft.compile(module)`` gives: the original's state, a compiled forward."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ._torch import has_global_hooks, module_class_of_torch_compile


def _calling_compiled(method: Callable[..., Any], compiled: CompiledModule) -> Callable[..., Any]:
    """The method, in whose extent calls of the module itself are calls of the compiled one.

    Torch's own place for a module's compiled call is used, which ``Module.compile`` sets.
    """

    @functools.wraps(method)
    def run(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        previous = module._compiled_call_impl

        def call(*inner_args: Any, **inner_kwargs: Any) -> Any:
            module._compiled_call_impl = (
                None  # the frames of the compiled call are the module's own
            )
            try:
                return compiled(*inner_args, **inner_kwargs)
            finally:
                module._compiled_call_impl = call

        module._compiled_call_impl = call
        try:
            return method(module, *args, **kwargs)
        finally:
            module._compiled_call_impl = previous

    return run


class _Forward:
    """``forward`` of a compiled module: a method with the signature of the original's forward.

    Frameworks look at it to decide which arguments they pass.
    """

    def __get__(self, compiled: CompiledModule | None, owner: type) -> Any:
        if compiled is None:
            return _call_compiled
        return types.MethodType(compiled.__dict__["_forward_function"], compiled)


def _call_compiled(compiled: CompiledModule, *args: Any, **kwargs: Any) -> Any:
    return compiled.__dict__["_compiled_call"](*args, **kwargs)


def _with_signature_of(forward: Callable[..., Any]) -> Callable[..., Any]:
    """What calls a compiled module, as a function that takes what ``forward`` does."""

    def call(compiled: CompiledModule, *args: Any, **kwargs: Any) -> Any:
        return compiled.__dict__["_compiled_call"](*args, **kwargs)

    with contextlib.suppress(TypeError, ValueError):  # not every callable has a signature
        signature = inspect.signature(forward)
        own = inspect.Parameter("_compiled", inspect.Parameter.POSITIONAL_ONLY)
        taken = [own, *signature.parameters.values()]
        call.__signature__ = signature.replace(parameters=taken)  # type: ignore[attr-defined]
    return call


class CompiledModule(torch.nn.Module):
    """Runs ``module`` compiled and is it in all else: parameters, buffers, ``train``, ``state_dict``.

    ``_orig_mod`` is the original module.  Attributes are read from and written to it.  The class is not
    the original's, as with torch.compile; ``isinstance`` tests go to ``compiled._orig_mod``.

    To ``isinstance`` it is of the class that torch.compile gives: accelerate, Lightning and diffusers find
    the original by that, and compile other methods by ``dynamo_ctx``.
    """

    captured_as = "_orig_mod"  # what captured code calls instead

    _orig_mod: torch.nn.Module
    _OWN = frozenset(
        (
            "_orig_mod _forward _forward_function _compile_frames _compiled_forward _compiled_call "
            "_compile_again"
        ).split()
    )

    def __init__(
        self,
        module: torch.nn.Module,
        compile_frames: Callable[[Callable[..., Any]], Any],
        compile_again: Callable[[torch.nn.Module], Any],
    ) -> None:
        super().__init__()
        self._modules["_orig_mod"] = module
        self.__dict__["_compile_frames"] = compile_frames
        self.__dict__["_forward"] = module.forward
        self.__dict__["_compiled_forward"] = compile_frames(module.forward)
        self.__dict__["_compiled_call"] = compile_frames(module.__call__)
        self.__dict__["_forward_function"] = _with_signature_of(module.forward)
        self.__dict__["_compile_again"] = compile_again

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if (
            self._forward_hooks
            or self._forward_pre_hooks
            or self._backward_hooks
            or self._backward_pre_hooks
        ):
            return super().__call__(*args, **kwargs)
        module: Any = self._modules["_orig_mod"]
        if (
            module._forward_hooks
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
            or has_global_hooks()
            or type(module).__call__ is not torch.nn.Module.__call__
        ):
            return self.forward(*args, **kwargs)
        own = self.__dict__
        if "forward" in own or "_call_impl" in own:
            # Assigned: it is called instead, as for any module.
            return super().__call__(*args, **kwargs)
        if module.forward != own["_forward"]:  # the module, or its class, was given another
            own["_forward"] = module.forward
            own["_compiled_forward"] = own["_compile_frames"](module.forward)
        return own["_compiled_forward"](*args, **kwargs)

    forward = _Forward()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """What ``isinstance`` takes it for."""
        return module_class_of_torch_compile() or CompiledModule

    @property
    def dynamo_ctx(self) -> Callable[..., Any]:
        """What compiles a function or method as this module is compiled."""
        compile_again: Callable[..., Any] = self.__dict__["_compile_again"]
        return compile_again

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__.get("_modules", {})
        if name in CompiledModule._OWN:
            if name in modules:
                return modules[name]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        module = modules["_orig_mod"]
        value = getattr(module, name)
        if self._calls_it(module, value):
            return types.MethodType(_calling_compiled(value.__func__, self), module)
        return value

    @staticmethod
    def _calls_it(module: torch.nn.Module, value: Any) -> bool:
        """Whether a value is a method of the module's own class that may call it, as ``generate`` does."""
        if not isinstance(value, types.MethodType) or value.__self__ is not module:
            return False
        function: Any = value.__func__
        return isinstance(function, types.FunctionType) and not hasattr(
            torch.nn.Module, function.__name__
        )

    def compiled_with(self, compile_again: Any) -> bool:
        """Whether the same arguments of ``weft.compile`` made it, and forward is what they compiled."""
        made: Any = self.__dict__["_compile_again"]
        return "forward" in self.__dict__ or made.keywords == compile_again.keywords

    # What this class defines (``forward``, ``train``, ``to``, ...) is replaced here, as accelerate does with
    # ``forward``; all else is the original's.

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_own(name) or "_orig_mod" not in self.__dict__.get("_modules", {}):
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        if self._is_own(name):
            super().__delattr__(name)
        else:
            delattr(self._orig_mod, name)

    @classmethod
    def _is_own(cls, name: str) -> bool:
        return name in CompiledModule._OWN or hasattr(cls, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self._orig_mod), "_orig_mod"})

    @property
    def training(self) -> bool:
        return self._orig_mod.training

    @training.setter
    def training(self, mode: bool) -> None:
        module = self.__dict__.get("_modules", {}).get("_orig_mod")
        if module is not None:  # else torch's own initialization
            module.training = mode

    def train(self, mode: bool = True) -> CompiledModule:
        self._orig_mod.train(mode)
        return self

    def __len__(self) -> int:
        return len(self._orig_mod)  # type: ignore[arg-type]

    def __getitem__(self, key: Any) -> Any:
        return self._orig_mod[key]  # type: ignore[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._orig_mod)  # type: ignore[call-overload, no-any-return]

    def __bool__(self) -> bool:
        return True

    # Copies and pickles hold a copy of the original, which compiles anew when it is called.

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = self.__dict__["_compile_again"](copy.deepcopy(self._orig_mod, memo))
        memo[id(self)] = copied
        return copied

    def __reduce__(self) -> Any:
        return self.__dict__["_compile_again"], (self._orig_mod,)

"""Compiled generators and coroutines: what they call is compiled, their own code is not."""

from __future__ import annotations

import collections.abc
import functools
import inspect
from collections.abc import Callable, Generator
from typing import Any

import weft_bytecode_capture as capture

from .errors import StageError, WeftWarning

CompileFrames = Callable[[Callable[..., Any]], Any]


def pauses(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a generator or a coroutine, whose frames capture does not take."""
    return (
        inspect.isgeneratorfunction(function)
        or inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
    )


def compile_pausing(
    function: Callable[..., Any], compile_frames: CompileFrames, fullgraph: bool
) -> Any:
    """The function, of which each step runs in the extent of a compiled call; it says what is not compiled.

    Under ``fullgraph`` a call raises, as at any other break.
    """
    told = _told(function)
    if fullgraph:
        return _refusing(function, told)
    capture.warn(f"{told}; functions that it calls are compiled.", WeftWarning)

    def run_step(
        step: Callable[..., Any], *arguments: Any
    ) -> Any:  # its own: so is what it compiles
        return step(*arguments)

    steps = functools.partial(_Steps, compile_frames(run_step))
    return _of_its_kind(function, steps)


def _told(function: Callable[..., Any]) -> str:
    kind = "a generator function" if inspect.isgeneratorfunction(function) else "asynchronous"
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"weft: {name} is {kind}, and its own code runs as plain Python"


def _refusing(function: Callable[..., Any], told: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def refuse(*args: Any, **kwargs: Any) -> Any:
        code = getattr(inspect.unwrap(function), "__code__", None)
        place = f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})" if code else told
        kind = "generator that outlives the graph"
        kind = kind if inspect.isgeneratorfunction(function) else "coroutine"
        raise StageError("bytecode-capture", place, capture.Unsupported(kind, told))

    return refuse


def _of_its_kind(function: Callable[..., Any], steps: Callable[[Any], _Steps]) -> Any:
    """A function of the same kind, which runs the steps of what the function makes."""
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generate(*args: Any, **kwargs: Any) -> Any:
            return (yield from steps(function(*args, **kwargs)))

        return generate
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wait(*args: Any, **kwargs: Any) -> Any:
            return await steps(function(*args, **kwargs))

        return wait

    @functools.wraps(function)
    async def iterate(*args: Any, **kwargs: Any) -> Any:
        inner = function(*args, **kwargs)
        step: Callable[[], Any] = inner.__anext__
        try:
            while True:
                try:
                    item = await steps(step())
                except StopAsyncIteration:
                    return
                try:
                    step = functools.partial(inner.asend, (yield item))
                except GeneratorExit:
                    raise
                except BaseException as error:  # thrown in, and for the inner one to handle
                    step = functools.partial(inner.athrow, error)
        finally:
            await inner.aclose()

    return iterate


class _Steps(Generator[Any, Any, Any], collections.abc.Awaitable[Any]):
    """A generator or coroutine whose steps are run by a compiled function."""

    def __init__(self, run_step: Callable[..., Any], inner: Any) -> None:
        self._run_step = run_step
        self._inner = inner

    def send(self, value: Any) -> Any:
        return self._run_step(self._inner.send, value)

    def throw(self, *error: Any) -> Any:
        return self._run_step(self._inner.throw, *error)

    def close(self) -> None:
        self._run_step(self._inner.close)

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

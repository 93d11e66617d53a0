"""What compiled callables may do when they are called: the stance of a thread."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Final, ParamSpec, TypeVar

from . import _frame_hook

P = ParamSpec("P")
R = TypeVar("R")

STANCES: Final[dict[str, int]] = {
    "default": _frame_hook.STANCE_DEFAULT,
    "force_eager": _frame_hook.STANCE_EAGER,
    "eager_on_recompile": _frame_hook.STANCE_EAGER_ON_RECOMPILE,
    "fail_on_recompile": _frame_hook.STANCE_FAIL_ON_RECOMPILE,
    "eager_then_compile": _frame_hook.STANCE_EAGER_THEN_COMPILE,
}


class RecompileError(RuntimeError):
    """A frame needs compilation while the stance is ``fail_on_recompile``."""


class set_stance:  # noqa: N801, a function, context manager and decorator to its users, as torch's is
    """Set what compiled callables do in this thread, from now on, for a ``with`` block or in a function.

    - ``"default"``: run compiled code where its guards hold, else compile;
    - ``"force_eager"``: run every compiled callable as it was written;
    - ``"eager_on_recompile"``: run compiled code where its guards hold, else run eagerly;
    - ``"fail_on_recompile"``: run compiled code where its guards hold, else raise
      :class:`RecompileError` with the guard that failed.  A first compilation fails too;
    - ``"eager_then_compile"``: run the first call of each function eagerly, and compile later ones: sizes and
      integers that have changed since the first are symbolic then.

    Where this is ``"default"`` the stance counts that ``torch.compiler.set_stance`` was given.

    The call takes effect at once; leaving a ``with`` block restores the stance from before the call.  As a
    decorator it takes effect in calls of the function alone.

    :raises ValueError: ``stance`` is none of these.
    :raises RuntimeError: called inside a compiled call.
    """

    def __init__(self, stance: str) -> None:
        if stance not in STANCES:
            raise ValueError(f"stance must be one of {sorted(STANCES)}, got {stance!r}")
        if _frame_hook.current_context() is not None:
            raise RuntimeError("set_stance() cannot be called inside a compiled call")
        self.stance = stance
        self._before = _frame_hook.set_stance(STANCES[stance])

    def __enter__(self) -> set_stance:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _frame_hook.set_stance(self._before)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        _frame_hook.set_stance(self._before)
        stance = self.stance

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with set_stance(stance):
                return function(*args, **kwargs)

        return run

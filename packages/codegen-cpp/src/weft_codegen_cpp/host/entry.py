"""The function that Python calls: it checks the inputs, runs the steps, and raises what went wrong.

And what the host program notes of its own time: when each step has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft_loop_ir import ExternCall, Kernel, ParallelKernels, Step


@dataclass(frozen=True)
class Entry:
    """What the entry of a program needs to know.

    ``inputs``: how many there are; ``tensors``: the positions of those that are tensors; ``sizes``:
    statements that define the sizes in ``arena_bytes``, a C++ expression; ``magnitude`` is the same in
    doubles, which don't overflow.  ``owned`` counts the
    slots of a call, ``calls_torch`` and ``uses_python`` say what its steps do.
    """

    inputs: int
    tensors: tuple[int, ...]
    sizes: tuple[str, ...]
    arena_bytes: str
    magnitude: str
    owned: int
    calls_torch: bool
    uses_python: bool


def print_entry(entry: Entry) -> str:
    """``weft_run`` and the functions by which the loader makes and ends a program."""
    checks = [
        f"for (i64 k = {first}; k < {end}; ++k)\n"
        "    if (!is_tensor(arguments[k]))\n"
        '      return api.PyErr_Format(api.type_error, "input %lld must be a tensor", k);'
        for first, end in _ranges(entry.tensors)
    ]
    lines = [
        "static thread_local bool left_changes;  // by the last call of this thread that raised",
        "static thread_local bool failed_check;  // the last call of this thread",
        'extern "C" Object weft_run(Object self, Object const* arguments, i64 count) {',
        "  failed_check = false;",
        f"  if (count != {entry.inputs})",
        "    return api.PyErr_SetString(",
        f'        api.type_error, "the program takes {entry.inputs} inputs"), nullptr;',
        *("  " + c for c in checks),
        "  Call c = {};",
        '  c.program = (Program*)api.PyCapsule_GetPointer(self, "weft.program");',
        "  c.arguments = arguments;",
        *("  " + s for s in entry.sizes),
        f"  const f64 magnitude = {entry.magnitude};",
        f"  const i64 bytes = magnitude < max_bytes ? {entry.arena_bytes} : ~ui64(0) >> 1;",
        "  c.frame = take_frame(c.program, bytes, view_count);",
        "  if (!c.frame) return no_memory(bytes);",
        *("  " + line for line in _run(entry)),
        "  Object result = status == ok ? results(c) : nullptr;",
        f"  for (int k = 0; k < {entry.owned}; ++k) {{",
        _END_OF_CALL,
    ]
    return "\n".join(lines)


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """The ascending ``numbers`` as ranges, whose ends they don't include."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number:
            ranges[-1] = (ranges[-1][0], number + 1)
        else:
            ranges.append((number, number + 1))
    return ranges


def _run(entry: Entry) -> list[str]:
    """Run the steps, without gradients and, where none of them is Python's, without its lock."""
    lines = ["Status status = steps(c);"]
    if entry.calls_torch and not entry.uses_python:
        lines.insert(0, "void* thread = api.PyEval_SaveThread();")
        lines.append("api.PyEval_RestoreThread(thread);")
    if entry.calls_torch:
        before = ["const bool grad = api.grad_enabled();", "if (grad) api.set_grad_enabled(false);"]
        lines = [*before, *lines, "if (grad) api.set_grad_enabled(true);"]
    return lines


_END_OF_CALL = """\
    if (c.owned[k]) api.delete_tensor(c.owned[k]);
    if (c.made[k]) api.Py_DecRef(c.made[k]);
  }
  if (!result) raise_error(status, c.error, c.failed, c.frame);
  if (!result) left_changes = c.changed;
  failed_check = status == requirement_failed;
  give_frame(c.program, c.frame, view_count);
  return result;
}

extern "C" i64 weft_api_bytes() { return sizeof(Api); }
extern "C" void weft_bind(const Api* table) { api = *table; }
extern "C" void* weft_create(Object const* objects, i64 count) {
  return create_program(objects, count);
}
extern "C" void weft_destroy(Object capsule) {
  destroy_program((Program*)api.PyCapsule_GetPointer(capsule, "weft.program"), view_count);
}
extern "C" i64 weft_left_changes() { return left_changes; }
extern "C" i64 weft_failed_check() { return failed_check; }
extern "C" i64 weft_held_bytes(Object capsule) {
  return held_bytes((const Program*)api.PyCapsule_GetPointer(capsule, "weft.program"));
}
struct Method {
  const char* name;
  Object (*function)(Object, Object const*, i64);
  int flags;
  const char* documentation;
};
extern "C" {
Method weft_method = {"run", weft_run, 0x80, nullptr};  // METH_FASTCALL
}
"""


# -- timeline ------------------------------------------------------------------------------------------


STAMP = "stamps[{}] = nanoseconds();"

_SOURCE = """#include <time.h>
static thread_local i64 stamps[%d];
static i64 nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return i64(now.tv_sec) * 1000000000 + now.tv_nsec;
}
extern "C" const i64* weft_stamps() { return stamps; }
extern "C" const char* weft_steps() { return "%s"; }
"""


def print_timeline(steps: Sequence[Step]) -> str:
    """The functions that :data:`STAMP` and a program's ``timeline`` call."""
    return _SOURCE % (len(steps) + 1, "\\n".join(map(_name, steps)))


def _name(step: Step) -> str:
    if isinstance(step, ParallelKernels):
        return " + ".join(kernel.name for kernel in step.kernels)
    if isinstance(step, ExternCall):
        return str(step.operator)
    return step.name if isinstance(step, Kernel) else type(step).__name__.lower()

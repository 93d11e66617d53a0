"""Questions about ranges, slices, types and torch's global state, whose answers differ between calls."""

import contextlib

import pytest
import torch
from weft_bytecode_capture import CaptureOptions, compile_frames

X = torch.arange(24.0).reshape(4, 6)

OBJECTS = {
    "members of a range": (lambda x, r: (x + 1, r.start, r.stop, r.step, len(r), 3 in r),
                           [range(3), range(1, 5), range(1, 5, 2), range(0, 9, 3), range(5, 0, -2)]),
    "start of a range": (lambda x, r: (x + 1, r.start), [range(3), range(1, 3), range(2, 3)]),
    "length of a range": (lambda x, r: (x + 1, len(r)), [range(3), range(1, 3), range(2, 6)]),
    "sum of a range": (lambda x, r: x + sum(r), [range(3), range(1, 3), range(2, 6, 2)]),
    "items of a range": (lambda x, r: (x + 1, r.index(2), r[-1]), [range(3), range(1, 3), range(2, 6, 2)]),
    "members of a slice": (lambda x, s: (x + 1, s.start, s.stop, s.step),
                           [slice(3), slice(1, 3), slice(1, 3, 2), slice(None, None, 2)]),
    "slice": (lambda x, s: x[s], [slice(3), slice(1, 3), slice(1, 3, 2), slice(None, None, 2)]),
    "indices of a slice": (lambda x, s: (x + 1, s.indices(len(x))),
                           [slice(3), slice(1, 9), slice(None, None, 2)]),
    "dtype": (lambda x, d: (x.to(d), d.is_floating_point, d.itemsize),
              [torch.float32, torch.int8, torch.float64]),
    "device": (lambda x, d: (x + 1, x.device == d, d.index, d.type),
               [torch.device("cpu"), torch.device("cuda", 1), torch.device("cpu", 0)]),
    "seed of a generator": (lambda x, g: (x + 1, g.initial_seed(), g.device),
                            [torch.Generator().manual_seed(n) for n in (1, 2)]),
}  # fmt: skip


@contextlib.contextmanager
def changed(get, put, value):
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


def settings(get, put, *values):
    return [contextlib.nullcontext, *(lambda v=v: changed(get, put, v) for v in values)]


def attribute(owner, name, *values):
    return settings(
        lambda: getattr(owner, name), lambda value: setattr(owner, name, value), *values
    )


plain = contextlib.nullcontext
cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
MODES = {
    "default dtype": (lambda x: (x + 1, torch.get_default_dtype(), torch.ones(2)),
                      settings(torch.get_default_dtype, torch.set_default_dtype, torch.float64)),
    "default device": (lambda x: (x + 1, torch.get_default_device(), torch.ones(2).device),
                       [plain, lambda: torch.device("meta")]),
    "grad mode": (lambda x: (x + 1, torch.is_grad_enabled()), [plain, torch.no_grad]),
    "inference mode": (lambda x: (x * 1, torch.is_inference_mode_enabled()), [plain, torch.inference_mode]),
    "autocast": (
        lambda x: (x @ x.t(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        [plain, lambda: torch.autocast("cpu", torch.bfloat16), lambda: torch.autocast("cpu", torch.float16),
         lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False)]),
    "deterministic algorithms": (
        lambda x: (x + 1, torch.are_deterministic_algorithms_enabled()),
        settings(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True)),
    "deterministic, warnings only": (
        lambda x: (x + 1, torch.is_deterministic_algorithms_warn_only_enabled()),
        settings(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 1, 2)),
    "memory filled": (
        lambda x: (x + 1, torch.utils.deterministic.fill_uninitialized_memory),
        attribute(torch.utils.deterministic, "fill_uninitialized_memory", False)),
    "threads": (lambda x: (x + 1, torch.get_num_threads()),
                settings(torch.get_num_threads, torch.set_num_threads, 1, 2)),
    "cudnn": (lambda x: (x + 1, cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32),
              [plain, lambda: cudnn.flags(enabled=False),
               lambda: cudnn.flags(enabled=True, benchmark=True, deterministic=True, allow_tf32=False)]),
    "mkldnn": (lambda x: (x + 1, torch.backends.mkldnn.enabled),
               [plain, lambda: torch.backends.mkldnn.flags(enabled=False)]),
    "precision of products": (
        lambda x: (x + 1, torch.get_float32_matmul_precision()),
        settings(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high", "medium")),
    "tf32": (lambda x: (x + 1, matmul.allow_tf32), attribute(matmul, "allow_tf32", True)),
    "attention's libraries": (
        lambda x: (x + 1, torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()),
        [plain, lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)]),
    "anomaly": (
        lambda x: (x + 1, torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        [plain, lambda: torch.autograd.set_detect_anomaly(True),
         lambda: torch.autograd.set_detect_anomaly(True, check_nan=False)]),
    "warnings": (lambda x: (x + 1, torch.is_warn_always_enabled()),
                 settings(torch.is_warn_always_enabled, torch.set_warn_always, True)),
    "denormals": (lambda x: x * 0 + 1e-39 * torch.ones_like(x),
                  settings(lambda: False, torch.set_flush_denormal, True)),
    "seed": (lambda x: (x + 1, torch.initial_seed(), torch.default_generator.initial_seed()),
             settings(lambda: 3, torch.manual_seed, 1, 2)),
    "hooks of saved tensors": (
        lambda x: (x + 1, torch._C._autograd._saved_tensors_hooks_is_enabled()),
        [plain, lambda: torch.autograd.graph.disable_saved_tensors_hooks("no")]),
}  # fmt: skip


@pytest.mark.parametrize("name", OBJECTS)
def test_questions_about_objects(name):
    program, objects = OBJECTS[name]
    compiled = _compiled(program)
    for value in (*objects, *reversed(objects)):
        assert _outcome(compiled, X, value) == _outcome(program, X, value), value


@pytest.mark.parametrize("name", MODES)
def test_questions_about_modes(name):
    program, contexts = MODES[name]
    compiled = _compiled(program)
    for context in (*contexts, *reversed(contexts)):
        found = []
        for called in (compiled, program):
            with context():
                found.append(_outcome(called, X))
        assert found[0] == found[1]


def _compiled(program):
    return compile_frames(
        program,
        lambda graph_module, inputs: graph_module.forward,
        CaptureOptions(recompile_limit=40),
    )


def _outcome(function, *arguments):
    try:
        return repr(function(*arguments))
    except Exception as error:
        return type(error), str(error)

"""Settings of cuDNN that a program changes and sets back, or leaves changed."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from weft_bytecode_capture import CaptureOptions, Unsupported, compile_frames
from weft_bytecode_capture._torch.library_settings import SETTINGS
from weft_bytecode_capture.symbolic.graph.library_settings import LibrarySettings

cudnn = torch.backends.cudnn


def settings():
    return [getter(*place) for (_, place), getter in SETTINGS.items()]


def block(x):
    with cudnn.flags(enabled=False, deterministic=True):
        y = torch.nn.functional.conv1d(x, x)
    return y + 1, cudnn.enabled, cudnn.deterministic


def questions(x):
    with cudnn.flags(enabled=False, deterministic=True, fp32_precision="ieee"):
        inside = cudnn.enabled, cudnn.deterministic, cudnn.allow_tf32, cudnn.fp32_precision
        with cudnn.flags(enabled=True):
            inside += (cudnn.enabled, cudnn.deterministic, cudnn.allow_tf32)
        return x + 1, inside, cudnn.enabled


def left_changed(x):
    torch._C._set_cudnn_benchmark(not cudnn.benchmark)
    return x + 1, cudnn.benchmark


def raises(x):
    try:
        with cudnn.flags(enabled=False):
            x = x + 1
            raise ValueError("no")
    except ValueError:
        return x * 2, cudnn.enabled


def loss(x):
    sizes = torch.tensor([3, 3, 2])
    with cudnn.flags(enabled=False):
        return torch.nn.functional.ctc_loss(
            x.log_softmax(2), torch.ones(3, 2).long(), sizes, sizes - 1
        )


def other_library(x):
    return x + 1, torch.backends.mkldnn.enabled, torch.backends.mkldnn.deterministic


@pytest.mark.parametrize("program", [block, questions, left_changed, raises, loss, other_library])
def test_changed_settings_do_not_break(program):
    graphs = []

    def backend(graph_module, inputs):
        graphs.append(graph_module)
        return graph_module.forward

    compiled = compile_frames(program, backend, CaptureOptions(fullgraph=True))
    x = torch.randn(3, 3, 3)
    before = settings()
    for _ in range(3):
        states = []
        for function in (compiled, program):
            result = function(x)
            states.append((repr(result), settings()))
            restore(before)
        assert states[0] == states[1]
    assert len(graphs) == 1


def test_a_call_that_begins_otherwise_is_compiled_for_itself():
    compiled = compile_frames(questions, lambda g, inputs: g.forward)
    for flags in ({}, {"benchmark": True}, {"allow_tf32": False}):
        with cudnn.flags(enabled=True, **flags):
            assert repr(compiled(torch.ones(2))) == repr(questions(torch.ones(2)))


def test_an_operator_on_cuda_breaks_the_graph_under_changed_settings():
    changed = LibrarySettings()
    with FakeTensorMode():
        on_cpu, on_cuda = torch.ones(2), torch.ones(2, device="cuda")
    changed.before_operator(torch.add, (on_cuda,))
    changed.set(torch._C._set_cudnn_enabled, (), False)
    try:
        changed.before_operator(torch.add, (on_cpu,))
        with pytest.raises(Unsupported, match="cuDNN"):
            changed.before_operator(torch.add, (on_cpu, {"other": on_cuda}))
        with changed.unread():
            changed.before_operator(torch.add, (on_cuda,))
        assert changed.calls() == [(torch._C._set_cudnn_enabled, (False,))]
    finally:
        changed.restore()
    assert cudnn.enabled and not changed.calls()


def restore(values):
    for ((setter, place), getter), value in zip(SETTINGS.items(), values, strict=True):
        if getter(*place) != value:
            setter(*place, value)

"""``threading.local``: each thread's own values, read, written and deleted in captured code."""

import threading

import pytest
import torch
from differential import check, run_graph
from weft_bytecode_capture import CaptureOptions, compile_frames

LOCAL = threading.local()
X = torch.arange(3.0)


def read(x):
    return x * LOCAL.scale, hasattr(LOCAL, "none"), getattr(LOCAL, "none", 3)


def counted(x):
    LOCAL.count = getattr(LOCAL, "count", 0) + 1
    return x + LOCAL.count


def kept(x):
    LOCAL.last = x + 1
    return LOCAL.last * 2


def deleted(x):
    LOCAL.more = 1
    del LOCAL.more
    del LOCAL.scale
    try:
        return x + LOCAL.scale
    except AttributeError as error:
        return x, str(error), error.name


def missing(x):
    return x + LOCAL.nothing


class Recorder(threading.local):
    limit = 3

    def __init__(self):
        self.marked = False


RECORDER = Recorder()


def marked(x):
    if RECORDER.marked:
        raise RuntimeError("marked already")
    RECORDER.marked = True
    try:
        return x + 1, RECORDER.marked
    finally:
        RECORDER.marked = False


def of_its_class(x):
    return x + RECORDER.limit, RECORDER.nothing


def reset():
    vars(LOCAL).clear()
    LOCAL.scale = 2.0


@pytest.mark.parametrize("function", [read, counted, kept, deleted])
def test_in_one_graph(function):
    check(function, [(X,)] * 3, reset=reset, state=lambda: dict(vars(LOCAL)))


def test_a_derived_class():
    check(marked, [(X,)] * 2, reset=reset, state=lambda: dict(vars(RECORDER)))
    check(of_its_class, [(X,)], fullgraph=False)


def test_each_thread_has_its_own_of_a_derived_class():
    compiled = compile_frames(marked, run_graph, CaptureOptions(fullgraph=True))
    compiled(X)
    RECORDER.marked = True
    found = []
    thread = threading.Thread(target=lambda: found.append(compiled(X)))
    thread.start()
    thread.join()
    assert torch.equal(found[0][0], X + 1)
    with pytest.raises(RuntimeError, match="marked already"):
        compiled(X)
    RECORDER.marked = False


def test_a_missing_attribute():
    check(missing, [(X,)], fullgraph=False, reset=reset)


def test_over_calls():
    reset()
    compiled = compile_frames(counted, run_graph, CaptureOptions(fullgraph=True))
    for n in range(1, 6):
        assert torch.equal(compiled(X), X + n)


def test_each_thread_has_its_own():
    compiled = compile_frames(read, run_graph, CaptureOptions(fullgraph=True))
    found = {}

    def run(scale):
        LOCAL.scale = scale
        if scale == 3.0:
            LOCAL.none = 7
        found[scale] = compiled(X), compiled(X)

    for scale in (2.0, 3.0, 4.0, 5.0):
        thread = threading.Thread(target=run, args=(scale,))
        thread.start()
        thread.join()
    for scale, results in found.items():
        for scaled, has, value in results:
            assert torch.equal(scaled, X * scale)
            assert (has, value) == ((True, 7) if scale == 3.0 else (False, 3))

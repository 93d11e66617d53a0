"""``torch.istft`` and the method, whose check of the windows' overlap is data's."""

import pytest
import torch
from differential import run_graph, same
from weft_bytecode_capture import CaptureOptions, capture, compile_frames

WINDOW = torch.hann_window(32)


def spectrum(batch, length, **options):
    return torch.stft(
        torch.randn(*batch, length), 32, 8, window=WINDOW, return_complex=True, **options
    )


CALLS = {
    "length": lambda s, n: torch.istft(s, 32, 8, window=WINDOW, length=n),
    "no length": lambda s, n: torch.istft(s, 32, 8, window=WINDOW),
    "no window": lambda s, n: torch.istft(input=s, n_fft=32),
    "narrow window": lambda s, n: torch.istft(s, 32, 8, 20, torch.hamming_window(20)),
    "normalized": lambda s, n: torch.istft(s, 32, 8, normalized=True, onesided=True),
    "method": lambda s, n: s.istft(32, 8, window=WINDOW, length=n),
    "not centered": lambda s, n: torch.istft(s, 32, 8, center=False),
    "complex": lambda s, n: torch.istft(
        torch.cat([s, s[..., 1:-1, :].flip(-2)], -2), 32, 8, window=WINDOW, return_complex=True
    ),
    "both sides": lambda s, n: torch.istft(
        torch.cat([s, s[..., 1:-1, :].flip(-2)], -2), 32, 8, onesided=False
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_one_graph_gives_the_signal(name):
    compiled = compile_frames(CALLS[name], run_graph, CaptureOptions(fullgraph=True))
    for batch, length in (((2,), 100), ((3,), 120), ((), 120), ((2,), 96)):
        s = spectrum(batch, length)
        assert same(compiled(s, length), CALLS[name](s, length))


REFUSED = {
    "windows that do not overlap": lambda s: torch.istft(s, 32, 32, window=WINDOW, center=False),
    "another number of bins": lambda s: torch.istft(s, 30, 8),
    "a real input": lambda s: torch.istft(s.real, 32, 8),
    "a real tensor's method": lambda s: s.real.istft(32, 8),
    "no hop": lambda s: torch.istft(s, 32, 0),
    "a window of another length": lambda s: torch.istft(s, 32, 8, window=WINDOW[1:]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_are_those_of_eager(name):
    compiled = compile_frames(REFUSED[name], run_graph, CaptureOptions())
    s = spectrum((2,), 96)
    with pytest.raises(
        (RuntimeError, TypeError)
    ) as wanted:  # a real input: torch 2.14's is a TypeError
        REFUSED[name](s)
    with pytest.raises(wanted.type) as found:
        compiled(s)
    assert str(found.value) == str(wanted.value)


def test_a_signal_shorter_than_asked_for_is_padded_by_eager():
    function = CALLS["length"]
    s = spectrum((2,), 96)
    assert same(compile_frames(function, run_graph, CaptureOptions())(s, 500), function(s, 500))
    assert capture(function)(s, 500).breaks


def test_gradients():
    s = spectrum((2,), 96)
    compiled = compile_frames(CALLS["length"], run_graph, CaptureOptions(fullgraph=True))
    mine, plain = s.clone().requires_grad_(), s.clone().requires_grad_()
    compiled(mine, 96).square().sum().backward()
    CALLS["length"](plain, 96).square().sum().backward()
    assert same(mine.grad, plain.grad)

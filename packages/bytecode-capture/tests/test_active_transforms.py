"""Code that asks torch whether a function transform runs, as libraries do before they write in place."""

import torch
from weft_bytecode_capture import capture


def asked(x):
    if torch._C._are_functorch_transforms_active():
        return x * 2
    return x + 1


def asked_inside(x):
    return torch.vmap(asked)(x) + asked(x)


def test_the_answer_is_that_of_the_place():
    x = torch.arange(4.0)
    for function in (asked, asked_inside):
        captured = capture(function)(x)
        assert torch.equal(captured.result, function(x))
        assert not captured.breaks


def test_outside_of_a_compiled_call():
    x = torch.arange(4.0)
    compiled = capture(asked)
    assert torch.equal(compiled(x).result, x + 1)
    assert torch.equal(torch.vmap(lambda y: compiled(y).result)(x), x * 2)

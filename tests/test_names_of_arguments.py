"""Arguments may be called what generated code calls its own values, or what C++ keeps for itself."""

from __future__ import annotations

import torch
import weft


def test_words_of_generated_code() -> None:
    def function(new, default, frame, arguments, f32, buf0, call, template):  # type: ignore[no-untyped-def]
        total = (new + default).softmax(-1) * frame - arguments
        return total.sum(0) + f32, (buf0 @ call.t()).relu() + template, total

    given = [torch.randn(9, 9) for _ in range(8)]
    torch.testing.assert_close(
        weft.compile(function, fullgraph=True)(*given), function(*given), rtol=1e-4, atol=1e-4
    )


def test_words_of_programs_that_train() -> None:
    def function(operator, double, owned):  # type: ignore[no-untyped-def]
        return (operator * double).exp().mean() + owned.sum()

    gradients = []
    for called in (function, weft.compile(function, fullgraph=True)):
        torch.manual_seed(0)
        given = [torch.randn(3, 4, requires_grad=True) for _ in range(3)]
        called(*given).backward()
        gradients.append([tensor.grad for tensor in given])
    torch.testing.assert_close(gradients[1], gradients[0])

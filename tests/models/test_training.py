"""Real models, trained: gradients are eager's within its own rounding, and so is a step of training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import weft

from benchmarks.models import MODELS, ModelCase
from benchmarks.models.comparison import in_double, relative_error, tensors


def loss_of(output: Any) -> torch.Tensor:
    """A weighted sum of everything that has gradients; the weights are those of every call."""
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros((), dtype=torch.float64)
    for value in tensors(output):
        if value.requires_grad:
            weights = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            total = total + (value.double() * weights).sum() / value.numel()
    return total


def gradients(model: torch.nn.Module) -> torch.Tensor:
    found = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(found)


@pytest.mark.parametrize("case", MODELS.values(), ids=list(MODELS))
def test_gradients(case: ModelCase) -> None:
    """Relative error against float64 at most twice eager's, or what no float32 program is held to."""
    torch.manual_seed(0)
    plain = case.build(False)
    exact, model = copy.deepcopy(plain).double(), copy.deepcopy(plain)
    inputs = case.inputs(False, 0)
    log = weft.CompileLog()
    with weft.observe(log):
        output = weft.compile(model, fullgraph=True)(**inputs)
    assert [report.eager_reason for report in log.graphs] == [None]
    loss_of(exact(**in_double(inputs))).backward()
    loss_of(plain(**inputs)).backward()
    loss_of(output).backward()
    for name, parameter in plain.named_parameters():
        assert (parameter.grad is None) == (model.get_parameter(name).grad is None), name
    reference = gradients(exact)
    allowed = max(2 * relative_error(gradients(plain), reference), 1e-6)
    assert relative_error(gradients(model), reference) <= allowed


def language_step(model: torch.nn.Module, forward: Any, tokens: torch.Tensor) -> torch.Tensor:
    """One step of training a language model, with gradients clipped; what it added to the parameters."""
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    logits = forward(input_ids=tokens).logits[:, :-1]
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]) - before


def test_a_training_step_of_gpt2() -> None:
    torch.manual_seed(0)
    case = MODELS["gpt2"]
    plain = case.build(False)
    exact, model = copy.deepcopy(plain).double(), copy.deepcopy(plain)
    tokens = case.inputs(False, 0)["input_ids"]
    reference = language_step(exact, exact, tokens)
    compiled = weft.compile(language_step)(model, model, tokens)
    allowed = max(2 * relative_error(language_step(plain, plain, tokens), reference), 1e-6)
    assert relative_error(compiled, reference) <= allowed

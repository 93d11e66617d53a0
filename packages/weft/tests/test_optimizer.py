"""``weft.compile(optimizer.step)`` beside the step as it is."""

import copy

import pytest
import torch
import weft


def test_steps_of_sgd_with_momentum_are_eagers() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    other = copy.deepcopy(model)
    inputs = [torch.randn(5, 3) for _ in range(4)]
    optimizers = [
        torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        for m in (model, other)
    ]
    steps = [optimizers[0].step, weft.compile(optimizers[1].step)]
    for x in inputs:
        for m, optimizer, step in zip((model, other), optimizers, steps, strict=True):
            optimizer.zero_grad()
            m(x).square().sum().backward()
            step()
            assert torch.is_grad_enabled()
    for left, right in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(right, left)
    states = [optimizer.state_dict()["state"] for optimizer in optimizers]
    assert states[0].keys() == states[1].keys()
    for key in states[0]:
        torch.testing.assert_close(
            states[1][key]["momentum_buffer"], states[0][key]["momentum_buffer"]
        )


def test_a_schedule_of_learning_rates_compiles_twice() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
    other = copy.deepcopy(model)
    models = (model, other)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in optimizers]
    steps = [optimizers[0].step, weft.compile(optimizers[1].step)]
    log = weft.CompileLog()
    with weft.observe(log):
        for _ in range(6):
            x = torch.randn(5, 3)
            for m, step, schedule in zip(models, steps, schedules, strict=True):
                m.zero_grad()
                m(x).square().sum().backward()
                step()
                schedule.step()
    for left, right in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(right, left)
    kernels = [report for report in log.graphs if report.kernel_count]
    assert len(kernels) == 2  # without momentum buffers, and with them
    assert all(report.eager_reason is None for report in log.graphs)


def test_an_error_of_a_stage_leaves_gradients_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **keywords: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr("weft_loop_ir.lower", broken)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(5, 3)).sum().backward()
    before = [(p.detach().clone(), p.grad.clone()) for p in model.parameters()]
    # What fails is the frame behind the optimizer's own switch, of which `finally` has not begun.
    with torch.enable_grad(), pytest.raises(weft.StageError, match="broken"):
        weft.compile(optimizer.step, options={"strict": True})()
    assert torch.is_grad_enabled()
    for parameter, (value, gradient) in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
        assert torch.equal(parameter.grad, gradient)


def test_steps_without_lists_of_parameters_are_eagers() -> None:
    for make in (torch.optim.RAdam, torch.optim.ASGD):
        models = [torch.nn.Linear(3, 4)]
        models.append(copy.deepcopy(models[0]))
        optimizers = [make(m.parameters(), lr=0.1, foreach=False) for m in models]
        steps = [optimizers[0].step, weft.compile(optimizers[1].step)]
        for _ in range(4):
            for model, optimizer, step in zip(models, optimizers, steps, strict=True):
                optimizer.zero_grad()
                model(torch.ones(2, 3)).square().sum().backward()
                step()
            left, right = (list(model.parameters()) for model in models)
            torch.testing.assert_close(right, left)

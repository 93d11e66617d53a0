"""Steps that change what is around: finalizers, contexts, random numbers, tensors, modules, exceptions."""

from __future__ import annotations

import contextlib
import copy
import math
import random
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from .state_of_objects import Plain
from .state_programs import counting_by_send, next_two, program, started

Tensor = torch.Tensor

# Weak references, finalizers, callbacks, contexts.


class Finalized:
    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def __del__(self) -> None:
        self.log.append("gone")


@program(list)
def finalized_in_each_step(s: Any, y: Tensor, i: int) -> Tensor:
    Finalized(s)
    return y * 0.5 + len(s)


@program(list)
def finalized_by_rebinding(s: Any, y: Tensor, i: int) -> Tensor:
    held = Finalized(s)
    held = Finalized(s)
    y = y * 0.5 + len(s)
    del held
    return y + len(s)


@program(list)
def finalizer_registered(s: Any, y: Tensor, i: int) -> Tensor:
    held = Plain()
    weakref.finalize(held, s.append, 1)
    del held
    return y * 0.5 + len(s)


@program(list)
def weak_reference_with_a_callback(s: Any, y: Tensor, i: int) -> Tensor:
    held = Plain()
    reference = weakref.ref(held, lambda r: s.append(1))
    y = y * 0.5 + (reference() is held)
    del held
    return y + len(s)


@program(lambda: (Plain(), weakref.WeakKeyDictionary()), lambda s: list(s[1].values()))
def weak_key_dictionary(s: Any, y: Tensor, i: int) -> Tensor:
    s[1][s[0]] = s[1].get(s[0], 0) + 1
    return y * 0.5 + s[1][s[0]]


@program(lambda: (contextlib.ExitStack(), []), lambda s: (s[0].close(), s[1])[1])
def exit_stack_callbacks(s: Any, y: Tensor, i: int) -> Tensor:
    s[0].callback(s[1].append, len(s[1]))
    return y * 0.5


@program(list)
def exit_stack_in_each_step(s: Any, y: Tensor, i: int) -> Tensor:
    with contextlib.ExitStack() as stack:
        stack.callback(s.append, i)
    return y * 0.5 + len(s)


class Context:
    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def __enter__(self) -> int:
        self.log.append("in")
        return len(self.log)

    def __exit__(self, *error: object) -> bool:
        self.log.append("out" if error[0] is None else "error")
        return True


@program(list)
def context_with_a_log(s: Any, y: Tensor, i: int) -> Tensor:
    with Context(s) as n:
        y = y * 0.5 + n
    return y + 1


@program(list)
def context_that_swallows(s: Any, y: Tensor, i: int) -> Tensor:
    with Context(s) as n:
        y = y * 0.5 + n
        raise ValueError(n)
    return y


@contextlib.contextmanager
def generated_context(log: list[Any]) -> Iterator[int]:
    log.append(1)
    try:
        yield len(log)
    finally:
        log.append(2)


@program(list)
def generated_context_with_a_log(s: Any, y: Tensor, i: int) -> Tensor:
    with generated_context(s) as n:
        return y * 0.5 + n


@program(lambda: started(counting_by_send()), next_two)
def generator_in_a_context(s: Any, y: Tensor, i: int) -> Tensor:
    with contextlib.nullcontext(s) as g:
        return y * 0.5 + g.send(2)


@program(lambda: contextlib.ExitStack(), lambda s: torch.is_grad_enabled())
def context_entered_and_kept(s: Any, y: Tensor, i: int) -> Tensor:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        y = y * 0.5
    return y + 1


@program(lambda: torch.is_grad_enabled(), lambda s: torch.set_grad_enabled(s) and None)
def mode_switched_and_left(s: Any, y: Tensor, i: int) -> Tensor:
    y = y * (0.5 if torch.is_grad_enabled() else 0.25)
    torch.set_grad_enabled(not torch.is_grad_enabled())
    return y


# Random generators.


@program(lambda: random.seed(3), lambda s: random.random())
def python_random(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + random.random()


@program(lambda: random.Random(3), lambda s: s.random())
def own_python_random(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + s.random()


@program(lambda: __import__("numpy").random.seed(3), lambda s: __import__("numpy").random.rand())
def numpy_random(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + __import__("numpy").random.rand()


@program(lambda: torch.manual_seed(3) and None, lambda s: torch.rand(2))
def torch_random(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + torch.rand(4)


@program(lambda: torch.manual_seed(3) and None, lambda s: torch.rand(2))
def torch_seeded_in_each_step(s: Any, y: Tensor, i: int) -> Tensor:
    torch.manual_seed(5)
    return y * 0.5 + torch.rand(4)


@program(lambda: torch.Generator().manual_seed(3), lambda s: torch.rand(2, generator=s))
def torch_generator(s: Any, y: Tensor, i: int) -> Tensor:
    return y * 0.5 + torch.rand(4, generator=s)


# Tensors' own state.


def tensors(s: Any) -> Any:
    return [(t.detach().clone(), tuple(t.shape), t.requires_grad) for t in s]


@program(lambda: [torch.zeros(4)], tensors)
def requires_grad_set(s: Any, y: Tensor, i: int) -> Tensor:
    y = y * (0.5 if s[0].requires_grad else 0.25)
    s[0].requires_grad_()
    return y


@program(lambda: [torch.zeros(4)], tensors)
def requires_grad_turned(s: Any, y: Tensor, i: int) -> Tensor:
    y = y * (0.5 if s[0].requires_grad else 0.25)
    s[0].requires_grad = not s[0].requires_grad
    return y


@program(lambda: [torch.zeros(4)], tensors)
def data_assigned(s: Any, y: Tensor, i: int) -> Tensor:
    s[0].data = s[0] * 0.5 + y.detach()
    return y * 0.5 + s[0]


@program(lambda: [torch.zeros(4, requires_grad=True)], lambda s: s[0].grad)
def grad_assigned(s: Any, y: Tensor, i: int) -> Tensor:
    s[0].grad = y.detach() * 2 + (0 if s[0].grad is None else s[0].grad)
    return y * 0.5 + s[0].grad


@program(lambda: [torch.zeros(4, requires_grad=True)], lambda s: s[0].grad)
def grad_dropped(s: Any, y: Tensor, i: int) -> Tensor:
    y = y * (0.5 if s[0].grad is None else 0.25)
    s[0].grad = None if i % 2 else torch.ones(4)
    return y


@program(lambda: [torch.zeros(4)], tensors)
def unsqueezed_in_place(s: Any, y: Tensor, i: int) -> Tensor:
    y = y * 0.5 + s[0].dim()
    s[0].unsqueeze_(0)
    return y


@program(lambda: [torch.zeros(4, 2)], tensors)
def transposed_in_place(s: Any, y: Tensor, i: int) -> Tensor:
    y = y * 0.5 + s[0].shape[0]
    s[0].t_()
    return y


@program(lambda: [torch.zeros(4)], lambda s: getattr(s[0], "n", None))
def attribute_on_a_tensor(s: Any, y: Tensor, i: int) -> Tensor:
    s[0].n = getattr(s[0], "n", 0) + 1
    return y * 0.5 + s[0].n


@program(lambda: [torch.zeros(4)], tensors)
def written_in_place(s: Any, y: Tensor, i: int) -> Tensor:
    s[0].mul_(0.5).add_(y)
    s[0][1] = i
    return y * 0.5 + s[0]


@program(lambda: [torch.zeros(4)], lambda s: s[0])
def augmented_element(s: Any, y: Tensor, i: int) -> Tensor:
    s[0] += y
    return y * 0.5 + s[0]


# Modules and optimizers.


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(4))
        self.w = torch.nn.Parameter(torch.ones(4))
        self.calls = 0

    def forward(self, y: Tensor) -> Tensor:
        self.calls += 1
        self.h = self.h * 0.5 + y
        return y * 0.5 + self.h * self.w


def layer_state(s: Any) -> Any:
    return sorted(s.state_dict()), [t.detach().clone() for t in s.state_dict().values()], s.calls


@program(Layer, layer_state)
def module_with_buffers(s: Any, y: Tensor, i: int) -> Tensor:
    return s(y)


@program(Layer, layer_state)
def module_gets_a_buffer(s: Any, y: Tensor, i: int) -> Tensor:
    s.register_buffer(f"b{s.calls % 3}", y * 1)
    s.calls += 1
    return y * 0.5


@program(Layer, lambda s: (s.training, s.calls))
def module_turns_training(s: Any, y: Tensor, i: int) -> Tensor:
    y = y * (0.5 if s.training else 0.25)
    s.train(not s.training)
    return y


@program(torch.nn.Module, lambda s: [k for k, _ in s.named_buffers()])
def module_hook_registered(s: Any, y: Tensor, i: int) -> Tensor:
    s.register_forward_hook(lambda m, a, r: None)
    return y * 0.5 + len(s._forward_hooks)


def trained() -> Any:
    w = torch.ones(4, requires_grad=True)
    return w, torch.optim.SGD([w], lr=0.1, momentum=0.9)


@program(trained, lambda s: s[0].detach().clone())
def optimizer_stepped(s: Any, y: Tensor, i: int) -> Tensor:
    s[0].grad = y.detach() * 0.1
    s[1].step()
    return y * 0.5 + s[0].detach()


# Exceptions, printing, warnings, names.


@program(lambda: [ValueError(0)], lambda s: (s[0].args, str(s[0])))
def arguments_of_an_exception(s: Any, y: Tensor, i: int) -> Tensor:
    s[0].args = (s[0].args[0] + 1,)
    return y * 0.5 + s[0].args[0]


@program(list, lambda s: [(e.args, type(e.__context__)) for e in s])
def caught_and_kept(s: Any, y: Tensor, i: int) -> Tensor:
    try:
        raise KeyError(len(s))
    except KeyError as error:
        s.append(error)
    return y * 0.5 + len(s)


@program(lambda: [ValueError("first")], lambda s: (type(s[0].__context__), s[0].args))
def context_of_an_exception(s: Any, y: Tensor, i: int) -> Tensor:
    try:
        try:
            raise KeyError(1)
        except KeyError:
            raise s[0]  # noqa: B904
    except ValueError as error:
        return y * 0.5 + (error.__context__ is not None)


@program(lambda: [ValueError("first")], lambda s: getattr(s[0], "__notes__", None))
def notes_of_an_exception(s: Any, y: Tensor, i: int) -> Tensor:
    s[0].add_note("seen")
    return y * 0.5 + len(s[0].__notes__)


@program(lambda: None)
def warning_in_each_step(s: Any, y: Tensor, i: int) -> Tensor:
    warnings.warn("seen", UserWarning, stacklevel=1)
    return y * 0.5


@program(lambda: None)
def printing(s: Any, y: Tensor, i: int) -> Tensor:
    print("step", end=" ")  # noqa: T201
    return y * 0.5


@program(lambda: [math.inf])
def deleted_name(s: Any, y: Tensor, i: int) -> Tensor:
    held = s[0]
    s[0] = min(held, 3.0) - 1
    del held
    return y * 0.5 + s[0]


@program(lambda: [[1, [2]]])
def copied(s: Any, y: Tensor, i: int) -> Tensor:
    made = copy.deepcopy(s[0])
    made[1].append(1)
    s[0] = made
    return y * 0.5 + len(made[1])

"""``copy.copy`` and ``copy.deepcopy`` of tensors."""

import collections
import copy
import dataclasses

import pytest
import torch
from differential import check, run_graph
from weft_bytecode_capture import CaptureOptions, compile_frames


@dataclasses.dataclass
class Pair:
    tensor: torch.Tensor
    number: int = 2


def copies(x):
    y = copy.deepcopy(x)
    return y.add_(1), x, y is x


def one_in_containers(x):
    made = copy.deepcopy({"a": [x, x], "b": 1})
    return made, made["a"][0] is made["a"][1]


def as_dictionary(x):
    made = dataclasses.asdict(Pair(x))
    made["tensor"] *= 2
    return made, x


@pytest.mark.parametrize("function", [copies, one_in_containers, as_dictionary])
def test_tensors_with_a_storage_of_their_own(function):
    check(
        function, [(torch.ones(3),), (torch.ones(4),), (torch.ones(3, 2).t(),), (torch.ones(()),)]
    )


def test_tensors_that_are_left_to_python():
    """Parts of a storage, a conjugate, an expanded tensor, a leaf, two of one storage: copied as they are."""

    def copied(x):
        made = copy.deepcopy(x)
        return made, [tensor.untyped_storage().nbytes() for tensor in made]

    base = torch.arange(6.0)
    complex_numbers = torch.ones(2, dtype=torch.complex64)
    compiled = compile_frames(copied, run_graph, CaptureOptions())
    for tensors in (
        [base],
        [base[:3]],
        [base[3:]],
        [base[:1].expand(3)],
        [complex_numbers.conj()],
        [torch.ones(2, requires_grad=True)],
        [base, base.view(2, 3)],
        [base, base],
    ):
        (found, sizes), (expected, wanted) = compiled(tensors), copied(tensors)
        assert sizes == wanted
        for left, right in zip(found, expected, strict=True):
            assert torch.equal(left, right)
            assert left.stride() == right.stride()
            assert left.is_conj() == right.is_conj()
            assert left.requires_grad == right.requires_grad
        pointers = [{tensor.data_ptr() for tensor in made} for made in (found, expected)]
        assert len(pointers[0]) == len(pointers[1])


def test_attributes_and_gradients_are_copied():
    tensor = torch.ones(2)
    compiled = compile_frames(copies, run_graph, CaptureOptions())
    compiled(tensor)
    tensor.name_of_mine = 3
    assert compiled(tensor)[0].name_of_mine == 3
    del tensor.name_of_mine
    tensor.grad = torch.ones(2)
    assert torch.equal(compiled(tensor)[0].grad, torch.ones(2))


def of_made_ones(x):
    y = x + 1
    made = copy.deepcopy([y, {"a": x * 2, "y": y}])
    y.add_(5)
    return made, y, made[0] is made[1]["y"], dataclasses.asdict(Pair(x * 3))


def of_a_part(x):
    y = (x + 1)[1:]
    made = copy.deepcopy([y])
    return made, made[0].untyped_storage().nbytes()


def of_views(x):
    y = x + 1
    made = copy.deepcopy([y, y[:1]])
    made[0].add_(1)
    return made


def shallow(x):
    y = copy.copy(x)
    y.add_(1)
    z = copy.copy(x * 2)
    return y, x, y is x, z.mul_(3), copy.copy([x])[0] is x


def shallow_of_a_view(x):
    y = copy.copy(x.t()[1:])
    y += 1
    return y, x, y.storage_offset(), y.data_ptr() == x.data_ptr()


def shallow_with_gradients(x, w):
    y = copy.copy(x)
    z = w * x
    y.add_(1)
    z.sum().backward()
    return w.grad


def of_a_state(x):
    """An ordered dictionary with attributes, as modules' ``state_dict`` is."""
    module = torch.nn.BatchNorm1d(3)
    state = module.state_dict()
    made, second = copy.deepcopy(state), copy.copy(state)
    state["running_mean"] += x.sum()
    kept = made._metadata[""], second._metadata is state._metadata
    return made, kept, made._metadata is state._metadata, second


def of_given_ordered_ones(x):
    x.notes = {"seen": [1]}
    made = copy.deepcopy(x)
    return made, made.notes, made.notes is x.notes, getattr(made, "more", None)


def test_attributes_of_ordered_dictionaries():
    given = [collections.OrderedDict(a=torch.ones(n)) for n in (2, 2, 3, 3)]
    given[1].more, given[3].more = 5, [6]
    check(of_given_ordered_ones, [(one,) for one in given])


@pytest.mark.parametrize("function", [of_made_ones, shallow, of_a_state])
def test_copies_in_one_graph(function):
    check(function, [(torch.ones(3),), (torch.ones(4),), (torch.ones(3, 2).t(),)])


@pytest.mark.parametrize("function", [of_a_part, of_views, shallow_of_a_view])
def test_copies_of_parts(function):
    calls = [(torch.ones(3, 3),), (torch.ones(4, 4),), (torch.ones(3, 2).t(),)]
    check(function, calls, fullgraph=False)


def test_a_write_to_a_copy_is_none_to_what_autograd_has_saved():
    calls = [(torch.ones(3), torch.ones(3, requires_grad=True))] * 2
    check(shallow_with_gradients, calls, fullgraph=False)

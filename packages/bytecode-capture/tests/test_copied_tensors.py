"""``copy.deepcopy`` of tensors from outside."""

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

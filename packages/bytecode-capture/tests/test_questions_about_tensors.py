"""Questions about tensors whose answer differs between calls: compiled code answers each call as eager does.

A case is a program and makers of its arguments, one for each state; each state is met twice, in two orders.
"""

import functools

import pytest
import torch
from weft_bytecode_capture import CaptureOptions, compile_frames

BIG = torch.arange(100.0)


def table():
    return torch.arange(24.0).reshape(4, 6)


def leaf():
    return table().requires_grad_()


def inner():
    return leaf() * 1


def with_gradient():
    x = leaf()
    (x * 2).sum().backward()
    return x


def tagged(tag):
    x = table()
    if tag is not None:
        x.tag = tag
    return x


def written(times):
    x = table()
    for _ in range(times):
        x.add_(0)
    return x


def in_inference():
    with torch.inference_mode():
        return table()


def observed(register):
    x = inner()
    register(x)
    return x


class Sub(torch.Tensor):
    pass


def images(memory_format=torch.contiguous_format):
    return torch.ones(2, 3, 4, 5).contiguous(memory_format=memory_format)


last = functools.partial(images, torch.channels_last)
views = [lambda: BIG[0:6], lambda: BIG[7:13], lambda: BIG[9:16], lambda: BIG[0:7]]
parts = [table, lambda: table()[1:3, :4], lambda: table().t(), lambda: table().t().contiguous().t()]
kinds = [table, lambda: table().double(), lambda: table().int(), lambda: table() + 1j]
shapes = [lambda n=n: torch.ones(n) for n in ((4, 6), (5, 6), (5, 7), (24,), (1, 6), (0, 6), ())]
classes = [table, lambda: torch.nn.Parameter(table()), lambda: table().as_subclass(Sub)]
grads = [table, leaf, inner, with_gradient]
layouts = [
    table,
    *(lambda m=m: getattr(table(), m)() for m in ("to_sparse", "to_sparse_csr", "to_mkldnn")),
]
owners = [lambda: torch.ones(4), lambda: torch.ones(10)[:4], lambda: torch.ones(10)[3:7]]
rows = [lambda n=n, k=k: BIG[: 3 * n].view(n, 3) * k for n in (4, 6) for k in (1, -1)]
outputs = [lambda i=i: torch.ones(4, requires_grad=True).unbind()[i] for i in (0, 2)]


def last_row(x):
    for _, row in enumerate(x):  # noqa: B007
        pass
    return row


def row_before(x):
    row, i = x[0], 0
    while x[i].sum() < 10 and i < 3:
        row = x[i]
        i += 1
    return row


def offsets_before(x):
    row, i, offset = x[0], 0, 0
    while x[i].sum() < 10 and i < 3:
        offset = offset + row.storage_offset()
        row = x[i]
        i += 1
    return x + offset


def chosen_row(x):
    if x.sum() > 0:
        row = x[1]
    else:
        row = x[2]
    return row


QUESTIONS = {
    # of where a tensor lies
    "storage_offset": (lambda x: x.storage_offset(), views),
    "storage_offset, branched on": (lambda x: x * 2 if x.storage_offset() else x * 3, views),
    "storage_offset of torch.Tensor": (lambda x: torch.Tensor.storage_offset(x), views),
    "storage_offset by getattr": (lambda x: getattr(x, "storage_" + "offset")(), views),
    "storage_offset of a view": (lambda x: x[2:].storage_offset(), views),
    "storage_offset of a view of a view": (lambda x: x[1:].view(-1)[1:].storage_offset(), views),
    "storage_offset of the same tensor": (lambda x: x.contiguous().storage_offset(), views),
    "storage_offset of a result": (lambda x: (x + 1)[1:].storage_offset(), views),
    "as_strided": (lambda x: x.as_strided((3,), (1,)), views),
    "as_strided at a place": (lambda x: x.as_strided((3,), (1,), 2), views),
    "as_strided at a place, by name": (
        lambda x: torch.as_strided(x, (3,), (1,), storage_offset=2), views),
    "as_strided at a place, overload": (
        lambda x: torch.ops.aten.as_strided.default(x, [3], [1], 2), views),
    "as_strided_copy at a place": (lambda x: torch.as_strided_copy(x, (3,), (1,), 2), views),
    "as_strided of a view": (lambda x: x[1:].as_strided((3,), (1,), 2), views),
    "as_strided_scatter": (
        lambda x: torch.as_strided_scatter(x, torch.zeros(2), (2,), (2,), 1), views),
    # of where a row lies that a loop or a branch gives
    "storage_offset of the last row": (lambda x: last_row(x).storage_offset(), rows),
    "storage_offset of a part of the last row": (lambda x: last_row(x)[1:].storage_offset(), rows),
    "storage_offset in a loop": (lambda x: [row.storage_offset() for row in x], rows),
    "storage_offset where data ends a loop": (lambda x: row_before(x).storage_offset(), rows),
    "storage_offset in a loop that data ends": (lambda x: offsets_before(x), rows),
    "storage_offset of a chosen row": (lambda x: chosen_row(x).storage_offset(), rows),
    "storage_offset in arithmetic": (lambda x: x * chosen_row(x).storage_offset(), rows),
    "as_strided at a row's offset": (
        lambda x: x.as_strided((2,), (1,), chosen_row(x).storage_offset()), rows),
    "strides of a chosen row": (
        lambda x: (chosen_row(x).stride(), last_row(x).is_contiguous()), rows),
    "untyped_storage": (lambda x: x.untyped_storage().nbytes(), owners),
    "storage's length": (lambda x: len(x.untyped_storage()), owners),
    "data_ptr": (lambda x: x.data_ptr() == BIG.data_ptr(), views),
    "is_shared": (lambda x: x.is_shared(), [table, lambda: table().share_memory_()]),
    "is_pinned": (lambda x: x.is_pinned(), parts),
    "_base": (lambda x: x._base is None, owners),
    "_is_view": (lambda x: x._is_view(), owners),
    # of its memory's order
    "stride": (lambda x: x.stride(), parts),
    "stride(1)": (lambda x: x.stride(1), parts),
    "strides of one row": (
        lambda x: x.stride(),
        [lambda: torch.ones(1, 6), lambda: torch.ones(3, 6)[:1], lambda: torch.ones(6, 1).t()]),
    "is_contiguous": (lambda x: x.is_contiguous(), parts),
    "is_contiguous of a view": (lambda x: x.T.is_contiguous(), parts),
    "is_contiguous, channels last": (
        lambda x: x.is_contiguous(memory_format=torch.channels_last), [images, last]),
    "dim_order": (lambda x: x.dim_order(), [images, last]),
    # of its elements' type
    "dtype": (lambda x: (x.dtype, x.dtype.itemsize, x.dtype.is_complex), kinds),
    "type as text": (lambda x: x.type(), [*kinds, lambda: torch.nn.Parameter(table())]),
    "element_size": (lambda x: (x.element_size(), x.itemsize, x.nbytes), [*kinds, *parts]),
    "is_floating_point": (
        lambda x: (x.is_floating_point(), torch.is_floating_point(x), x.is_signed()), kinds),
    "is_complex": (lambda x: (x.is_complex(), torch.is_complex(x)), kinds),
    "result_type": (lambda x: torch.result_type(x, 1.5), kinds),
    "can_cast": (lambda x: torch.can_cast(x.dtype, torch.float32), kinds),
    "finfo": (lambda x: torch.finfo(x.dtype).eps if x.is_floating_point() else 0, kinds),
    "is_conj": (lambda x: (x.is_conj(), torch.is_conj(x)),
                [lambda: table() + 1j, lambda: (table() + 1j).conj()]),
    "is_neg": (lambda x: x.is_neg(), [table, lambda: (table() + 1j).conj().imag]),
    # of its shape
    "sizes": (lambda x: (x.shape, x.size(), x.dim(), x.ndim, x.ndimension()), shapes),
    "numbers of elements": (lambda x: (x.numel(), x.nelement(), torch.numel(x), x.nbytes), shapes),
    "size(-1)": (lambda x: x.size(-1) if x.dim() else None, shapes),
    "len": (lambda x: len(x) if x.ndim else None, shapes),
    "is_same_size": (lambda x: x.is_same_size(BIG[:24].view(4, 6)), shapes),
    "text of metadata": (lambda x: f"{x.shape} {x.dtype} {x.device}", [*shapes, *kinds]),
    # of what kind it is
    "layout": (lambda x: x.layout, layouts),
    "is_sparse": (lambda x: (x.is_sparse, x.is_sparse_csr, x.is_mkldnn, x.is_quantized), layouts),
    "is_nested": (lambda x: (x.is_nested, x.is_meta), [table, lambda: table().to("meta")]),
    "device": (lambda x: (x.device, x.device.type, x.get_device() if x.is_cpu else 0),
               [table, lambda: table().to("meta")]),
    "type": (lambda x: type(x), classes),
    "isinstance": (
        lambda x: (isinstance(x, torch.nn.Parameter), isinstance(x, Sub)), classes),
    "is_inference": (lambda x: x.is_inference(), [table, in_inference]),
    # of autograd
    "requires_grad": (lambda x: x.requires_grad, grads),
    "is_leaf": (lambda x: x.is_leaf, grads),
    "is_leaf, branched on": (lambda x: x.detach() * 2 if x.is_leaf else x.detach() * 3, grads),
    "is_leaf of a view": (lambda x: x[1:].is_leaf, grads),
    "is_leaf after detach": (lambda x: x.detach().is_leaf, grads),
    "grad_fn, branched on": (lambda x: x.detach() * 2 if x.grad_fn else x.detach() * 3, grads),
    "grad": (lambda x: x.grad is None if x.is_leaf else 0, grads),
    "grad, used": (lambda x: x.detach() if x.grad_fn or x.grad is None else x.grad * 2, grads),
    "grad_fn": (lambda x: x.grad_fn is None, grads),
    "grad_fn's class": (lambda x: type(x.grad_fn).__name__, [*grads, lambda: leaf() + 1]),
    "output_nr": (lambda x: x.output_nr, outputs),
    "retains_grad": (lambda x: x.retains_grad, [inner, lambda: observed(lambda x: x.retain_grad())]),
    "hooks": (lambda x: x._backward_hooks is None,
              [inner, lambda: observed(lambda x: x.register_hook(lambda g: g))]),
    "_version": (lambda x: x._version, [lambda: written(0), lambda: written(2)]),
    "write to what may be a leaf": (lambda x: x.mul_(2).detach().clone(), grads),
    "is_leaf after a write": (lambda x: (x.mul_(leaf().sum()).is_leaf, x.detach()), grads),
    "write of a gradient to what has none": (lambda x: x.add_(leaf()).detach().clone(), grads),
    "write to a view of what may be a leaf": (lambda x: x[1:].mul_(2).detach().clone(), grads),
    # of attributes that the user gave it
    "attribute": (lambda x: getattr(x, "tag", 0), [lambda t=t: tagged(t) for t in (None, 3, 4)]),
    "hasattr": (lambda x: hasattr(x, "tag"), [lambda t=t: tagged(t) for t in (None, 3)]),
    "vars": (lambda x: dict(vars(x)), [lambda t=t: tagged(t) for t in (None, 3, 4)]),
    # of its values
    "is_nonzero": (lambda x: torch.is_nonzero(x), [lambda: torch.ones(1), lambda: torch.zeros(1)]),
    "equal": (lambda x: torch.equal(x, BIG[:6]), views),
    "repr": (lambda x: repr(x), [table, lambda: table() + 1]),
}  # fmt: skip

PAIRS = {
    "is": lambda x, y: x is y,
    "id": lambda x, y: id(x) == id(y),
    "hash": lambda x, y: hash(x) == hash(y),
    "in": lambda x, y: any(x is other for other in [y]),
    "data_ptr": lambda x, y: x.data_ptr() == y.data_ptr(),
    "is_set_to": lambda x, y: x.is_set_to(y),
    "storage": lambda x, y: x.untyped_storage()._cdata == y.untyped_storage()._cdata,
    "sizes": lambda x, y: x.is_same_size(y),
    "result_type": lambda x, y: torch.result_type(x, y),
}


def _pairs():
    x = table()
    yield x, x
    yield x, table()
    yield x, x.view(4, 6)
    yield x, x[:2]
    yield x, table().double()


# Every run asks each question with sizes as they come, and a few with symbols for them.
CASES = [
    pytest.param(name, dynamic, marks=pytest.mark.slow if dynamic is not None and place % 4 else ())
    for place, name in enumerate(QUESTIONS)
    for dynamic in (None, True)
]


@pytest.mark.parametrize(("name", "dynamic"), CASES)
def test_questions(name, dynamic):
    program, makers = QUESTIONS[name]
    states = [((make(),), (make(),)) for make in (*makers, *reversed(makers))]
    _check(lambda x: (program(x), x.detach().to_dense().sum()), states, dynamic)


@pytest.mark.parametrize("name", PAIRS)
def test_questions_about_two(name):
    program = PAIRS[name]
    pairs = [*_pairs(), *reversed(list(_pairs()))]
    _check(lambda x, y: (program(x, y), x + 1), [(pair, pair) for pair in pairs], None)


def _check(program, states, dynamic):
    graphs = []

    def backend(graph_module, inputs):
        graphs.append(graph_module)
        return graph_module.forward

    compiled = compile_frames(program, backend, CaptureOptions(dynamic=dynamic, recompile_limit=40))
    for position, (given, again) in enumerate(states):
        found, wanted = _outcome(compiled, given), _outcome(program, again)
        assert _same(found, wanted), (position, found, wanted)
    assert graphs


def _outcome(function, arguments):
    try:
        return function(*arguments)
    except Exception as error:
        return type(error), str(error)


def _same(found, wanted):
    if type(found) is not type(wanted):
        return False
    if isinstance(found, tuple):
        return len(found) == len(wanted) and all(map(_same, found, wanted))
    if isinstance(found, torch.Tensor) and found.device.type != "meta":
        return found.stride() == wanted.stride() and torch.equal(found, wanted)
    return isinstance(found, torch.Tensor) or found == wanted

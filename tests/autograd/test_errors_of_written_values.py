"""The error for what backward needs and was written to since reads as eager's."""

import re

import pytest
import torch
import weft

pytestmark = pytest.mark.native

PROGRAMS = {
    "argument": (lambda x, w: x @ w, lambda x, w, y: x.mul_(2)),
    "view of an argument": (lambda x, w: (x[None] @ w)[0], lambda x, w, y: x.add_(1)),
    "result": (lambda x, w: w.exp() + x.sum(), None),
    "result that is kept": (lambda x, w: w.exp(), lambda x, w, y: y.add_(1)),
    "two writes": (lambda x, w: (x * w).sum(), lambda x, w, y: x.add_(1).mul_(2)),
    "double": (lambda x, w: x.double() * w.double(), lambda x, w, y: x.add_(1)),
}


@pytest.mark.parametrize("anomaly", [False, True])
@pytest.mark.parametrize("case", PROGRAMS)
def test_it_is_eagers(case, anomaly):
    program, write = PROGRAMS[case]
    told = []
    for run in (program, weft.compile(program)):
        x = torch.arange(9.0).reshape(3, 3)
        w = torch.ones(3, 3, requires_grad=True)
        with torch.autograd.set_detect_anomaly(anomaly, check_nan=False):
            y = run(x, w)
            if write is not None:
                write(x, w, y)
            try:
                y.sum().backward()
                told.append(w.grad.tolist())
            except RuntimeError as error:
                told.append(re.sub(r", which is output \d+ of \w+,", "", str(error)))
    assert told[1] == told[0]

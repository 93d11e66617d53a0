"""Everything private of torch that capture reaches.  Checked on torch 2.13."""

from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode

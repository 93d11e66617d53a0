"""Random chains of operators through ``weft.compile``, beside eager, with static and dynamic sizes.

``WEFT_CHAINS=N`` runs N of them, ``WEFT_CHAINS_SEED`` says where their seeds begin.
"""

from __future__ import annotations

import os
import warnings

import pytest
import torch
import weft

from tests.operators.random_chains import random_chain

pytestmark = pytest.mark.native

COUNT = int(os.environ.get("WEFT_CHAINS", "6"))
FIRST = int(os.environ.get("WEFT_CHAINS_SEED", "0"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_random_chain(seed: int) -> None:
    chain = random_chain(seed, 3 + seed % 10)
    expected = chain.function(*chain.inputs)
    compiled = weft.compile(chain.function, dynamic=seed % 2 == 1, options={"verify": True})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = compiled(*chain.inputs)
    for got, want in zip(results, expected, strict=True):
        narrow = want.dtype in (torch.float32, torch.bfloat16)
        tolerance = {"rtol": 1e-3, "atol": 1e-3} if narrow else {"rtol": 1e-6, "atol": 1e-7}
        try:
            torch.testing.assert_close(got, want, equal_nan=True, **tolerance)
            pairs = zip(got.stride(), want.stride(), want.shape, strict=True)
            assert want.numel() < 2 or all(n == 1 or a == b for a, b, n in pairs), "strides"
        except AssertionError as error:
            raise AssertionError(f"seed {seed}\n{chain.source}\n{error}") from None

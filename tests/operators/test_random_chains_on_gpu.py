"""Random chains of operators as Triton kernels, through Triton's interpreter, beside eager.

``WEFT_CHAINS=N`` runs N of them, ``WEFT_CHAINS_SEED`` says where their seeds begin.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_codegen_triton import TritonCodegen, TritonOptions

from tests.operators.random_chains import random_chain
from tests.triton_interpreter import require_interpreter

require_interpreter()

COUNT = int(os.environ.get("WEFT_CHAINS", "6"))
FIRST = int(os.environ.get("WEFT_CHAINS_SEED", "5000"))

FORMS = (
    {},
    {"persistent_elements": 4},  # reductions loop
    {"persistent_elements": 4, "loop_elements": 16},  # over several blocks
    {"fuse_matmuls": True},
)


@pytest.mark.filterwarnings("ignore:.* encountered in .*:RuntimeWarning")  # NumPy's
@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_random_chain(seed: int, tmp_path: Path) -> None:
    chain = random_chain(seed, 3 + seed % 10)
    expected = chain.function(*chain.inputs)
    form = FORMS[seed % len(FORMS)]
    codegen = TritonCodegen(TritonOptions(cache_directory=tmp_path, interpret=True, **form))
    mode = "symbolic" if seed % 3 == 2 else "fake"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = make_fx(chain.function, tracing_mode=mode)(*chain.inputs)
        codegen.rewrite(graph)
        try:
            schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph), codegen.schedule_options)
            program = codegen.compile(schedule, {})
        except weft_loop_ir.Unsupported as refusal:
            pytest.skip(str(refusal))
        results = program(*chain.inputs)
    for got, want in zip(results, expected, strict=True):
        narrow = want.dtype in (torch.float32, torch.bfloat16)
        tolerance = {"rtol": 1e-3, "atol": 1e-3} if narrow else {"rtol": 1e-6, "atol": 1e-7}
        try:
            torch.testing.assert_close(got, want, equal_nan=True, **tolerance)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}\n{chain.source}\n{error}") from None

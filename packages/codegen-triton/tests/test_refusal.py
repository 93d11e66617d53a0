"""Until kernels are generated, the code generator says so."""

import pytest
from weft_codegen_triton import TritonCodegen, Unsupported
from weft_loop_ir import MemoryPlan, Schedule


def test_says_what_is_not_generated() -> None:
    import sympy

    empty = Schedule("graph", (), (), {}, (), (), MemoryPlan(sympy.S.Zero, {}))
    with pytest.raises(Unsupported, match="no GPU code in this release"):
        TritonCodegen().compile(empty, {})


def test_names_its_device() -> None:
    assert TritonCodegen.device_type == "cuda"

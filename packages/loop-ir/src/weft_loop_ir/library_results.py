"""What an operator of a library has given, as the schedule expects it."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def settle(
    result: torch.Tensor | None,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    copy: bool,
) -> torch.Tensor:
    """``result`` as the schedule expects it: of these strides, and with ``copy`` in memory of its own.

    Meta functions may promise other strides than the operator gives (those of Fourier transforms on the CPU
    do in torch 2.11), and the schedule reads by the promise.  An operator may give None where its meta
    function gives a tensor (the random state of attention without dropout): those who take it don't read it.

    :raises RuntimeError: the result has another size.
    """
    if result is None:
        return torch.empty_strided(size, stride, dtype=dtype, device=device)
    if result.shape != size:
        raise RuntimeError(f"an operator gave {tuple(result.shape)} where {size} was expected")
    copy = copy or result.dtype != dtype  # some meta functions and kernels disagree
    own = result.stride()
    same = own == stride or all(n <= 1 or s == t for n, s, t in zip(size, stride, own, strict=True))
    if same and not copy and not result.is_conj() and not result.is_neg():
        return result
    return torch.empty_strided(size, stride, dtype=dtype, device=result.device).copy_(result)


def lies_in(result: torch.Tensor | None, operands: Sequence[torch.Tensor]) -> bool:
    """Whether an operator gave memory of one of its operands, which a plan takes for others later.

    An operator's schema need not tell it: one that is written in Python may return what it was given.
    """
    if result is None or result.numel() == 0:
        return False
    begin = result.untyped_storage().data_ptr()
    return any(operand.untyped_storage().data_ptr() == begin for operand in operands)

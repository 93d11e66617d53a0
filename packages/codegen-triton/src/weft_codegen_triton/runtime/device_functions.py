"""Functions that generated kernels call: what Triton's language lacks, or defines unlike torch.

They are compiled by Triton: operands are blocks or scalars of Triton's language, of any shape that
broadcasts.  Triton reads annotations as its own, so there are none.
"""

import triton
import triton.language as tl

from weft_codegen_triton.runtime import device_math


@triton.jit
def floordiv(a, b):
    """Integer division rounded toward minus infinity."""
    quotient = a // b
    rest = a - quotient * b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)


@triton.jit
def floormod(a, b):
    """The remainder with the sign of the divisor."""
    rest = a - (a // b) * b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def divide(a, b):
    """The quotient of floats rounded to nearest: Triton's ``/`` on float32 may be off by an ulp or two."""
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    return a / b


@triton.jit
def float_floordiv(a, b):
    """torch.floor_divide on floats, from the remainder, as C++'s kernels have it."""
    rest = device_math.fmod(a, b)
    quotient = divide(a - rest, b)
    quotient = tl.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
    floor = tl.floor(quotient)
    floor = tl.where(quotient - floor > 0.5, floor + 1, floor)
    ratio = divide(a, b)
    return tl.where(b == 0, ratio, tl.where(quotient != 0, floor, ratio * 0.0))


@triton.jit
def float_remainder(a, b):
    """The remainder of floats with the sign of the divisor."""
    rest = device_math.fmod(a, b)
    return tl.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


@triton.jit
def integer_power(base, exponent):
    """Wraps as torch's does; ``exponent`` is not negative and below 2**32."""
    result = base * 0 + 1
    square = base
    for bit in tl.static_range(32):
        result = tl.where(((exponent >> bit) & 1) != 0, result * square, result)
        square = square * square
    return result


@triton.jit
def sign(a):
    """1, 0 or -1; 0 for NaN, as torch.sign has it."""
    return tl.where(a > 0, 1, tl.where(a < 0, -1, 0)).to(a.dtype)


@triton.jit
def maximum(a, b):
    """NaN if one is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def less_squares(total, difference, count):
    """A sum of ``count`` squares without the square of ``difference`` in each of them; infinity stays.

    What rounding leaves of equal numbers is nothing.
    """
    rest = total - difference * (difference * count)
    rest = tl.where(rest < total * 2.0**-18, 0, rest)
    return tl.where(total == float("inf"), total, rest)


@triton.jit
def minimum(a, b):
    """NaN if one is."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def multiply(a, b):
    """The step of a matmul."""
    return a * b


@triton.jit
def log_add_exp(a, b):
    """``log(exp(a) + exp(b))``."""
    largest = maximum(a, b)
    smallest = minimum(a, b)
    total = largest + device_math.log1p(tl.exp(smallest - largest))
    return tl.where(tl.abs(largest) == float("inf"), largest, total)


@triton.jit
def argmax_step(value, index, other, other_index):
    """The larger value, NaN first of all, and of equals the first."""
    better = (value > other) | ((value != value) & (other == other))
    equal = (value == other) | ((value != value) & (other != other))
    take = better | (equal & (index < other_index))
    return tl.where(take, value, other), tl.where(take, index, other_index)


@triton.jit
def argmin_step(value, index, other, other_index):
    """The smaller value, NaN first of all, and of equals the first."""
    better = (value < other) | ((value != value) & (other == other))
    equal = (value == other) | ((value != value) & (other != other))
    take = better | (equal & (index < other_index))
    return tl.where(take, value, other), tl.where(take, index, other_index)


@triton.jit
def relative_exponential(value, largest):
    """``exp(value - largest)``, where ``largest`` is so far a row's maximum, which may be minus infinity."""
    base = tl.where(largest == float("-inf"), 0, largest)
    if value.dtype == tl.float32:
        return tl.exp2((value - base) * 1.4426950408889634)
    return tl.exp(value - base)


@triton.jit
def argmax_better(value, best):
    """Whether ``value`` comes before what was found at an earlier position."""
    return ((value <= best) == 0) & (best == best)


@triton.jit
def argmin_better(value, best):
    """Whether ``value`` comes before what was found at an earlier position."""
    return ((value >= best) == 0) & (best == best)


@triton.jit
def divide_by_row(a, b):
    """The quotient of float32 by what a row has once: the reciprocal is taken outside of the row's loop.

    Scaled so that a reciprocal is neither too small nor too large for a float32.
    """
    size = tl.abs(b)
    scale = tl.where(size > 2.0**64, 2.0**-64, tl.where(size < 2.0**-64, 2.0**64, 1.0))
    return (a * scale) * (1.0 / (b * scale))


@triton.jit
def divide_by_row_exactly(a, b):
    """The quotient of float32 by what a row has once, rounded to nearest where it is no less than 2**-100.

    The product with the reciprocal may be off by an ulp or two; what it leaves of ``a`` is a float32, and
    tells by how much (Markstein).  The divisor is scaled to be from 1/2 to 1, so that a reciprocal is neither
    too small nor too large, and what is too large is so as a quotient.
    """
    if device_math.INTERPRETED:
        return tl.div_rn(a, b)
    exponent = (b.to(tl.int32, bitcast=True) >> 23) & 0xFF
    exponent = tl.minimum(tl.maximum(exponent, 1), 252)
    scale = ((253 - exponent) << 23).to(tl.float32, bitcast=True)
    divisor = b * scale
    reciprocal = tl.div_rn(1.0, divisor)
    dividend = a * scale
    quotient = dividend * reciprocal
    rest = tl.fma(quotient, -divisor, dividend)
    is_off = (tl.abs(rest) < float("inf")) & (rest != 0)  # a quotient that is zero keeps its sign
    return tl.where(is_off, tl.fma(rest, reciprocal, quotient), quotient)


@triton.jit
def divide_by_large_row(a, b):
    """As :func:`divide_by_row`, where ``b`` is from 1 to 2**126, or NaN."""
    return a * (1.0 / b)


@triton.jit
def divide_by_one_or_more(a, b):
    """The quotient of float32 where ``b`` is from 1 to infinity, or NaN."""
    return a * device_math.reciprocal(b)


@triton.jit
def sigmoid(a):
    """``1 / (1 + exp(-a))``."""
    if a.dtype == tl.float32:
        return device_math.reciprocal(1.0 + tl.exp2(a * -1.4426950408889634))
    return 1.0 / (1.0 + tl.exp(-a))


@triton.jit
def digamma(a):
    """The derivative of ``lgamma``: NaN at negative integers, infinite at zero.

    Below 0 by reflection, then by recurrence where Stirling's series is precise in float64.
    """
    fraction = a - device_math.rint(a)
    reflected = -3.141592653589793 / device_math.tan(fraction * 3.141592653589793)
    result = tl.where(a < 0, reflected, 0.0)
    result = tl.where((a < 0) & (fraction == 0), float("nan"), result)
    x = tl.where(a < 0, 1.0 - a, a)
    for _ in tl.static_range(10):
        result = tl.where(x < 10, result - 1.0 / x, result)
        x = tl.where(x < 10, x + 1.0, x)
    inverse = 1.0 / x
    z = inverse * inverse
    series = z * (-691.0 / 32760.0 + z * (1.0 / 12.0))
    series = z * (1.0 / 240.0 - z * (1.0 / 132.0 + series))
    series = z * (1.0 / 12.0 - z * (1.0 / 120.0 - z * (1.0 / 252.0 - series)))
    result = tl.log(x) - 0.5 * inverse - series + result
    return tl.where(a == 0, -1.0 / a, result)


@triton.jit
def exp_for_half(a):
    """The exponential of float32; what is smaller than a normal number is 0."""
    return tl.exp2(a * 1.4426950408889634)


@triton.jit
def exp_of_negative_for_half(a):
    """:func:`exp_for_half` of ``-a``, in one instruction less."""
    return tl.exp2(a * -1.4426950408889634)


@triton.jit
def erf_for_half(a):
    """The error function of float32 within 4e-7, exactly 1 or -1 from 3.92 on.

    ``a`` times a rational function of its square, fitted for the least relative error up to 3.9.
    """
    square = tl.minimum(a * a, 15.21, propagate_nan=tl.PropagateNan.ALL)
    above = 0.00023000479
    above = above * square + 0.003540266
    above = above * square + 0.051369596
    above = above * square + 0.18866153
    above = above * square + 1.1283791
    below = -1.1346781e-07
    below = below * square + 2.3241391e-05
    below = below * square + 0.0010452204
    below = below * square + 0.014342336
    below = below * square + 0.11237275
    below = below * square + 0.5005294
    below = below * square + 1.0
    result = a * above * device_math.reciprocal(below)
    result = tl.minimum(result, 1.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.maximum(result, -1.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def gelu_for_half(a):
    """``a / 2 * (1 + erf(a / sqrt(2)))`` of float32: :func:`erf_for_half`, with factors moved into it."""
    square = tl.minimum(a * a, 30.42)
    above = 5.0824358e-06
    above = above * square + 0.00015645913
    above = above * square + 0.0045404737
    above = above * square + 0.033350962
    above = above * square + 0.39894226
    below = -1.7729345e-09
    below = below * square + 7.2629347e-07
    below = below * square + 6.5326275e-05
    below = below * square + 0.001792792
    below = below * square + 0.028093187
    below = below * square + 0.2502647
    below = below * square + 1.0
    return a * device_math.share(a * above, device_math.reciprocal(below))


@triton.jit
def tanh_of_exponent(a):
    """tanh of float32 within 2e-7, not relative to the result: what is computed of it goes into ``exp``."""
    return 1.0 - 2.0 * device_math.reciprocal(tl.exp(2.0 * a) + 1.0)


@triton.jit
def float_of_int8(a):
    """float32 of a signed number of 8 bits: the last bits of 2**23, as conversions have a slow unit."""
    bits = a.to(tl.uint8, bitcast=True).to(tl.int32) ^ 0x4B000080
    return bits.to(tl.float32, bitcast=True) - 8388736.0


@triton.jit
def float_of_uint8(a):
    """As :func:`float_of_int8`, of one without a sign."""
    return (a.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0


@triton.jit
def float_of_bits(
    word, shift: tl.constexpr, width: tl.constexpr, added: tl.constexpr, place: tl.constexpr
):
    """float32 of ``width`` bits of 32 above the lowest ``shift + place``, and a whole number ``added``.

    It is exact, and 2**``place`` times as large.
    """
    mask: tl.constexpr = ((1 << width) - 1) << place
    bits = device_math.bits_in(word >> shift, mask, 0x4B000000)
    return bits.to(tl.float32, bitcast=True) - (8388608.0 - added * (1 << place))


@triton.jit
def float_of_signed_bits(
    word, shift: tl.constexpr, width: tl.constexpr, added: tl.constexpr, place: tl.constexpr
):
    """As :func:`float_of_bits`, where the first of the bits is a sign."""
    mask: tl.constexpr = ((1 << width) - 1) << place
    half: tl.constexpr = 1 << (width - 1 + place)
    bits = device_math.bits_in(word >> shift, mask, 0x4B000000 | half)
    return bits.to(tl.float32, bitcast=True) - (8388608.0 + half - added * (1 << place))


@triton.jit
def float_of_difference(
    word,
    shift: tl.constexpr,
    width: tl.constexpr,
    other,
    other_shift: tl.constexpr,
    other_width: tl.constexpr,
):
    """float32 of a number of ``width`` bits without another one: both are the last bits of 2**23."""
    bits = device_math.bits_in(word >> shift, (1 << width) - 1, 0x4B000000)
    others = device_math.bits_in(other >> other_shift, (1 << other_width) - 1, 0x4B000000)
    return bits.to(tl.float32, bitcast=True) - others.to(tl.float32, bitcast=True)


@triton.jit
def to_float8_e4m3fn(a, too_large: tl.constexpr):
    """The bits of float32 as torch rounds it; ``too_large`` are those of what is beyond 464."""
    sign = (a.to(tl.int32, bitcast=True) >> 24) & 0x80
    magnitude = a.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    beyond: tl.constexpr = 0x43E80000  # 464, halfway to what would be the next number
    bits = tl.where(magnitude > beyond, too_large, device_math.float8_bits(a, 3, 7))
    return (tl.where(magnitude > 0x7F800000, 0x7F, bits) | sign).to(tl.uint8)


@triton.jit
def to_float8_e5m2(a, too_large: tl.constexpr):
    """The bits of float32 as torch rounds it; ``too_large`` are those of what is not below 61440."""
    sign = (a.to(tl.int32, bitcast=True) >> 24) & 0x80
    magnitude = a.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    bits = tl.where(magnitude >= 0x47700000, too_large, device_math.float8_bits(a, 2, 15))
    return (tl.where(magnitude > 0x7F800000, 0x7F, bits) | sign).to(tl.uint8)


@triton.jit
def to_float8_e4m3fn_within(a):
    """As :func:`to_float8_e4m3fn`, of what is not beyond 464, or NaN."""
    return device_math.float8_within(a, 3, 7)


@triton.jit
def to_float8_e5m2_within(a):
    """As :func:`to_float8_e5m2`, of what is below 61440, or NaN."""
    return device_math.float8_within(a, 2, 15)


@triton.jit
def from_float8_e4m3fn(a):
    """float32 of the bits of a number of 8 bits; NaN keeps its sign."""
    magnitude = a.to(tl.int32) & 0x7F
    sign = (a.to(tl.int32) & 0x80) << 24
    denormal = (magnitude.to(tl.float32) * 0.001953125).to(tl.int32, bitcast=True)
    bits = tl.where(magnitude < 8, denormal, (magnitude << 20) + (120 << 23))
    bits = tl.where(magnitude == 0x7F, 0x7FC00000, bits)
    return (bits | sign).to(tl.float32, bitcast=True)


@triton.jit
def from_float8_e5m2(a):
    """float32 of the bits of a number of 8 bits: those of the upper half of a float16."""
    return (a.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def philox(seed, position):
    """The first two words of 32 bits that Philox gives for a seed and a position of 64 bits."""
    low = (position & 0xFFFFFFFF).to(tl.uint32)
    high = ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    first, second, _, _ = tl.philox(seed, low, high, low * 0, low * 0)
    return first, second


@triton.jit
def uniform(seed, position):
    """Multiples of 2**-24 from 0 to below 1."""
    first, _ = philox(seed, position)
    return (first >> 8).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def normal(seed, position):
    """Standard normal numbers, by Box and Muller's method; none is beyond 6.7."""
    first, second = philox(seed, position)
    share = first.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    angle = second.to(tl.float32) * (6.283185307179586 * 2.3283064365386963e-10)
    return tl.sqrt_rn(-2.0 * tl.log(share)) * tl.cos(angle)


@triton.jit
def publish(pointer, bits):
    """Write the lower half of ``bits`` in one word that says that it is there, for :func:`wait_for`."""
    tl.atomic_xchg(pointer, (bits & 0xFFFFFFFF) | 0x100000000, sem="relaxed")


@triton.jit
def wait_for(pointer, wanted):
    """What is published at ``pointer``, once it is; anything where it isn't ``wanted``."""
    word = tl.load(pointer, wanted, other=0x100000000, volatile=True)
    while (word >> 32) == 0:
        word = tl.load(pointer, wanted, other=0x100000000, volatile=True)
    return word & 0xFFFFFFFF


@triton.jit
def wait_for_all(pointers, wanted):
    """As :func:`wait_for` at a row of ``pointers``, of which each thread has one."""
    words = tl.load(pointers, wanted, other=0x100000000, volatile=True)
    while tl.min(tl.min(words >> 32, 1), 0) == 0:
        words = tl.load(pointers, wanted, other=0x100000000, volatile=True)
    return words & 0xFFFFFFFF

"""What a GPU can do, and the times and thresholds that follow from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

HOST_LAUNCH = 5.0
"""Microseconds that a launch, or a small call, takes the host: about the same with every GPU."""
HOST_WAIT = 40.0
"""Microseconds that a GPU idles while the host reads a predicate and launches what follows, about: none of a
program's later kernels is in line before it."""
GRAPH_LAUNCH = 2.0
"""Microseconds that a kernel takes besides its work, in a graph of them."""
LOAD_WAIT = 0.5
"""Microseconds that programs wait for what they load before all else, and what is made of it."""
MOVED_PART = 0.7
"""The part of a memory's bandwidth that kernels reach which read whole rows."""
CACHED_PART = 1.05
"""The same of blocks of operands that several programs read, most of them from the second-level cache."""
OPERATIONS_A_TERM = 64
"""Operations on floats in the time in which a term is loaded, compared and added."""


@dataclass(frozen=True)
class Gpu:
    """A GPU by the numbers that tiles and choices depend on.

    ``capability`` is 90 for 9.0.  ``shared_bytes`` is what one block may have, ``all_shared_bytes`` what a
    multiprocessor has, ``registers`` how many of 32 bits.  ``bandwidth`` counts bytes of memory a
    microsecond, ``half_rate`` and ``float_rate`` operations a microsecond: of matrices in 16 bits, and of
    float32 outside tensor cores.
    """

    capability: int
    multiprocessors: int
    shared_bytes: int
    all_shared_bytes: int
    registers: int
    l2_bytes: int
    bandwidth: float
    half_rate: float
    float_rate: float

    @classmethod
    def of_attributes(cls, attribute: Callable[[int], int]) -> Gpu:
        """The GPU whose driver gives ``attribute(number)``, by the numbers of ``CUdevice_attribute``."""
        capability = 10 * attribute(75) + attribute(76)
        multiprocessors, cycles, memory_cycles = attribute(16), attribute(13), attribute(36)
        half, single = next(rates for least, rates in OPERATIONS_A_CYCLE if capability >= least)
        return cls(
            capability,
            multiprocessors,
            shared_bytes=attribute(97),
            all_shared_bytes=attribute(81),
            registers=attribute(82),
            l2_bytes=attribute(38),
            bandwidth=2 * memory_cycles / 1e3 * attribute(37) / 8,
            half_rate=multiprocessors * cycles / 1e3 * half,
            float_rate=multiprocessors * cycles / 1e3 * single,
        )

    # -- microseconds --------------------------------------------------------------------------------------

    def moving(self, nbytes: float, part: float = MOVED_PART) -> float:
        """To read or write so many bytes, at that part of the bandwidth."""
        return nbytes / (part * self.bandwidth)

    def copying(self, nbytes: float) -> float:
        """Of a kernel that copies so many bytes, in a graph of them."""
        return GRAPH_LAUNCH + 2 * self.moving(nbytes)

    def multiplying(self, operations: float, part: float) -> float:
        """Of so many operations on matrices in 16 bits, at that part of their rate."""
        return operations / (part * self.half_rate)

    def adding(self, terms: float) -> float:
        """To choose and add so many terms."""
        return terms * OPERATIONS_A_TERM / self.float_rate

    # -- thresholds ----------------------------------------------------------------------------------------

    @property
    def tile_bytes(self) -> int:
        """What blocks of operands in flight may take of a block's shared memory.

        An eighth stays for what a compiler puts there besides: parts of sums, results on their way from one
        layout to another.  Kernels that were compiled for 227 KiB needed up to 22 more than their operands.
        """
        return self.shared_bytes * 7 // 8

    @property
    def elements_a_launch(self) -> float:
        """Floats that one multiprocessor reads in the time that a launch takes the host."""
        return HOST_LAUNCH * MOVED_PART * self.bandwidth / self.multiprocessors / 4

    @property
    def cached_bytes(self) -> int:
        """Of a result most of which is in the second-level cache when it is read next."""
        return self.l2_bytes * 5 // 4

    @property
    def many_tiles(self) -> int:
        """Tiles that give work to nearly every multiprocessor: powers of two often lie just below."""
        return self.multiprocessors - self.multiprocessors // 32


OPERATIONS_A_CYCLE = (
    (100, (8192, 256)),
    (90, (4096, 256)),
    (86, (1024, 256)),
    (80, (2048, 128)),
    (0, (1024, 128)),
)
"""By the least compute capability: operations of a multiprocessor on matrices in 16 bits, and on floats."""

REFERENCE = Gpu(
    capability=90,
    multiprocessors=132,
    shared_bytes=227 << 10,
    all_shared_bytes=228 << 10,
    registers=1 << 16,
    l2_bytes=50 << 20,
    bandwidth=4.8e6,
    half_rate=989e6,
    float_rate=67e6,
)
"""What is printed for where there is no GPU: in the interpreter, and by ``TritonCodegen.print``."""

"""Recording a host program's work as a CUDA graph, and replaying it on new inputs.

Sound by copying where addresses may change: an input is copied into memory that the recording owns, unless
it is at the address at which it was recorded, and what the graph computes is copied out of it before anybody
sees it.  So a replay never overwrites what a caller holds, and memory between the ends may be shared by all
recordings on a stream, which replay one after another.

What a step of training saves for backward is too much to be copied.  It is donated: the caller gets the
recording's own memory, and it is not replayed before the caller has let go of that.  Others are, and they
write to all that was ever free in their pool, so a recording that donates has a pool of its own, which it
shares with the recording that reuses what is donated (see :mod:`.donations`).

The gradients that backward gives are shared: they are in memory of the recording's own, outside of any pool,
and where the next call finds that somebody holds them, it is recorded anew, and copies.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from weft_codegen_triton._torch import (
    copies_of,
    copy_all,
    current_device,
    end_allocating,
    free_library_workspaces,
)
from weft_codegen_triton.gpu import HOST_LAUNCH, Gpu
from weft_codegen_triton.runtime.donations import DonatedInputs, Donation, SharedResults, alias
from weft_codegen_triton.runtime.memory import (
    empty_memory,
    freeing,
    refill,
    spans_itself,
    writing_results_to,
)

Compute = Callable[[list[Any], Sequence[torch.Tensor], int], tuple[torch.Tensor, ...]]
"""Takes inputs, some of which it takes out of their list, constants and a stream."""

MODE = "thread_local"
"""Other threads may do what they like while this one records."""

COPY_RATE = 5 / 16
"""The part of a memory's bandwidth by which several tensors are copied, each byte read and written."""

COPIED_PART = 2
"""More is copied than options say if it is at most one part in so many of what the call is given."""


def pays_off(
    copied: int, steps: int, most: int, held: int, gpu: Gpu, *, inputs_donated: bool
) -> bool:
    """Whether ``steps`` are worth replaying where so many bytes are copied in or out.

    Replaying must save twice the time of the copies.  They hold memory between calls: at most ``most`` bytes
    or a part of ``held``, those of what the call is given besides parameters: all of it where the inputs are
    donated, for what is copied lies in the same memory then.

    Gradients in a recording's own memory are not asked about: a step ends with them anyway, and while
    forward runs they cost at most what it saves.
    """
    part = held if inputs_donated else held // COPIED_PART
    return copied <= max(most, part) and 2 * gpu.moving(copied, COPY_RATE) < steps * HOST_LAUNCH


MAX_UNASKED_BYTES = 1 << 28
"""What a recording may hold without a look at the memory that is free."""


def has_room(nbytes: int) -> bool:
    """Whether a recording may keep ``nbytes``: as much has to be free beside it.

    What the allocator holds for tensors to come is given back first.
    """
    if nbytes <= MAX_UNASKED_BYTES:
        return True
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    return 2 * nbytes <= free


@dataclass(frozen=True)
class _Pool:
    """The memory pool that all recordings for a stream share, but those that donate.

    ``keeper`` is a graph that keeps it alive without them.  They are made on ``side``, one stream for all:
    the library of matmuls holds 32 MiB for each stream that it has worked on.
    """

    handle: Any
    keeper: torch.cuda.CUDAGraph
    side: torch.cuda.Stream


_POOLS: dict[tuple[int, int], _Pool] = {}
"""The pools there are, by device and stream."""


def _pool(device: int, stream: int) -> _Pool:
    """The pool for recordings that are replayed on ``stream``."""
    if (device, stream) not in _POOLS:
        side, keeper = torch.cuda.Stream(device), torch.cuda.CUDAGraph()
        pool = _Pool(torch.cuda.graph_pool_handle(), keeper, side)
        with torch.cuda.stream(side):
            keeper.capture_begin(pool=pool.handle, capture_error_mode=MODE)
            torch.zeros(1, device=device)
            keeper.capture_end()
        _POOLS[device, stream] = pool
    return _POOLS[device, stream]


def _forget_failed(pool: Any, side: torch.cuda.Stream) -> None:
    """Let torch forget a recording on ``side`` that it could not end.

    Where the driver gives no graph, torch neither takes its allocator back from the pool nor tells its random
    numbers that nothing is recorded any longer: later recordings in the pool and every draw raised errors.
    A recording in another pool that ends well does the latter, and this pool is not used again (torch 2.11
    refuses it even where its allocator says that it has been taken back).
    """
    end_allocating(pool)
    for key in [key for key, known in _POOLS.items() if known.handle == pool]:
        del _POOLS[key]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        graph.capture_begin(pool=torch.cuda.graph_pool_handle(), capture_error_mode=MODE)
        torch.zeros(1, device=side.device)
        graph.capture_end()


@contextmanager
def beside_recordings(stream: int) -> Iterator[None]:
    """Work in this context runs on the stream on which what is replayed on ``stream`` was recorded.

    It writes to memory that was allocated before.  The library of matmuls so keeps memory once for
    recordings and for the steps that come after them.
    """
    pool = _POOLS.get((current_device(), stream)) if _POOLS else None
    if pool is None or torch.cuda.is_current_stream_capturing():
        yield
        return
    current = torch.cuda.current_stream()
    pool.side.wait_stream(current)
    with torch.cuda.stream(pool.side):
        yield
    current.wait_stream(pool.side)


class GraphRecording:
    """A recorded run on one stream, for constants that stay where they are.

    ``fixed`` are the positions of inputs that are read where they were at recording.  Of what ``compute``
    gives, a replay copies the first ``returned_count`` tensors and donates the next ``donated_count``.  It
    leaves ``donated_inputs`` undefined.
    """

    def __init__(
        self,
        compute: Compute,
        inputs: Sequence[Any],
        constants: Sequence[torch.Tensor],
        stream: int,
        fixed: frozenset[int],
        returned_count: int,
        donated_count: int,
        donated_inputs: DonatedInputs | None = None,
        result_memory: Sequence[torch.Tensor] = (),
    ) -> None:
        """Record ``compute``, which has run before, so that libraries are initialised.

        The results are written to ``result_memory``, if any is given, and shared with the caller, not copied.
        Nothing is executed.  Raises what ``compute`` raises, or RuntimeError for work that can't be recorded.
        """
        self._stream = stream
        self._constants = _addresses(constants)
        self._fixed = sorted(fixed)
        self._fixed_addresses = _addresses(inputs[k] for k in self._fixed)
        assert (
            donated_inputs is None or donated_inputs.positions <= fixed
        )  # it is free before others are copied
        own = list(inputs) if donated_inputs is None else donated_inputs.hand_over(inputs)
        self._donated_inputs = donated_inputs
        self._graph = torch.cuda.CUDAGraph()
        self._dense: list[tuple[int, torch.Tensor]] = []
        self._scattered: list[tuple[int, torch.Tensor]] = []
        pool = self._choose_pool(donates=donated_count > 0)
        with writing_results_to(result_memory):
            buffers = self._run(compute, own, constants, pool)
        kept = returned_count + donated_count
        self._returned, self._others_made = buffers[:returned_count], buffers[kept:]
        donated = buffers[returned_count:kept]
        self._donation = Donation(donated, self._graph, pool, stream) if donated else None
        # Libraries have made the others in the pool.
        given = [*result_memory, *[None] * (len(self._returned) - len(result_memory))]
        self._is_shared = [*map(operator.is_, self._returned, given)]
        self._shared = SharedResults([*itertools.compress(self._returned, self._is_shared)])

    def _choose_pool(self, *, donates: bool) -> Any:
        """A pool of its own for a recording that donates, that of its donated inputs, or the stream's."""
        if self._donated_inputs is not None and not donates:
            return self._donated_inputs.donation.pool
        if donates:
            return torch.cuda.graph_pool_handle()
        return _pool(current_device(), self._stream).handle

    def _run(
        self, compute: Compute, inputs: list[Any], constants: Sequence[torch.Tensor], pool: Any
    ) -> tuple[torch.Tensor, ...]:
        current, side = torch.cuda.current_stream(), _pool(current_device(), self._stream).side
        side.wait_stream(current)
        # What the library of matmuls keeps for ``current`` is of no use to replays, and what it keeps for
        # ``side`` has to be in this pool, where nobody else gets it once it is freed.
        free_library_workspaces()
        to_be_freed = 0 if self._donated_inputs is None else self._donated_inputs.nbytes
        with torch.cuda.stream(side), freeing(to_be_freed):
            try:
                self._graph.capture_begin(pool=pool, capture_error_mode=MODE)
                try:
                    self._allocate_copies(inputs)
                    buffers = compute(inputs, constants, side.cuda_stream)
                finally:
                    self._graph.capture_end()
            except RuntimeError:
                _forget_failed(pool, side)
                raise
        current.wait_stream(side)
        return buffers

    def _allocate_copies(self, inputs: list[Any]) -> None:
        """Replace the inputs that are not fixed by memory for copies, which is free when they are dropped."""
        fixed = {*self._fixed}
        for k, tensor in enumerate(inputs):
            if isinstance(tensor, torch.Tensor) and k not in fixed:
                inputs[k] = own = empty_memory(tensor)
                copies = self._dense if spans_itself(tensor) else self._scattered
                copies.append((k, alias(own, self._graph)))

    def is_donated(self) -> bool:
        """Whether somebody holds what a replay has donated."""
        return self._donation is not None and self._donation.is_out()

    def are_results_out(self) -> bool:
        """Whether somebody holds results that a replay would write over."""
        return self._shared.is_out()

    def may_reuse(self, inputs_donated: bool) -> bool:
        """Whether nobody reads later what a replay for a call, whose inputs may be donated, overwrites."""
        return self._donated_inputs is None or (
            inputs_donated and self._donated_inputs.is_sole_holder()
        )

    def holds_for(self, constants: Sequence[torch.Tensor]) -> bool:
        """Whether a replay reads these constants: their memory is where it was."""
        return _addresses(constants) == self._constants

    def moved(self, inputs: Sequence[Any]) -> frozenset[int]:
        """The positions of inputs that are no longer where a replay reads them."""
        addresses = _addresses(map(inputs.__getitem__, self._fixed))
        if addresses == self._fixed_addresses:
            return frozenset()
        is_moved = map(operator.ne, addresses, self._fixed_addresses)
        return frozenset(itertools.compress(self._fixed, is_moved))

    def _results(self) -> list[torch.Tensor]:
        """What a replay has made, shared or copied, in order."""
        shared = self._shared.share()
        if len(shared) == len(self._returned):
            return shared
        is_copied = map(operator.not_, self._is_shared)
        copies = copies_of([*itertools.compress(self._returned, is_copied)])
        made = {True: iter(shared), False: iter(copies)}
        return [next(made[is_shared]) for is_shared in self._is_shared]

    def replay(self, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """Run on ``inputs``, none of them moved, while nothing is donated; copies are the caller's own."""
        copy_all([t for _, t in self._dense], [inputs[k] for k, _ in self._dense])
        for k, own in self._scattered:
            refill(own, inputs[k])
        self._graph.replay()
        results = self._results()
        donated = () if self._donation is None else self._donation.donate()
        return (*results, *donated, *self._others_made)


def _addresses(tensors: Iterable[torch.Tensor]) -> list[int]:
    return [*map(torch.Tensor.data_ptr, tensors)]

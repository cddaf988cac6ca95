"""Move large memory on all cores without torch's own threads.

Used by reductions. In a rank's thread torch's OpenMP threads are expensive: every rank has a
team of its own, together they are more than there are cores, so each operation waits for
sleeping threads (30 us measured, for operations of 100 us). Here each core gets one part of the
tensors and works through it in blocks that stay in its cache, every operation single-threaded.
The threads end with the call; they belong to no rank and run nothing of the program's.

On many cores it is the other way round: the lanes would wait for Python's lock more than they
work (16 cores: 36 ms for 64 MiB on 4 ranks), so torch's own threads do it, in larger blocks.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from phalanx.core.strand import here

WORTHWHILE = 4 << 20
"""Bytes of one tensor from which on lanes pay."""
BLOCK_BYTES = 1 << 20

MOST_LANES = 4
SHARED_BLOCK_BYTES = 8 << 20
"""The size of blocks that all cores work on together."""

Work = Callable[[Sequence[Tensor]], None]


def in_lanes(tensors: Sequence[Tensor], work: Work) -> None:
    """Call `work` with blocks of the (flat, equally long) tensors, in several threads."""
    lanes = torch.get_num_threads()
    if lanes > MOST_LANES:
        _work_through(tensors, work, SHARED_BLOCK_BYTES)
        return
    if here.strand is not None:
        here.strand.baton.affinity.step_out()  # or all lanes would share its core
    size = -(-tensors[0].numel() // lanes)
    parts = list(zip(*(torch.split(tensor, size) for tensor in tensors), strict=True))
    torch.set_num_threads(1)  # for this thread and those it starts
    try:
        others = [_Lane(part, work) for part in parts[1:]]
        try:
            _work_through(parts[0], work, BLOCK_BYTES)
        finally:
            errors = [lane.finish() for lane in others]
    finally:
        torch.set_num_threads(lanes)
    for error in errors:
        if error is not None:
            raise error


class _Lane:
    """One part in a thread of its own; not one of `threading`, which would be the rank's."""

    def __init__(self, part: Sequence[Tensor], work: Work) -> None:
        self._error: BaseException | None = None
        self._done = _thread.allocate_lock()
        self._done.acquire()
        _thread.start_new_thread(self._run, (part, work))

    def _run(self, part: Sequence[Tensor], work: Work) -> None:
        try:
            _work_through(part, work, BLOCK_BYTES)
        except BaseException as error:
            self._error = error
        finally:
            self._done.release()

    def finish(self) -> BaseException | None:
        """What it failed with. Not a wait for another rank: the baton stays where it is."""
        self._done.acquire()
        return self._error


def _work_through(part: Sequence[Tensor], work: Work, block_bytes: int) -> None:
    per_block = block_bytes // part[0].element_size()
    for block in zip(*(torch.split(tensor, per_block) for tensor in part), strict=True):
        work(block)

"""Checks for a machine with a GPU: collectives in one launch give what torch's operations give,
bit by bit. `python tests/device/check_fused.py`

The reference is the path without kernels, and for sums a plain loop over the ranks. With Triton
only: elsewhere there is one path.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import contextmanager

import torch
import torch.distributed as dist
from checking import run_checks

import phalanx
from phalanx.backend.devices import fused_kernels

RANKS = 5
SIZES = (1, 7, 1000, 4096, 70_001)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHOLE = (torch.int8, torch.int32, torch.int64, torch.uint8)
OPS = (
    dist.ReduceOp.SUM,
    dist.ReduceOp.AVG,
    dist.ReduceOp.PRODUCT,
    dist.ReduceOp.MIN,
    dist.ReduceOp.MAX,
)


@contextmanager
def kernels(always: bool):
    """Use kernels from the first call on, or never."""
    old = fused_kernels.LARGE, fused_kernels.is_available
    fused_kernels.LARGE = 0
    if not always:
        fused_kernels.is_available = lambda: False
        ready = set(fused_kernels._ready)
        fused_kernels._ready.clear()
    try:
        yield
    finally:
        fused_kernels.LARGE, fused_kernels.is_available = old
        if not always:
            fused_kernels._ready.update(ready)


def tensor(dtype: torch.dtype, size: int, seed: int, *, shift: int = 0) -> torch.Tensor:
    """Of this rank; with a shift it does not begin at a multiple of 16 bytes."""
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    if dtype.is_floating_point or dtype.is_complex:
        made = torch.randn(size + shift, generator=generator, dtype=torch.float64).to(dtype)
        if dtype.is_floating_point and size > 5:
            made[3] = float("nan") if dist.get_rank() == 1 else made[3]
            made[4] = float("inf") if dist.get_rank() == 2 else made[4]
    else:
        made = torch.randint(0, 120, (size + shift,), generator=generator).to(dtype)
    return made.cuda()[shift:]


def bits(found: torch.Tensor) -> bytes:
    """Of all that are not a number one is taken: torch's own copies do not keep which."""
    if found.is_floating_point():
        found = torch.where(found.isnan(), float("nan"), found)
    return found.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes()


def compare(
    case: Callable[[int], list[torch.Tensor]], times: int = 2, backend: str | None = None
) -> int:
    """Run it with kernels and without; how many results were equal."""

    def run() -> list[bytes]:
        return [bits(found) for turn in range(times) for found in case(turn)]

    before = len(fused_kernels._tables)
    with kernels(always=True):
        fused = phalanx.run(run, ranks=RANKS, backend=backend)
        assert not fused_kernels._broken, fused_kernels._broken
    made = len(fused_kernels._tables) - before
    with kernels(always=False):
        plain = phalanx.run(run, ranks=RANKS, backend=backend)
    for rank, (one, other) in enumerate(zip(fused, plain, strict=True)):
        wrong = [n for n, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]]
        assert not wrong, f"rank {rank}: results {wrong} differ"
    assert made, "no kernel was used"
    return sum(map(len, fused))


def reductions() -> int:
    total = 0
    for dtype in (*FLOATS, *WHOLE):

        def case(turn: int, dtype: torch.dtype = dtype) -> list[torch.Tensor]:
            found = []
            for op in OPS:
                for size in SIZES:
                    for shift in (0, 1):
                        each = tensor(dtype, size, turn, shift=shift)
                        dist.all_reduce(each, op=op)
                        found.append(each)
            return found

        total += compare(case, 1)
    return total


def bitwise() -> int:
    """Gloo has these."""

    def case(turn: int) -> list[torch.Tensor]:
        found = []
        for dtype in (torch.uint8, torch.int32, torch.int64):
            for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
                each = tensor(dtype, 1000, turn)
                dist.all_reduce(each, op=op)
                found.append(each)
        return found

    return compare(case, backend="gloo")


def complex_sums() -> int:
    def case(turn: int) -> list[torch.Tensor]:
        found = []
        for dtype in (torch.complex64, torch.complex128):
            each = torch.view_as_complex(
                torch.randn(
                    100, 2, generator=torch.Generator().manual_seed(dist.get_rank())
                ).to(torch.float32 if dtype is torch.complex64 else torch.float64)
            ).cuda()
            dist.all_reduce(each)
            found.append(torch.view_as_real(each))
        return found

    return compare(case)


def roots() -> int:
    def case(turn: int) -> list[torch.Tensor]:
        found = []
        for root in (0, 2):
            for dtype in (torch.float32, torch.bool, torch.int8, torch.complex64):
                each = tensor(torch.float32, 333, turn).to(dtype)
                dist.broadcast(each, src=root)
                found.append(each.float() if dtype is torch.complex64 else each)
            each = tensor(torch.bfloat16, 333, turn)
            dist.reduce(each, dst=root)
            found.append(each)
            mine = tensor(torch.float32, 77, turn)
            lists = [torch.empty_like(mine) for _ in range(RANKS)]
            dist.gather(mine, lists if dist.get_rank() == root else None, dst=root)
            found += lists if dist.get_rank() == root else []
            output = torch.empty_like(mine)
            given = [mine + n for n in range(RANKS)] if dist.get_rank() == root else None
            dist.scatter(output, given, src=root)
            found.append(output)
        return found

    return compare(case)


def gathers() -> int:
    def case(turn: int) -> list[torch.Tensor]:
        found = []
        for size in SIZES:
            mine = tensor(torch.float32, size, turn)
            whole = torch.empty(size * RANKS, device="cuda")
            dist.all_gather_into_tensor(whole, mine)
            lists = [torch.empty_like(mine) for _ in range(RANKS)]
            dist.all_gather(lists, mine)
            own = torch.zeros(size * RANKS, device="cuda")
            part = own.chunk(RANKS)[dist.get_rank()]
            part.copy_(mine)
            dist.all_gather_into_tensor(own, part)
            small = tensor(torch.uint8, size, turn, shift=1)
            stacked = torch.empty(RANKS, size, dtype=torch.uint8, device="cuda")
            dist.all_gather_into_tensor(stacked, small)
            found += [whole, *lists, own, stacked]
        return found

    return compare(case)


def scattered_sums() -> int:
    def case(turn: int) -> list[torch.Tensor]:
        found = []
        for dtype in (torch.float32, torch.bfloat16, torch.int32):
            for size in SIZES:
                given = tensor(dtype, size * RANKS, turn)
                output = torch.empty(size, dtype=dtype, device="cuda")
                dist.reduce_scatter_tensor(output, given)
                again = tensor(dtype, size * RANKS, turn + 9)
                part = again.chunk(RANKS)[dist.get_rank()]
                dist.reduce_scatter_tensor(part, again, op=dist.ReduceOp.MAX)
                pieces = [tensor(dtype, size, n) for n in range(RANKS)]
                listed = torch.empty(size, dtype=dtype, device="cuda")
                dist.reduce_scatter(listed, pieces)
                found += [output, part, listed]
        return found

    return compare(case)


def exchanges() -> int:
    def case(turn: int) -> list[torch.Tensor]:
        found = []
        rank = dist.get_rank()
        for size in SIZES:
            given = tensor(torch.float32, size * RANKS, turn)
            output = torch.empty_like(given)
            dist.all_to_all_single(output, given)
            pieces = [tensor(torch.int8, size, n) for n in range(RANKS)]
            taken = [torch.empty_like(piece) for piece in pieces]
            dist.all_to_all(taken, pieces)
            found += [output, *taken]
        splits = [(rank + n) % RANKS for n in range(RANKS)]
        given = tensor(torch.float32, sum(splits), turn)
        output = torch.empty_like(given)
        dist.all_to_all_single(output, given, splits, splits)
        return [*found, output]

    return compare(case)


def ranks_that_share_a_tensor() -> int:
    """Memory that overlaps is left to torch's operations."""
    shared = torch.arange(40.0, device="cuda")

    def run() -> list[float]:
        dist.all_reduce(shared)
        dist.broadcast(shared, src=1)
        return shared.tolist()

    with kernels(always=True):
        found = phalanx.run(run, ranks=RANKS)
    assert found == [[RANKS * float(n) for n in range(40)]] * RANKS, found[0][:5]
    return len(found)


def streams_of_their_own() -> int:
    """Each rank works on a stream of its own; results are as on the default stream."""

    def run(own: bool) -> list[float]:
        stream = torch.cuda.Stream() if own else torch.cuda.current_stream()
        found = []
        with torch.cuda.stream(stream):
            for turn in range(20):
                each = tensor(torch.float32, 1 << 20, turn)
                for _ in range(5):
                    each = each * 1.01
                dist.all_reduce(each)
                work = dist.all_reduce(each, op=dist.ReduceOp.AVG, async_op=True)
                work.wait()
                found.append(each[100:110].sum())
        torch.cuda.current_stream().wait_stream(stream)
        return [each.item() for each in found]

    for always in (True, False):
        with kernels(always=always):
            own = phalanx.run(run, True, ranks=RANKS)
            same = phalanx.run(run, False, ranks=RANKS)
        assert own == same
    return len(own)


def waited_for_on_another_stream() -> None:
    def run() -> float:
        side = torch.cuda.Stream()
        each = torch.ones(1 << 22, device="cuda")
        for _ in range(50):
            each = each * 1.0
        work = dist.all_reduce(each, async_op=True)
        with torch.cuda.stream(side):
            work.wait()
            total = each.sum()
        torch.cuda.current_stream().wait_stream(side)
        return total.item()

    assert phalanx.run(run, ranks=RANKS) == [float(RANKS << 22)] * RANKS


def a_collective_in_a_captured_graph() -> str:
    def run() -> str:
        each = torch.ones(8, device="cuda")
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                dist.all_reduce(each)
        except phalanx.InvalidCallError as error:
            return str(error)
        return "captured"

    try:
        told = phalanx.run(run, ranks=2)[0]
    except phalanx.PhalanxError as error:
        told = str(error)
    assert "CUDA graph" in told, told
    return told.splitlines()[0][:60]


def checksums_tell_tensors_apart() -> None:
    from phalanx.backend.work.tensor_checksums import checksums, settled

    with kernels(always=True):
        for size in SIZES:
            one = torch.randn(size, device="cuda")
            other = one.clone()
            assert settled(checksums([one])) == settled(checksums([other]))
            other[size // 2] += 1
            assert settled(checksums([one])) != settled(checksums([other]))
            swapped = one.flip(0)
            if size > 1:
                assert settled(checksums([one, None])) != settled(checksums([swapped, None]))
            odd = torch.zeros(size + 1, dtype=torch.uint8, device="cuda")[1:]
            assert settled(checksums([odd, one])) == settled(checksums([odd, one.clone()]))


CHECKS = [
    reductions,
    bitwise,
    complex_sums,
    roots,
    gathers,
    scattered_sums,
    exchanges,
    ranks_that_share_a_tensor,
    streams_of_their_own,
    waited_for_on_another_stream,
    a_collective_in_a_captured_graph,
    checksums_tell_tensors_apart,
]

if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("these checks need a GPU")
    sys.exit(run_checks(CHECKS))

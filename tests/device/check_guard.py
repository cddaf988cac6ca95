"""What checks find on CUDA tensors, and what a rank has of its own there, on a machine with a
GPU and only torch: `python tests/device/check_guard.py`.

With the argument `cpu` the same on CPU tensors, as far as it has a meaning there. Prints one
line a check and ends with `N passed, N failed`.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

from checking import run_checks  # isort: skip

import torch
import torch.distributed as dist
from torch import nn

import phalanx

KIND = "cpu" if "cpu" in sys.argv[1:] else "cuda"
BACKEND = "gloo" if KIND == "cpu" else "nccl"
RANKS = 4


def ones(size: int = 1000) -> torch.Tensor:
    return torch.ones(size, device=KIND)


def run(program: Callable[[], Any], **options: Any) -> list[Any]:
    return phalanx.run(program, **{"ranks": RANKS, "backend": BACKEND, **options})


def findings_of(program: Callable[[], Any], **options: Any) -> list[Any]:
    """What a run that succeeds has found."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(program, **options)
    return [w.message.finding for w in caught if isinstance(w.message, phalanx.PhalanxWarning)]


TOUCHES: dict[str, Callable[[torch.Tensor], Any]] = {
    "sum": torch.sum,
    "item": lambda t: t[0].item(),
    "tolist": lambda t: t.tolist(),
    "cpu": lambda t: t.to("cpu", torch.float64),
    "add_": lambda t: t.add_(1),
    "setitem": lambda t: t.__setitem__(0, 5.0),
    "view": lambda t: t.view(2, -1)[0].fill_(7),
    "out": lambda t: torch.add(ones(), 1, out=t),
    "clone": torch.clone,
}


def reducing(touch: Callable[[torch.Tensor], Any]) -> Callable[[], float]:
    def program() -> float:
        tensor = ones()
        work = dist.all_reduce(tensor, async_op=True)
        touch(tensor)
        work.wait()
        return tensor[0].item()

    return program


def touching_a_tensor_in_flight() -> str:
    for name, touch in TOUCHES.items():
        try:
            run(reducing(touch))
        except phalanx.InFlightBufferError as error:
            assert error.verdict.kind == "in-flight-buffer", (name, error)
        else:
            raise AssertionError(f"{name}: not found")
    return f"{len(TOUCHES)} ways"


def looking_at_a_tensor_in_flight() -> None:
    def look(t: torch.Tensor) -> None:
        assert (t.shape, t.dtype, t.device.type) == ((1000,), torch.float32, KIND)
        t.view(2, 500), t[1:], t.detach(), t.data_ptr(), torch.empty_like(t), ones() + 1

    assert run(reducing(look), strict=True) == [float(RANKS)] * RANKS


def after_the_wait() -> None:
    def program() -> float:
        tensor = ones()
        dist.all_reduce(tensor, async_op=True).wait()
        tensor += 1
        return tensor.sum().item()

    assert run(program, strict=True) == [1000.0 * (RANKS + 1)] * RANKS


def after_a_wait_for_the_device() -> None:
    if KIND == "cpu":
        return

    def by_synchronize() -> None:
        torch.cuda.synchronize()

    def by_stream() -> None:
        torch.cuda.current_stream().synchronize()

    def by_event() -> None:
        torch.cuda.current_stream().record_event().synchronize()

    def by_accelerator() -> None:
        torch.accelerator.synchronize()

    for synchronize in (by_synchronize, by_stream, by_event, by_accelerator):

        def program(synchronize: Callable[[], None] = synchronize) -> float:
            tensor = ones()
            work = dist.all_reduce(tensor, async_op=True)
            dist.barrier()  # by now all ranks have come
            synchronize()
            total = tensor.sum().item()
            del work
            return total

        found = run(program, strict=True)
        assert found == [1000.0 * RANKS] * RANKS, (synchronize.__name__, found)


def works_that_are_dropped() -> None:
    def program() -> None:
        dist.all_reduce(ones(), async_op=True)

    found = findings_of(program)
    assert [each.kind for each in found] == ["unwaited-work"], found


def a_dropped_work_and_its_result() -> None:
    def program() -> float:
        tensor = ones()
        dist.all_reduce(tensor, async_op=True)
        return tensor.sum().item()

    try:
        kinds = {each.kind for each in findings_of(program)}
    except phalanx.PhalanxError as error:
        kinds = {error.verdict.kind}
    assert kinds == {"unwaited-work"}, kinds


def late_completion() -> None:
    def program() -> float:
        tensor = ones()
        work = dist.all_reduce(tensor, async_op=True)
        other = ones() * 2
        work.wait()
        return (tensor + other)[0].item()

    for moment in ("earliest", "latest", "seeded"):
        assert run(program, completion=moment, strict=True) == [RANKS + 2.0] * RANKS


def opposite_orders_under_the_profile_of_nccl() -> None:
    def program() -> None:
        model, data = dist.new_group(), dist.new_group()
        a, b = ones(8), ones(16)
        order = [(a, model), (b, data)]
        if dist.get_rank() == RANKS - 1:
            order.reverse()
        works = [dist.all_reduce(t, group=group, async_op=True) for t, group in order]
        for work in works:
            work.wait()

    check_hazard(program, "backend-hazard", "crossed-order")


def unbatched_exchange_under_the_profile_of_nccl() -> None:
    def program() -> None:
        peer = dist.get_rank() ^ 1
        theirs = ones(4)
        sending = dist.isend(ones(4), peer)
        receiving = dist.irecv(theirs, peer)
        sending.wait()
        receiving.wait()

    check_hazard(program, "backend-hazard")


def check_hazard(program: Callable[[], None], *kinds: str) -> None:
    try:
        run(program, profile="nccl")
    except phalanx.PhalanxError as error:
        found = getattr(error, "findings", None) or [error.verdict]
        assert {each.kind for each in found} <= set(kinds), error
    else:
        raise AssertionError("not found")


def batched_exchange_under_the_profile_of_nccl() -> None:
    def program() -> float:
        peer, theirs = dist.get_rank() ^ 1, ones(4)
        mine = ones(4) * dist.get_rank()
        sending = dist.P2POp(dist.isend, mine, peer)
        receiving = dist.P2POp(dist.irecv, theirs, peer)
        for work in dist.batch_isend_irecv([sending, receiving]):
            work.wait()
        return theirs[0].item()

    assert run(program, profile="nccl", strict=True) == [1.0, 0.0, 3.0, 2.0]


def a_mismatch() -> None:
    def program() -> None:
        dist.all_reduce(ones(4 + (dist.get_rank() == 2)))

    try:
        run(program)
    except phalanx.CollectiveMismatchError as error:
        assert "rank 2" in str(error).splitlines()[0], error
        assert KIND in str(error)
    else:
        raise AssertionError("not found")


def training_is_found_clean() -> None:
    def program() -> None:
        net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).to(KIND)
        model = nn.parallel.DistributedDataParallel(net)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 8, device=KIND)).sum().backward()
            optimizer.step()

    run(program, strict=True, profile="nccl")


def draw(seed: int) -> list[float]:
    """What a process that seeds in this way draws on the device."""
    torch.manual_seed(seed)
    numbers = torch.rand(2, device=KIND).tolist()
    numbers += torch.randn(3, device=KIND).tolist()
    if KIND == "cuda":
        torch.cuda.manual_seed(seed + 100)
    numbers += torch.rand(2, device=KIND).tolist()
    numbers += nn.functional.dropout(ones(8), 0.5).tolist()
    return numbers


def random_numbers_are_a_ranks_own() -> None:
    def program() -> tuple[list[float], list[float]]:
        rank = dist.get_rank()
        first = draw(rank)
        for _ in range(rank + 1):  # others draw in between
            dist.barrier()
            torch.rand(3, device=KIND)
        for _ in range(RANKS - rank):
            dist.barrier()
        return first, draw(rank + 10)

    found = run(program)
    assert found == [(draw(rank), draw(rank + 10)) for rank in range(RANKS)]


def random_numbers_between_hand_overs() -> None:
    def numbers(pause: Callable[[], Any], rank: int) -> list[float]:
        torch.manual_seed(rank)
        drawn = []
        for _ in range(5):
            drawn.append(torch.rand(1, device=KIND).item())
            pause()
        return drawn

    found = run(lambda: numbers(dist.barrier, dist.get_rank()))
    assert found == [numbers(lambda: None, rank) for rank in range(RANKS)]


def a_run_leaves_the_processs_numbers_alone() -> None:
    torch.manual_seed(5)
    random.seed(5)
    wanted = [torch.rand(1, device=KIND).item() for _ in range(2)]
    torch.manual_seed(5)
    first = torch.rand(1, device=KIND).item()
    run(lambda: torch.rand(7, device=KIND).sum().item())
    assert [first, torch.rand(1, device=KIND).item()] == wanted


def streams_are_a_ranks_own() -> None:
    if KIND == "cpu":
        return

    def program() -> bool:
        rank = dist.get_rank()
        usual = torch.cuda.current_stream()
        own = torch.cuda.Stream()
        if rank % 2:
            torch.cuda.set_stream(own)
        dist.barrier()
        expected = own if rank % 2 else usual
        same = torch.cuda.current_stream() == expected
        tensor = ones() * rank
        dist.all_reduce(tensor)
        assert tensor[0].item() == sum(range(RANKS))
        dist.barrier()
        return same and torch.cuda.current_stream() == expected

    before = torch.cuda.current_stream()
    assert all(run(program, strict=True))
    assert torch.cuda.current_stream() == before


CHECKS = [
    touching_a_tensor_in_flight,
    looking_at_a_tensor_in_flight,
    after_the_wait,
    after_a_wait_for_the_device,
    works_that_are_dropped,
    a_dropped_work_and_its_result,
    late_completion,
    opposite_orders_under_the_profile_of_nccl,
    unbatched_exchange_under_the_profile_of_nccl,
    batched_exchange_under_the_profile_of_nccl,
    a_mismatch,
    training_is_found_clean,
    random_numbers_are_a_ranks_own,
    random_numbers_between_hand_overs,
    a_run_leaves_the_processs_numbers_alone,
    streams_are_a_ranks_own,
]

if __name__ == "__main__":
    if KIND == "cuda" and not torch.cuda.is_available():
        sys.exit("these checks need a GPU; with the argument cpu they do without")
    sys.exit(run_checks(CHECKS))

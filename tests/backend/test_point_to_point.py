"""Messages: who gets what, in which order, and when a send or a receive is complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager

import phalanx
from phalanx.backend.profiles import Profile, admission

DTYPES = [torch.float64, torch.bfloat16, torch.int8, torch.bool, torch.complex64]


def filled(value: float, count: int = 2) -> Tensor:
    return torch.full((count,), float(value))


def received(receive: Callable[[Tensor], Any]) -> list[float]:
    room = filled(-1)
    receive(room)
    return room.tolist()


def test_send_and_receive() -> None:
    def program() -> Any:
        if dist.get_rank() == 0:
            return dist.send(filled(7), dst=1)
        room = filled(-1)
        return dist.recv(room, src=0), room.tolist()

    assert phalanx.run(program, ranks=2) == [None, (0, [7.0, 7.0])]


@pytest.mark.parametrize("later", [False, True], ids=["send and recv", "isend and irecv"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_ring(ranks: int, later: bool) -> None:
    """Even ranks send first, or all are asynchronous: both give everyone its neighbour's."""

    def program() -> list[float]:
        rank = dist.get_rank()
        right, left = (rank + 1) % ranks, (rank - 1) % ranks
        room = filled(-1)
        if later:
            works = [dist.irecv(room, src=left), dist.isend(filled(rank), dst=right)]
            for work in works:
                work.wait()
        elif rank == 0:
            dist.send(filled(rank), dst=right)
            dist.recv(room, src=left)
        else:
            dist.recv(room, src=left)
            dist.send(filled(rank), dst=right)
        return room.tolist()

    expected = [[float((rank - 1) % ranks)] * 2 for rank in range(ranks)]
    assert phalanx.run(program, ranks=ranks) == expected


@pytest.mark.parametrize("receiver_first", [False, True])
def test_messages_of_one_pair_stay_in_order(receiver_first: bool) -> None:
    def program() -> Any:
        sends = (dist.get_rank() == 0) == receiver_first
        if sends:
            works = [dist.isend(filled(n), 1 - dist.get_rank()) for n in range(5)]
            return [work.wait() for work in works]
        rooms = [filled(-1) for _ in range(5)]
        works = [dist.irecv(room, 1 - dist.get_rank()) for room in rooms]
        for work in reversed(works):
            work.wait()
        return [room[0].item() for room in rooms]

    results = phalanx.run(program, ranks=2)
    receiver = results[1] if receiver_first else results[0]
    assert receiver == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("sender", [0, 1])
def test_tags_out_of_order(sender: int) -> None:
    def program() -> Any:
        if dist.get_rank() == sender:
            works = [dist.isend(filled(10 * tag), 1 - sender, tag=tag) for tag in (1, 2, 3)]
            return [work.wait() for work in works]
        return [
            received(lambda room, tag=tag: dist.recv(room, sender, tag=tag))[0]
            for tag in (3, 1, 2)
        ]

    assert phalanx.run(program, ranks=2)[1 - sender] == [30.0, 10.0, 20.0]


def test_a_tag_without_its_message_is_a_deadlock() -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            dist.send(filled(1), dst=1, tag=1)
        else:
            dist.recv(filled(-1), src=0, tag=2)

    with pytest.raises(phalanx.DeadlockError, match="sent tag 1; rank 1 waits for tag 2"):
        phalanx.run(program, ranks=2)


def test_any_source_names_the_sender() -> None:
    def program() -> Any:
        rank = dist.get_rank()
        if rank != 1:
            return dist.send(filled(10 * rank), dst=1)
        found = {}
        for _ in range(3):
            room = filled(-1)
            source = dist.recv(room)
            found[source] = room[0].item()
        return found

    assert phalanx.run(program, ranks=4)[1] == {0: 0.0, 2: 20.0, 3: 30.0}


def test_any_source_in_a_subgroup_names_the_rank_of_the_world() -> None:
    def program() -> Any:
        group = dist.new_group([1, 3])
        if dist.get_rank() == 3:
            dist.send(filled(5), dst=1, group=group)
        if dist.get_rank() == 1:
            room = filled(-1)
            return dist.recv(room, group=group), room[0].item()
        return None

    assert phalanx.run(program, ranks=4)[1] == (3, 5.0)


def test_any_source_respects_tags() -> None:
    def program() -> Any:
        rank = dist.get_rank()
        if rank:
            dist.send(filled(rank), dst=0, tag=rank)
            return None
        return [
            received(lambda room, tag=tag: dist.recv(room, tag=tag))[0] for tag in (2, 1, 3)
        ]

    assert phalanx.run(program, ranks=4)[0] == [2.0, 1.0, 3.0]


def test_source_rank_of_a_work() -> None:
    def program() -> Any:
        if dist.get_rank() == 2:
            dist.send(filled(1), dst=0)
        if dist.get_rank() == 0:
            work = dist.irecv(filled(-1))
            work.wait()
            return work._source_rank()
        return None

    assert phalanx.run(program, ranks=3)[0] == 2


def test_ranks_of_the_group_and_of_the_world() -> None:
    """Ranks 3 and 1 are 1 and 0 in their group."""

    def program() -> Any:
        group = dist.new_group([1, 3])
        rank, rooms = dist.get_rank(), [filled(-1) for _ in range(3)]
        if rank == 1:
            dist.send(filled(1), group=group, group_dst=1)
            dist.isend(filled(2), group=group, group_dst=1).wait()
            dist.send(filled(3), dst=3, group=group)
        if rank == 3:
            sources = [
                dist.recv(rooms[0], src=1, group=group),
                dist.irecv(rooms[1], group=group, group_src=0).wait(),
                dist.recv(rooms[2], group=group, group_src=0),
            ]
            return sources, [room[0].item() for room in rooms]
        return None

    sources, values = phalanx.run(program, ranks=4)[3]
    assert sources[0] == 1
    assert values == [1.0, 2.0, 3.0]


def test_messages_of_two_groups_do_not_meet() -> None:
    def program() -> Any:
        group = dist.new_group([0, 1])
        if dist.get_rank() == 0:
            works = [dist.isend(filled(1), 1), dist.isend(filled(2), 1, group=group)]
            return [work.wait() for work in works]
        return [
            received(lambda room: dist.recv(room, 0, group=group)),
            received(lambda room: dist.recv(room, 0)),
        ]

    assert phalanx.run(program, ranks=2)[1] == [[2.0, 2.0], [1.0, 1.0]]


@pytest.mark.parametrize("receive_first", [False, True])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_batches(ranks: int, receive_first: bool) -> None:
    """Everyone exchanges with both neighbours; the order within a batch does not matter."""

    def program() -> list[float]:
        rank = dist.get_rank()
        right, left = (rank + 1) % ranks, (rank - 1) % ranks
        rooms = [filled(-1), filled(-1)]
        batch = [
            dist.P2POp(dist.isend, filled(rank), right, tag=1),
            dist.P2POp(dist.isend, filled(rank), left, tag=2),
            dist.P2POp(dist.irecv, rooms[0], left, tag=1),
            dist.P2POp(dist.irecv, rooms[1], right, tag=2),
        ]
        for work in dist.batch_isend_irecv(batch[::-1] if receive_first else batch):
            work.wait()
        return [room[0].item() for room in rooms]

    expected = [[float((r - 1) % ranks), float((r + 1) % ranks)] for r in range(ranks)]
    assert phalanx.run(program, ranks=ranks) == expected


def test_a_batch_in_a_subgroup_by_group_peer() -> None:
    def program() -> Any:
        group = dist.new_group([1, 2])
        if dist.get_rank() == 0:
            return None
        other, room = 1 - dist.get_rank(group), filled(-1)
        batch = [
            dist.P2POp(dist.irecv, room, group=group, group_peer=other),
            dist.P2POp(dist.isend, filled(dist.get_rank()), group=group, group_peer=other),
        ]
        assert [op.peer for op in batch] == [3 - dist.get_rank()] * 2
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        return room[0].item()

    assert phalanx.run(program, ranks=3) == [None, 2.0, 1.0]


def test_messages_in_a_coalescing_manager() -> None:
    def program() -> list[float]:
        other, room = 1 - dist.get_rank(), filled(-1)
        device = torch.device("cpu")
        with _coalescing_manager(device=device, async_ops=True) as manager:
            dist.isend(filled(dist.get_rank()), other)
            dist.irecv(room, other)
        manager.wait()
        return room.tolist()

    assert phalanx.run(program, ranks=2) == [[1.0, 1.0], [0.0, 0.0]]


OBJECTS = [{"a": [1, 2]}, "text", None, 3.5]


@pytest.mark.parametrize("by_group_rank", [False, True])
def test_lists_of_objects(by_group_rank: bool) -> None:
    def program() -> Any:
        if dist.get_rank() == 0:
            to = {"group_dst": 1} if by_group_rank else {"dst": 1}
            return dist.send_object_list(list(OBJECTS), **to)
        room: list[Any] = [0] * len(OBJECTS)
        source = dist.recv_object_list(
            room, **({"group_src": 0} if by_group_rank else {"src": 0})
        )
        return source, room

    assert phalanx.run(program, ranks=2)[1] == (0, OBJECTS)


def test_an_object_is_a_copy() -> None:
    sent = [[1, 2, 3]]

    def program() -> Any:
        if dist.get_rank() == 0:
            dist.send_object_list(sent, dst=1)
            return None
        room: list[Any] = [None]
        dist.recv_object_list(room, src=0)
        room[0].append(4)
        return room[0]

    assert phalanx.run(program, ranks=2)[1] == [1, 2, 3, 4]
    assert sent == [[1, 2, 3]]


def test_a_send_is_complete_only_when_received() -> None:
    """A barrier on a second group orders the two without a message between them."""

    def program() -> Any:
        aside = dist.new_group([0, 1])
        if dist.get_rank() == 0:
            work = dist.isend(filled(1), dst=1)
            dist.barrier(group=aside)
            before = work.is_completed()
            dist.barrier(group=aside)
            dist.barrier(group=aside)
            return before, work.is_completed()
        dist.barrier(group=aside)
        dist.barrier(group=aside)
        dist.recv(filled(-1), src=0)
        dist.barrier(group=aside)
        return None

    assert phalanx.run(program, ranks=2)[0] == (False, True)


def test_a_receive_is_complete_only_when_sent() -> None:
    def program() -> Any:
        aside = dist.new_group([0, 1])
        if dist.get_rank() == 0:
            room = filled(-1)
            work = dist.irecv(room, src=1)
            dist.barrier(group=aside)
            before = (work.is_completed(), room[0].item())
            dist.barrier(group=aside)
            dist.barrier(group=aside)
            return before, (work.is_completed(), room[0].item())
        dist.barrier(group=aside)
        dist.barrier(group=aside)
        dist.send(filled(6), dst=0)
        dist.barrier(group=aside)
        return None

    checks = "all,-in-flight-buffer"  # which would see that it looks before it waits
    seen = phalanx.run(program, ranks=2, checks=checks)[0]
    assert seen == ((False, -1.0), (True, 6.0))


def test_two_sends_that_nobody_receives_are_a_deadlock() -> None:
    """What Gloo's buffers would hide for small messages only."""

    def program() -> None:
        dist.send(filled(1), dst=1 - dist.get_rank())
        dist.recv(filled(-1), src=1 - dist.get_rank())

    with pytest.raises(phalanx.DeadlockError) as caught:
        phalanx.run(program, ranks=2)
    assert caught.value.verdict is not None
    assert caught.value.verdict.cycle == (0, 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)], ids=str)
def test_dtypes_and_shapes(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    def program() -> Tensor:
        given = torch.arange(6)[: torch.Size(shape).numel()].reshape(shape).to(dtype)
        if dist.get_rank() == 0:
            dist.send(given, dst=1)
            return given
        room = torch.zeros(shape, dtype=dtype)
        before = room._version
        dist.recv(room, src=0)
        assert room._version == before
        return room

    sent, got = phalanx.run(program, ranks=2)
    torch.testing.assert_close(got, sent)


@pytest.mark.usefixtures("no_rules")
def test_transposed_and_leaf_tensors() -> None:
    def program() -> Any:
        if dist.get_rank() == 0:
            leaf = torch.arange(6.0).reshape(2, 3).requires_grad_()
            dist.send(leaf.t(), dst=1)
            return None
        room = torch.zeros(2, 3).t().requires_grad_()
        dist.recv(room, src=0)
        assert room.is_leaf
        return room.tolist()

    assert phalanx.run(program, ranks=2)[1] == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


@pytest.mark.parametrize(
    ("room", "differs"),
    [
        (lambda: torch.zeros(3), ("shape",)),
        (lambda: torch.zeros(2, dtype=torch.int32), ("dtype",)),
        (lambda: torch.zeros(3, dtype=torch.int32), ("dtype", "shape")),
    ],
    ids=["too long", "other dtype", "both"],
)
def test_a_message_that_does_not_fit_its_room(
    room: Callable[[], Tensor], differs: tuple[str, ...]
) -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            dist.send(filled(1), dst=1)
        else:
            dist.recv(room(), src=0)

    with pytest.raises(phalanx.CollectiveMismatchError) as caught:
        phalanx.run(program, ranks=2)
    assert caught.value.verdict is not None
    assert caught.value.verdict.differs == differs


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: dist.send(filled(1), dst=0), "destination rank should not be the same"),
        (lambda: dist.isend(filled(1), dst=0), "cannot exchange a message with itself"),
        (lambda: dist.irecv(filled(1), src=0), "cannot exchange a message with itself"),
        (lambda: dist.send(filled(1), dst=5), "rank 5 is not in this group"),
        (lambda: dist.recv(filled(1), group_src=5), "rank 5 is not in this group"),
        (lambda: dist.send(filled(1)), "Must specify global_rank or group_rank"),
        (lambda: dist.send(filled(1), dst=1, group_dst=1), "Can't specify both"),
        (lambda: dist.batch_isend_irecv([1]), "p2p_op_list"),
        (lambda: dist.P2POp(dist.broadcast, filled(1), 1), "Invalid ``op``"),
    ],
)
def test_wrong_peers_are_refused(call: Callable[[], Any], text: str) -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            with pytest.raises(ValueError, match=text):
                call()
        dist.barrier()

    phalanx.run(program, ranks=2)


def test_a_backend_without_tags_matches_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """As NCCL does, here with CPU tensors."""
    untagged = Profile("untagged", (), ignores_tags=True)
    monkeypatch.setattr(admission, "profile_of", lambda backend: untagged)

    def program() -> Any:
        if dist.get_rank() == 0:
            for tag in (5, 6):
                dist.send(filled(tag), dst=1, tag=tag)
            return None
        return [received(lambda room, tag=tag: dist.recv(room, 0, tag=tag)) for tag in (6, 5)]

    assert phalanx.run(program, ranks=2)[1] == [[5.0, 5.0], [6.0, 6.0]]

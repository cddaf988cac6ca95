"""Small flat collectives give what the general way gives, bit by bit, and leave to it what they
cannot do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.backend.collectives import data_movement, flat_movement
from phalanx.backend.collectives.data_movement import MoveData
from phalanx.backend.collectives.reduction import AVG, BXOR, MAX, PRODUCT, SUM
from phalanx.matching.slots import Call

RANKS = 5


def values_of(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers whose sum depends on the order where the type rounds."""
    made = torch.randn(size, generator=torch.Generator().manual_seed(rank)) * 3
    return made.to(dtype)


def calls_of(given: list[torch.Tensor], taken: list[torch.Tensor], code: int) -> list[Call]:
    calls = []
    for member, (one, other) in enumerate(zip(given, taken, strict=True)):
        call: Any = Call(None, member, None, "any", None)  # type: ignore[arg-type]
        call.inputs, call.outputs, call.facts = [one], [other], ((), ())
        call.op, call.plain = (code, None), True
        calls.append(call)
    return calls


def both_ways(
    move: MoveData,
    given: list[torch.Tensor],
    size: int,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    found = []
    for most in (flat_movement.MOST_BYTES, -1):
        monkeypatch.setattr(flat_movement, "MOST_BYTES", most)
        taken = [torch.zeros(size, dtype=given[0].dtype) for _ in given]
        calls = calls_of(given, taken, code)
        assert flat_movement.is_flat(calls) == (most > 0)
        before = [tensor.clone() for tensor in given]
        move(calls)
        assert all(map(torch.equal, before, given))
        found.append(taken)
    return found[0], found[1]


@pytest.mark.parametrize("code", [SUM, AVG, PRODUCT, MAX])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_a_reduce_scatter_adds_in_the_order_of_ranks(
    code: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [values_of(rank, RANKS * 3, dtype) for rank in range(RANKS)]
    ways = both_ways(data_movement.reduce_scatter_tensor, given, 3, code, monkeypatch)
    assert all(map(torch.equal, *ways))
    assert any(tensor.any() for tensor in ways[0])


def test_a_reduce_scatter_of_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [torch.arange(RANKS * 2) * (rank + 3) for rank in range(RANKS)]
    ways = both_ways(data_movement.reduce_scatter_tensor, given, 2, BXOR, monkeypatch)
    assert all(map(torch.equal, *ways))


def test_gathers_and_exchanges_put_everything_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = [torch.arange(RANKS * 2) + 100 * rank for rank in range(RANKS)]
    gathered, as_before = both_ways(
        data_movement.all_gather_into_tensor, given, RANKS * RANKS * 2, SUM, monkeypatch
    )
    assert all(torch.equal(tensor, torch.cat(given)) for tensor in (*gathered, *as_before))
    exchanged, as_before = both_ways(
        data_movement.all_to_all_single, given, RANKS * 2, SUM, monkeypatch
    )
    assert all(map(torch.equal, exchanged, as_before))
    assert exchanged[1].tolist() == [
        x for r in range(RANKS) for x in (100 * r + 2, 100 * r + 3)
    ]


def test_what_shares_memory_or_is_not_plain_goes_the_general_way() -> None:
    apart = [torch.ones(RANKS) for _ in range(2 * RANKS)]
    assert flat_movement.is_flat(calls_of(apart[:RANKS], apart[RANKS:], SUM))
    shared = [apart[0], *apart[: RANKS - 1]]
    assert not flat_movement.is_flat(calls_of(shared, apart[RANKS:], SUM))
    assert not flat_movement.is_flat(calls_of(apart[:RANKS], apart[:RANKS], SUM))
    one_is_not = calls_of(apart[:RANKS], apart[RANKS:], SUM)
    one_is_not[-1].plain = False
    assert not flat_movement.is_flat(one_is_not)
    empty = [torch.ones(0) for _ in range(2 * RANKS)]
    assert not flat_movement.is_flat(calls_of(empty[:RANKS], empty[RANKS:], SUM))


def repeated() -> list[Any]:
    """Each call twice: the second takes what the first left as known."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group: Any = dist.group.WORLD
    found: list[Any] = []
    for turn in range(2):
        part, whole = torch.full((2,), float(rank + turn)), torch.zeros(2 * size)
        group._allgather_base(whole, part).wait()
        given, piece = torch.arange(2.0 * size) + rank, torch.zeros(2)
        group._reduce_scatter_base(piece, given).wait()
        swapped = torch.zeros(2 * size)
        dist.all_to_all_single(swapped, given)
        found.append((whole.tolist(), piece.tolist(), swapped.tolist()))
    return found


def test_a_known_call_does_what_the_first_did() -> None:
    for rank, turns in enumerate(phalanx.run(repeated, ranks=3)):
        for turn, (whole, piece, swapped) in enumerate(turns):
            mine = (2 * rank, 2 * rank + 1)
            assert whole == [float(r + turn) for r in range(3) for _ in mine]
            assert piece == [3.0 * i + 3 for i in mine]
            assert swapped == [float(i + r) for r in range(3) for i in mine]


def checked_again(second: str) -> None:
    """A call that is like a known one but for one thing."""
    size = dist.get_world_size()
    group: Any = dist.group.WORLD
    whole = torch.zeros(2 * size)
    group._allgather_base(whole, torch.ones(2)).wait()
    if second == "overlap":
        group._allgather_base(whole, whole[1:3]).wait()
    else:
        group._allgather_base(whole, torch.ones(3)).wait()


@pytest.mark.parametrize(
    ("second", "text"), [("overlap", "share memory"), ("size", "must have 9")]
)
def test_what_is_not_known_is_checked(second: str, text: str) -> None:
    with pytest.raises(phalanx.RankFailedError, match=text):
        phalanx.run(checked_again, second, ranks=3)

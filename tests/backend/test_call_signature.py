"""Signatures read off tensors; the short way of an all_reduce gives what the table says."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.backend.collectives import call_signature
from phalanx.backend.session import context_here


def test_the_short_way_of_an_all_reduce_agrees_with_the_table() -> None:
    def program() -> bool:
        dist.all_reduce(
            torch.ones(3), op=dist.ReduceOp.MAX
        )  # has passed the checks from here on
        work = dist.all_reduce(torch.ones(3), op=dist.ReduceOp.MAX, async_op=True)
        context = context_here()
        assert work is not None and context is not None and context.last_call is not None
        same = call_signature.signature_of(context.last_call) == context.last_call.signature
        work.wait()
        return same

    assert phalanx.run(program, ranks=2) == [True, True]


@pytest.mark.parametrize("transposed", [(), (0,), (0, 1)])
def test_the_order_in_memory_counts_where_ranks_must_agree_on_it(
    transposed: tuple[int, ...],
) -> None:
    def program() -> None:
        plain = torch.ones(2, 3)
        dist.broadcast(plain.t() if dist.get_rank() in transposed else torch.ones(3, 2), 0)

    if len(transposed) == 1:
        with pytest.raises(phalanx.CollectiveMismatchError, match="memory layout"):
            phalanx.run(program, ranks=2)
    else:
        phalanx.run(program, ranks=2)

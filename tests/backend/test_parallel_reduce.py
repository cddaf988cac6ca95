"""Large memory on all cores, without torch's own threads."""

from __future__ import annotations

import threading

import pytest
import torch

from phalanx.backend.collectives import parallel_reduce
from phalanx.backend.collectives.parallel_reduce import in_lanes


@pytest.mark.parametrize("most", [0, 4])
@pytest.mark.parametrize("count", [1, 7, parallel_reduce.BLOCK_BYTES // 4, 3_000_017])
def test_every_element_is_worked_on_once(
    count: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_reduce, "MOST_LANES", most)
    tensors = [torch.arange(count, dtype=torch.float32), torch.ones(count)]

    def work(block) -> None:
        block[0].add_(block[1])

    in_lanes(tensors, work)
    assert torch.equal(tensors[0], torch.arange(count, dtype=torch.float32) + 1)


def test_the_number_of_threads_is_as_before_also_for_new_threads() -> None:
    before = torch.get_num_threads()
    in_lanes([torch.ones(2_000_000)], lambda block: None)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert [torch.get_num_threads(), *found] == [before, before]


def test_an_error_in_any_lane_is_raised_and_all_have_ended() -> None:
    count, tensor = 2_000_000, torch.zeros(2_000_000)

    def work(block) -> None:
        block[0].add_(1)
        if block[0].data_ptr() + block[0].nbytes == tensor.data_ptr() + tensor.nbytes:
            raise ValueError("the last block")

    with pytest.raises(ValueError, match="the last block"):
        in_lanes([tensor], work)
    assert tensor.sum().item() == count

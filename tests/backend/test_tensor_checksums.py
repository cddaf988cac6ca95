"""Checksums: equal for equal bits, on the processor and late."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from phalanx.backend.work import tensor_checksums
from phalanx.backend.work.tensor_checksums import LateChecksums, checksums, settled

SIZES = (1, 7, 3000, 100_001)


def of(*tensors: Tensor | None) -> tuple[object, ...]:
    return settled(checksums(tensors))


@pytest.mark.parametrize("size", SIZES)
def test_equal_bits_have_equal_checksums(size: int) -> None:
    one = torch.randn(size, generator=torch.Generator().manual_seed(1))
    other = one.clone()
    assert of(one) == of(other)
    other[size // 2] += 1
    assert of(one) != of(other)


def test_layout_does_not_matter() -> None:
    one = torch.arange(12.0).view(3, 4)
    assert of(one.t()) == of(one.t().contiguous())


def test_none_is_zero() -> None:
    assert of(None, torch.ones(2))[0] == 0


@pytest.mark.parametrize("size", SIZES)
def test_the_sum_on_a_device_tells_places_apart(size: int) -> None:
    one = torch.randn(size, generator=torch.Generator().manual_seed(1))
    total = tensor_checksums._weighted_sum(one)
    assert total == tensor_checksums._weighted_sum(one.clone())
    if size > 1:
        assert total != tensor_checksums._weighted_sum(one.flip(0))


def test_late_checksums_are_in_the_order_of_the_tensors() -> None:
    class OnDevice(Tensor):
        is_cpu = False

    tensors = [torch.ones(3), torch.full((3,), 2.0).as_subclass(OnDevice), None]
    found = checksums(tensors)
    assert isinstance(found, LateChecksums)
    on_device = int(tensor_checksums._weighted_sum(torch.full((3,), 2.0)))
    assert settled(found) == (*of(torch.ones(3)), on_device, 0)

"""Which ranks this one works with, set once by `initialize` and asked for everywhere."""

import torch.distributed as dist

_TENSOR_GROUP = None
_DATA_GROUP = None
_TENSOR_RANK = None
_DATA_RANK = None


def initialize(tensor_size: int) -> None:
    """Neighbouring ranks split tensors, ranks at the same place among these split the data."""
    global _TENSOR_GROUP, _DATA_GROUP, _TENSOR_RANK, _DATA_RANK
    assert _TENSOR_GROUP is None, "initialized already"
    rank, size = dist.get_rank(), dist.get_world_size()
    for first in range(0, size, tensor_size):
        ranks = list(range(first, first + tensor_size))
        group = dist.new_group(ranks)
        if rank in ranks:
            _TENSOR_GROUP, _TENSOR_RANK = group, ranks.index(rank)
    for first in range(tensor_size):
        ranks = list(range(first, size, tensor_size))
        group = dist.new_group(ranks)
        if rank in ranks:
            _DATA_GROUP, _DATA_RANK = group, ranks.index(rank)


def tensor_group() -> dist.ProcessGroup:
    assert _TENSOR_GROUP is not None, "call initialize first"
    return _TENSOR_GROUP


def data_group() -> dist.ProcessGroup:
    assert _DATA_GROUP is not None, "call initialize first"
    return _DATA_GROUP


def tensor_rank() -> int:
    assert _TENSOR_RANK is not None, "call initialize first"
    return _TENSOR_RANK


def data_rank() -> int:
    assert _DATA_RANK is not None, "call initialize first"
    return _DATA_RANK

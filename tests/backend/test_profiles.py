"""The rules of the profiles: every one fires where it should, and says what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from phalanx.backend.profiles import Profile, TensorUse, profile_of
from phalanx.backend.profiles.gloo import GLOO
from phalanx.backend.profiles.nccl import NCCL
from phalanx.backend.profiles.profile_rules import (
    CORRUPTS,
    CRASHES,
    NO_BACKEND,
    REFUSES,
    is_dense,
)

FLOAT = torch.float32


def cuda(
    op: str, dtype: torch.dtype = FLOAT, reduce_op: str | None = None, **more: Any
) -> TensorUse:
    return TensorUse(op, dtype, reduce_op, device="cuda", **more)


GLOO_USES = {
    "sparse": TensorUse("broadcast", FLOAT, layout="sparse_coo"),
    "sparse-sum-only": TensorUse("all_reduce", FLOAT, "MAX", layout="sparse_coo"),
    "sparse-dtype": TensorUse("all_reduce", torch.bool, "SUM", layout="sparse_coo"),
    "sparse-dimensions": TensorUse(
        "all_reduce", FLOAT, "SUM", layout="sparse_coo", sparse_dim=5
    ),
    "sparse-leaf": TensorUse("all_reduce", FLOAT, "SUM", layout="sparse_coo", grad=True),
    "dtype": TensorUse("all_gather", torch.int16),
    "complex-gather": TensorUse("gather", torch.complex64),
    "complex-reduction": TensorUse("reduce", torch.complex64, "MAX"),
    "complex32-average": TensorUse("reduce", torch.complex32, "AVG"),
    "premul-sum": TensorUse("all_reduce", FLOAT, "PREMUL_SUM"),
    "bits-of-floats": TensorUse("all_reduce", FLOAT, "BAND"),
    "average-of-integers": TensorUse("reduce_scatter", torch.int64, "AVG"),
    "cuda-coalesced-reduction": cuda("all_reduce_coalesced", FLOAT, "SUM"),
    "cuda-coalesced-gather": cuda("all_gather_coalesced"),
    "cuda-point-to-point": cuda("send"),
    "uneven": TensorUse("all_gather", FLOAT, uneven=True),
    "other-shapes": TensorUse("all_gather_into_tensor", FLOAT, stacking=True),
    "zero-dimensional-scatter": TensorUse(
        "reduce_scatter_tensor", FLOAT, "SUM", part="output", zero_dim=True, stacking=True
    ),
    "nothing-from-anyone": TensorUse("recv", FLOAT, any_source=True, empty=True),
    "contiguous-message": TensorUse("send", FLOAT, contiguous=False),
    "contiguous-rows": TensorUse("all_to_all_single", FLOAT, contiguous=False),
    "overlapping": TensorUse(
        "gather", FLOAT, part="output", contiguous=False, overlapping=True
    ),
    "expanded-on-cuda": cuda("broadcast", contiguous=False, dense=False, overlapping=True),
    "leaf": TensorUse("all_gather", FLOAT, part="output", grad=True),
    "gaps": TensorUse("all_reduce", FLOAT, "SUM", contiguous=False, dense=False),
    "other-order": TensorUse("scatter", FLOAT, contiguous=False, alike=False),
    "order-of-pieces": TensorUse("reduce_scatter", FLOAT, "SUM", contiguous=False, alike=False),
}
NCCL_USES = {
    "cuda-only": TensorUse("all_reduce", FLOAT, "SUM"),
    "sparse": cuda("all_reduce", FLOAT, "SUM", layout="sparse_coo"),
    "any-source": cuda("recv", any_source=True),
    "no-coalesced-gather": cuda("all_gather_coalesced"),
    "dtype": cuda("send", torch.int16),
    "dtype-of-grouped": cuda("gather", torch.int16),
    "complex-reduce-scatter": cuda("reduce_scatter", torch.complex64, "SUM"),
    "complex-gather": cuda("gather", torch.complex64),
    "complex-reduction": cuda("all_reduce", torch.complex64, "MIN"),
    "bits": cuda("all_reduce", torch.int32, "BXOR"),
    "average-of-bool": cuda("all_reduce", torch.bool, "AVG"),
    "premul-sum-dtype": cuda("all_reduce", torch.int32, "PREMUL_SUM"),
    "uneven": cuda("gather", uneven=True),
    "dense-message": cuda("send", contiguous=False, dense=False),
    "dense": cuda("all_reduce_coalesced", FLOAT, "SUM", contiguous=False, dense=False),
    "contiguous": cuda("all_reduce", FLOAT, "SUM", contiguous=False),
    "overlapping": cuda("all_gather", part="output", contiguous=False, overlapping=True),
    "leaf": cuda("all_gather", part="output", grad=True),
    "by-memory": cuda("reduce_scatter_tensor", FLOAT, "SUM", contiguous=False),
}
# torch 2.12 has what the rule says is missing
OF_OLD_TORCH = {"no-all-to-all-of-lists"}


@pytest.mark.parametrize(
    ("profile", "uses"), [(GLOO, GLOO_USES), (NCCL, NCCL_USES)], ids=["gloo", "nccl"]
)
def test_every_rule_fires(profile: Profile, uses: dict[str, TensorUse]) -> None:
    names = [rule.name for rule in profile.rules]
    assert len(set(names)) == len(names)
    assert set(names) - OF_OLD_TORCH == set(uses)
    for name, use in uses.items():
        rule = profile.refusal(use)
        assert rule is not None and rule.name == name


@pytest.mark.parametrize("profile", [GLOO, NCCL], ids=str)
def test_every_rule_has_a_source_and_says_what_to_do(profile: Profile) -> None:
    for rule in profile.rules:
        assert rule.source and rule.effect in (REFUSES, CORRUPTS, CRASHES)
        text = str(rule.error_for(TensorUse("all_reduce", torch.int16, "MAX", sparse_dim=7)))
        assert text.startswith("all_reduce: ") and "{" not in text


def test_what_gloo_does() -> None:
    moved = [torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.bool]
    for dtype in (*moved, torch.complex128):
        assert GLOO.refusal(TensorUse("broadcast", dtype)) is None
        assert GLOO.refusal(TensorUse("all_reduce", dtype, "SUM")) is None
    assert GLOO.refusal(TensorUse("send", torch.float8_e5m2)) is None
    assert GLOO.refusal(TensorUse("all_reduce", FLOAT, "AVG")) is None
    assert GLOO.refusal(TensorUse("all_reduce", FLOAT, "SUM", layout="sparse_coo")) is None
    assert GLOO.refusal(TensorUse("all_reduce", FLOAT, "SUM", contiguous=False)) is None
    assert (
        GLOO.refusal(TensorUse("reduce_scatter", FLOAT, contiguous=False, dense=False)) is None
    )
    assert GLOO.refusal(cuda("all_reduce", FLOAT, "SUM")) is None


def test_what_nccl_does() -> None:
    assert NCCL.refusal(cuda("all_reduce", torch.float8_e4m3fn, "SUM")) is None
    assert NCCL.refusal(cuda("all_reduce", torch.complex64, "PREMUL_SUM")) is None
    assert NCCL.refusal(cuda("all_reduce", torch.int64, "AVG")) is None
    assert NCCL.refusal(cuda("reduce", torch.float8_e5m2, "AVG")) is None
    assert NCCL.refusal(cuda("all_gather", uneven=True)) is None
    assert NCCL.refusal(cuda("all_gather", part="output", contiguous=False)) is None
    assert NCCL.refusal(cuda("all_gather_into_tensor", stacking=True)) is None
    assert NCCL.refusal(cuda("broadcast", contiguous=False, channels_last=True)) is None


@pytest.mark.parametrize("op", ["gather", "scatter", "all_gather_into_tensor"])
def test_nccl_goes_by_memory(op: str) -> None:
    rule = NCCL.refusal(cuda(op, contiguous=False, channels_last=True))
    assert rule is not None and rule.effect == CORRUPTS


def test_a_backend_for_each_device() -> None:
    both = profile_of("cpu:gloo,cuda:nccl")
    assert both is not None and profile_of(None) is not None
    in_place = {"reduce_op": "BAND"}
    assert both.refusal(TensorUse("all_reduce", torch.int32, **in_place)) is None
    refused = both.refusal(cuda("all_reduce", torch.int32, **in_place))
    assert refused is not None and refused.name == "bits"
    assert both.refusal(TensorUse("all_reduce", FLOAT, "SUM", device="xpu")) is NO_BACKEND
    assert {*GLOO.rules, *NCCL.rules} < set(both.rules)


def test_names() -> None:
    assert profile_of("gloo") is GLOO
    assert profile_of("NCCL") is NCCL
    assert profile_of("mpi") is None
    assert profile_of("cpu:mpi,cuda:nccl") is None


def test_reading_a_use_off_a_tensor() -> None:
    plain = TensorUse.of("send", torch.zeros(2))
    assert plain == TensorUse("send", FLOAT)
    slice_ = TensorUse.of("send", torch.zeros(4, 4)[:, ::2], part="output")
    assert not slice_.contiguous and not slice_.dense and slice_.part == "output"
    turned = TensorUse.of("send", torch.zeros(2, 3).t())
    assert not turned.contiguous and turned.dense and not turned.overlapping
    last = torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    assert TensorUse.of("send", last).channels_last
    assert TensorUse.of("send", torch.zeros(1).expand(3)).overlapping
    sparse = TensorUse.of("send", torch.eye(2).to_sparse())
    assert sparse.layout == "sparse_coo" and sparse.sparse_dim == 2
    leaf = torch.zeros(2, requires_grad=True)
    assert TensorUse.of("send", leaf).grad and not TensorUse.of("send", leaf * 2).grad
    with torch.no_grad():
        assert not TensorUse.of("send", leaf).grad


SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(SIZES, st.randoms(use_true_random=False), st.lists(st.integers(1, 3), max_size=4))
def test_dense_means_that_every_place_is_taken_once(
    sizes: list[int], random: Any, steps: list[int]
) -> None:
    tensor = torch.arange(4096)[: torch.Size(sizes).numel()].view(sizes)
    order = list(range(len(sizes)))
    random.shuffle(order)
    tensor = tensor.permute(order)
    for dim, step in enumerate(steps[: tensor.dim()]):
        tensor = tensor[(slice(None),) * dim + (slice(None, None, step),)]
    assert is_dense(tensor) == takes_every_place(tensor)


def takes_every_place(tensor: Tensor) -> bool:
    places = sorted(tensor.flatten().tolist())  # the tensor holds its own addresses
    return places == list(range(places[0], places[0] + tensor.numel()))

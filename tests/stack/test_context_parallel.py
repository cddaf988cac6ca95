"""Context parallel: attention over a sequence that is spread over the ranks.

On the CPU torch has it without a causal mask only, and the flash kernel takes it half a minute
to find no plan for; so the plain kernel it is, on Gloo as here.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._context_parallel import context_parallel_unshard
from torch.nn.attention import SDPBackend, sdpa_kernel

import phalanx
from tests.stack.training import SCHEDULES

STEPS = 3


def tensors(step: int) -> list[Tensor]:
    """Query, key and value: two samples, two heads, a sequence of 16, four features."""
    generator = torch.Generator().manual_seed(step)
    return [
        torch.randn(2, 2, 16, 4, generator=generator, dtype=torch.float64) for _ in range(3)
    ]


def attend(*, causal: bool = False) -> list[Tensor]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("cp",))
    found = []
    for step in range(STEPS):
        query, key, value = tensors(step)
        buffers = [query, key, value]
        with (
            context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2, 2, 2]),
            sdpa_kernel(SDPBackend.MATH),
        ):
            assert query.shape[2] == 16 // dist.get_world_size()
            out = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
            (whole,) = context_parallel_unshard(mesh, [out], [2])
        assert query.shape[2] == 16
        found.append(whole)
    return found


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize("ranks", [2, 4])
def test_attention_over_a_spread_sequence(ranks: int, seed: int) -> None:
    found = phalanx.run(attend, ranks=ranks, seed=seed)
    for step in range(STEPS):
        wanted = F.scaled_dot_product_attention(*tensors(step))
        for got in found:
            torch.testing.assert_close(got[step], wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("seed", SCHEDULES)
def test_gradients_over_a_spread_sequence(seed: int) -> None:
    """A model with a projection; every rank's gradient is of its part of the sequence."""

    def gradient(weight: Tensor, parts: list[Tensor]) -> Tensor:
        query, key, value = (part @ weight for part in parts)
        return F.scaled_dot_product_attention(query, key, value)

    def program() -> list[Tensor]:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("cp",))
        found = []
        for step in range(STEPS):
            weight = torch.eye(4, dtype=torch.float64).requires_grad_()
            parts = tensors(step)
            with (
                context_parallel(mesh, buffers=parts, buffer_seq_dims=[2, 2, 2]),
                sdpa_kernel(SDPBackend.MATH),
            ):
                gradient(weight, parts).pow(2).sum().backward()
            assert weight.grad is not None
            dist.all_reduce(weight.grad)
            found.append(weight.grad)
        return found

    found = phalanx.run(program, ranks=2, seed=seed)
    for step in range(STEPS):
        weight = torch.eye(4, dtype=torch.float64).requires_grad_()
        gradient(weight, tensors(step)).pow(2).sum().backward()
        for got in found:
            torch.testing.assert_close(got[step], weight.grad, atol=1e-10, rtol=0)


@pytest.mark.parametrize("seed", SCHEDULES)
def test_two_sequences_side_by_side(seed: int) -> None:
    """Data parallel by context parallel: torch replaces the function once per process, with
    the mesh of the rank that came first."""

    def program() -> Tensor:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
        buffers = tensors(mesh.get_local_rank("dp"))
        with (
            context_parallel(mesh["cp"], buffers=buffers, buffer_seq_dims=[2, 2, 2]),
            sdpa_kernel(SDPBackend.MATH),
        ):
            out = F.scaled_dot_product_attention(*buffers)
            (whole,) = context_parallel_unshard(mesh["cp"], [out], [2])
        return whole

    for rank, got in enumerate(phalanx.run(program, ranks=4, seed=seed)):
        wanted = F.scaled_dot_product_attention(*tensors(rank // 2))
        torch.testing.assert_close(got, wanted, atol=1e-12, rtol=0)


def test_a_causal_mask_is_refused_on_the_cpu() -> None:
    with pytest.raises(phalanx.RankFailedError, match=r"mixed torch\.Tensor and DTensor"):
        phalanx.run(lambda: attend(causal=True), ranks=2)


def test_the_function_is_put_back() -> None:
    original = F.scaled_dot_product_attention
    phalanx.run(attend, ranks=2)
    assert F.scaled_dot_product_attention is original

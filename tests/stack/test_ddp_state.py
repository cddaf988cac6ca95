"""What DistributedDataParallel tells about itself, precision, and a change of its group."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import mse_loss
from torch.nn.parallel.distributed import _MixedPrecision

import phalanx
from tests.stack.training import (
    DDP,
    assert_same,
    batch,
    make,
    sgd,
    share,
    shared_batch,
    train,
    trained_alone,
    weights,
)


def test_logging_data() -> None:
    def program() -> dict[str, Any]:
        model = DDP(make(), bucket_cap_mb=1e-6)
        model._set_ddp_runtime_logging_sample_rate(1)
        train(model, sgd(model.parameters()))
        data: dict[str, Any] = model._get_ddp_logging_data()
        return data

    for rank, data in enumerate(phalanx.run(program, ranks=2)):
        assert data["rank"] == rank
        assert data["world_size"] == 2
        assert data["module_name"] == "Net"
        assert data["dtypes"] == "double"
        assert data["num_parameter_tensors"] == 4
        assert data["iteration"] == 2  # counted from 0
        assert data["total_parameter_size_bytes"] == 8 * 114
        assert data["has_sync_bn"] == 0
        assert data["backward_compute_time_end"] > data["backward_compute_time_start"]
        assert data["rebuilt_bucket_sizes"] == "32, 320, 80, 480"


def test_logging_data_names_the_backend_and_the_address() -> None:
    def program() -> dict[str, Any]:
        data: dict[str, Any] = DDP(make())._get_ddp_logging_data()
        return data

    for data in phalanx.run(program, ranks=2, backend="gloo"):
        assert data["backend_name"] == "gloo"
        assert data["master_addr"] == "127.0.0.1"


def test_logging_data_after_an_error() -> None:
    def program() -> dict[str, Any]:
        model = DDP(make(), find_unused_parameters=False)
        try:
            for _ in range(2):
                model.module.first(shared_batch(0)[0])
                model(shared_batch(0)[0][:, :3])
        except RuntimeError:
            pass
        data: dict[str, Any] = model._get_ddp_logging_data()
        return data

    assert [data["world_size"] for data in phalanx.run(program, ranks=2)] == [2, 2]


def test_update_of_the_process_group() -> None:
    """The rank that leaves trains no more; the others go on with the group that is left."""

    def program() -> Any:
        survivors = dist.new_group([0, 1])
        model = DDP(make(), init_sync=True)
        optimizer = sgd(model.parameters())
        train(model, optimizer, steps=range(2))
        if dist.get_rank() == 2:
            return None
        model._update_process_group(survivors)

        def half(step: int) -> tuple[Tensor, Tensor]:
            inputs, targets = batch(step)
            return share(inputs, survivors), share(targets, survivors)

        train(model, optimizer, data=half, steps=range(2, 4))
        return weights(model)

    found = phalanx.run(program, ranks=3)
    assert_same(found[:2], trained_alone(steps=4))


def test_autocast() -> None:
    """Both sides compute in bfloat16; gradients come back in float32 and are averaged so."""

    def gradients(model: Any, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            out = model(inputs.float())
            assert out.dtype == torch.bfloat16
        mse_loss(out.float(), targets.float()).backward()
        return {name.removeprefix("module."): p.grad for name, p in model.named_parameters()}

    def program() -> dict[str, Tensor]:
        return gradients(DDP(make().float()), *shared_batch(0))

    parts = [
        gradients(make().float(), *pair)
        for pair in zip(*(whole.chunk(2) for whole in batch(0)), strict=True)
    ]
    wanted = {name: (parts[0][name] + parts[1][name]) / 2 for name in parts[0]}
    assert_same(phalanx.run(program, ranks=2), wanted, tolerance=1e-6)


@pytest.mark.parametrize("views", [False, True])
def test_grad_scaler(views: bool) -> None:
    def fit(model: Any, data: Any) -> dict[str, Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for step in range(3):
            inputs, targets = data(step)
            optimizer.zero_grad()
            scaler.scale(mse_loss(model(inputs.float()), targets.float())).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            scaler.step(optimizer)
            scaler.update()
        return weights(model)

    def program() -> dict[str, Tensor]:
        return fit(DDP(make().float(), gradient_as_bucket_view=views), shared_batch)

    assert_same(phalanx.run(program, ranks=3), fit(make().float(), batch), tolerance=1e-6)


def test_native_mixed_precision_needs_a_device_with_events() -> None:
    """DDP copies the parameters on a stream of the device; torch has none for the CPU."""
    if torch.accelerator.is_available():
        pytest.skip("there is one; tests/device is for that")

    def program() -> None:
        half = torch.bfloat16
        precision = _MixedPrecision(param_dtype=half, reduce_dtype=half, buffer_dtype=half)
        model = DDP(make().float(), mixed_precision=precision)
        model(shared_batch(0)[0].float())

    with pytest.raises(phalanx.RankFailedError, match="cpu backend doesn't support events"):
        phalanx.run(program, ranks=2)


def test_state_dict_goes_back_and_forth() -> None:
    def program() -> dict[str, Tensor]:
        model = DDP(make())
        train(model, sgd(model.parameters()))
        again = DDP(make(seed=7))
        again.load_state_dict(model.state_dict())
        return weights(again)

    assert_same(phalanx.run(program, ranks=2), trained_alone())

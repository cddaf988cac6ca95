"""What torch refuses on the CPU, and where no single process can say what is right: programs
that `test_against_gloo.py` runs on threads and on real Gloo processes.

Each is a function of a module, because processes get it by name. It gives tensors and plain
values; errors are caught and become text, without what differs from run to run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.tensor as dtensor
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    StateDictType,
    fully_shard,
)
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import mse_loss
from torch.nn.parallel.distributed import _MixedPrecision

from tests.stack.training import DDP, batch, make, sgd, shared_batch, train, weights

# isort: split
# after the module above, which imports these without their warnings
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    powerSGD_hook,
    quantization_hooks,
)
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.optim import ZeroRedundancyOptimizer, _apply_optimizer_in_backward

Program = Callable[[], Any]

_WRAPPED = "Got the following error when running the callback: RuntimeError: "


def run(program: Program) -> Any:
    """Its value, or the type and first line of its error. One that passes through several
    callbacks is wrapped by each; how often is not compared."""
    try:
        return program()
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        return f"{type(error).__name__}: {first.replace(_WRAPPED, '')}"


def _step(model: nn.Module) -> None:
    inputs, targets = shared_batch(0)
    mse_loss(model(inputs), targets).backward()


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def quantized_by_tensor() -> None:
    model = DDP(make().float())
    model.register_comm_hook(dist.group.WORLD, quantization_hooks.quantization_pertensor_hook)
    inputs, targets = shared_batch(0)
    mse_loss(model(inputs.float()), targets.float()).backward()


def quantized_by_channel() -> None:
    model = DDP(make().float())
    model.register_comm_hook(dist.group.WORLD, quantization_hooks.quantization_perchannel_hook)
    inputs, targets = shared_batch(0)
    mse_loss(model(inputs.float()), targets.float()).backward()


def bf16_hook() -> None:
    DDP(make()).register_comm_hook(None, default_hooks.bf16_compress_hook)


def error_in_a_hook() -> None:
    def divide(done: Any) -> Tensor:
        raise ZeroDivisionError("by the hook")

    def hook(state: Any, bucket: Any) -> Any:
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(divide)

    hook.__annotations__.clear()
    model = DDP(make())
    model.register_comm_hook(None, hook)
    _step(model)


def error_in_a_callback() -> None:
    def divide(done: Any) -> None:
        raise ZeroDivisionError("by the callback")

    dist.all_reduce(torch.ones(1), async_op=True).get_future().then(divide).wait()


def batched_power_sgd() -> None:
    model = DDP(make())
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=4, start_powerSGD_iter=2
    )
    model.register_comm_hook(state, powerSGD_hook.batched_powerSGD_hook)
    train(model, sgd(model.parameters()))


def low_rank_power_sgd() -> dict[str, Tensor]:
    model = DDP(make())  # with more than one bucket real Gloo hangs
    state = powerSGD_hook.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=1,
        start_powerSGD_iter=2,
        min_compression_rate=0.5,
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(model, sgd(model.parameters()), steps=range(6))
    return weights(model)


def optimizer_in_backward() -> None:
    model = make()
    _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
    _step(DDP(model))


def native_mixed_precision() -> None:
    half = torch.bfloat16
    precision = _MixedPrecision(param_dtype=half, reduce_dtype=half, buffer_dtype=half)
    DDP(make().float(), mixed_precision=precision)(shared_batch(0)[0].float())


def sync_batch_norm() -> None:
    norm = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(3))
    norm(torch.ones(2, 3))


def sync_batch_norm_in_ddp() -> None:
    DDP(nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(3))))


def unused_parameters() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = make(), make()

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.used(x)
            return result

    model = DDP(Partly())
    _step(model)
    _step(model)


def fewer_parameters() -> None:
    model = make()
    if dist.get_rank() == 1:
        model.second.bias = None
    DDP(model)


def static_graph_with_a_box() -> dict[str, Tensor]:
    """An output that torch cannot look into is not synchronised, with a static graph."""

    class Box:
        def __init__(self, value: Tensor) -> None:
            self.value = value

    class Boxing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make()

        def forward(self, x: Tensor) -> Any:
            return Box(self.inner(x))

    model = DDP(Boxing(), static_graph=True)
    inputs, targets = shared_batch(0)
    mse_loss(model(inputs).value, targets).backward()
    return _gradients(model)


_BY_ENGINE = ("master_port", "master_addr", "gloo_socket_ifname")


def logging_data() -> dict[str, Any]:
    model = DDP(make(), bucket_cap_mb=1e-6, gradient_as_bucket_view=True)
    train(model, sgd(model.parameters()))
    data: dict[str, Any] = model._get_ddp_logging_data()
    return {
        name: value
        for name, value in data.items()
        if "time" not in name and name not in _BY_ENGINE
    }


def join_of_two() -> dict[str, Tensor]:
    model = DDP(make())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with Join([model, optimizer]):
        for step in range(dist.get_rank() + 2):
            inputs, targets = batch(step, 6)
            optimizer.zero_grad()
            mse_loss(model(inputs), targets).backward()
            optimizer.step()
    return weights(model)


def zero_with_overlap() -> None:
    model = DDP(make())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1
    )
    hook_with_zero_step(default_hooks.allreduce_hook, model, optimizer)


def _fsdp1(**options: Any) -> Any:
    return FullyShardedDataParallel(make(), device_id=torch.device("cpu"), **options)


def fsdp1_sync_module_states() -> None:
    _fsdp1(sync_module_states=True)


def fsdp1_offload() -> None:
    _step(_fsdp1(cpu_offload=CPUOffload(offload_params=True)))


def fsdp1_clip_in_float64() -> None:
    model = _fsdp1()
    _step(model)
    model.clip_grad_norm_(0.1)


def fsdp1_full_state_of_adam() -> dict[str, Tensor]:
    model = _fsdp1(use_orig_params=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer, steps=range(2))
    with FullyShardedDataParallel.state_dict_type(
        model,
        StateDictType.FULL_STATE_DICT,
        FullStateDictConfig(rank0_only=False),
        FullOptimStateDictConfig(rank0_only=False),
    ):
        state = FullyShardedDataParallel.optim_state_dict(model, optimizer)["state"]
    return {f"{name}.{key}": state[name][key].clone() for name in state for key in state[name]}


def context_parallel_with_a_mask() -> Tensor:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    buffers = [torch.ones(1, 2, 12, 4) for _ in range(3)]
    with (
        context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2, 2, 2]),
        sdpa_kernel(SDPBackend.MATH),
    ):
        return F.scaled_dot_product_attention(*buffers, is_causal=True)


def dtensor_random() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    dtensor.rand(4, 4, device_mesh=mesh, placements=[Replicate()])


def dtensor_split_backward() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    left = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]).requires_grad_()
    left.split(2, dim=1)[1].sum().backward()


def uneven_tensor_parallel() -> None:
    plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(make(), mesh, plan)(batch(0)[0])


def _counts(mode: Any) -> dict[str, int]:
    return {str(op): count for op, count in mode.get_comm_counts().items()}


def counted_fsdp2() -> dict[str, int]:
    model: Any = make()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    with CommDebugMode() as mode:
        _step(model)
    return _counts(mode)


def counted_tensor_parallel() -> dict[str, int]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(
        make(), mesh, {"first": ColwiseParallel(output_layouts=Replicate())}
    )
    with CommDebugMode() as mode:
        _step(model)
    return _counts(mode)


def counted_ddp() -> dict[str, int]:
    model = DDP(make())
    with CommDebugMode() as mode:
        _step(model)
    return _counts(mode)


def profiled_ddp() -> dict[str, int]:
    """How often which event of the communication is in the profile."""
    model = DDP(make())
    _step(model)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        _step(model)
        dist.barrier()
    return {
        event.key: event.count
        for event in profile.key_averages()
        if event.key.startswith(("gloo:", "c10d::", "DistributedDataParallel"))
    }


PROGRAMS: list[Program] = [
    counted_fsdp2,
    counted_tensor_parallel,
    counted_ddp,
    profiled_ddp,
    quantized_by_tensor,
    quantized_by_channel,
    bf16_hook,
    error_in_a_hook,
    error_in_a_callback,
    batched_power_sgd,
    low_rank_power_sgd,
    optimizer_in_backward,
    native_mixed_precision,
    sync_batch_norm,
    sync_batch_norm_in_ddp,
    unused_parameters,
    fewer_parameters,
    static_graph_with_a_box,
    logging_data,
    join_of_two,
    zero_with_overlap,
    fsdp1_sync_module_states,
    fsdp1_offload,
    fsdp1_clip_in_float64,
    fsdp1_full_state_of_adam,
    context_parallel_with_a_mask,
    dtensor_random,
    dtensor_split_backward,
    uneven_tensor_parallel,
]

"""Megatron Core's parallel state: ranks as tensor, pipeline and data parallel groups.

Megatron keeps its groups in globals of the module `megatron.core.parallel_state`, so every rank
needs that module for itself. Run it with 4 or 8 ranks:

    torchrun --nproc-per-node 8 examples/libraries/megatron_parallel_state.py
    phalanx run -n 8 examples/libraries/megatron_parallel_state.py
"""

import torch
import torch.distributed as dist
from megatron.core import parallel_state as state


def total(value: float, group: dist.ProcessGroup) -> int:
    """The sum of a value over the ranks of a group."""
    tensor = torch.tensor(float(value))
    dist.all_reduce(tensor, group=group)
    return int(tensor)


def describe() -> str:
    """What this rank is, by Megatron's getters, and what its groups add up to."""
    rank = dist.get_rank()
    words = [
        f"tensor {state.get_tensor_model_parallel_rank()}"
        f"/{state.get_tensor_model_parallel_world_size()}",
        f"pipeline {state.get_pipeline_model_parallel_rank()}"
        f"/{state.get_pipeline_model_parallel_world_size()}",
        f"data {state.get_data_parallel_rank()}/{state.get_data_parallel_world_size()}",
        f"first {state.is_pipeline_first_stage()} last {state.is_pipeline_last_stage()}",
        f"next {state.get_pipeline_model_parallel_next_rank()}"
        f" previous {state.get_pipeline_model_parallel_prev_rank()}",
        f"source {state.get_tensor_model_parallel_src_rank()}",
        f"model group {dist.get_process_group_ranks(state.get_model_parallel_group())}",
        f"sums {total(rank, state.get_tensor_model_parallel_group())}"
        f" {total(rank, state.get_pipeline_model_parallel_group())}"
        f" {total(rank, state.get_data_parallel_group())}",
    ]
    return ", ".join(words)


def main() -> None:
    dist.init_process_group("gloo")
    for sizes in ((2, 2), (2, 1), (1, 2)):
        state.initialize_model_parallel(
            tensor_model_parallel_size=sizes[0], pipeline_model_parallel_size=sizes[1]
        )
        print(describe())
        state.destroy_model_parallel()
        assert not state.model_parallel_is_initialized()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

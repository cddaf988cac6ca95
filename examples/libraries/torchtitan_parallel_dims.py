"""torchtitan's ParallelDims on 8 ranks of a CPU: meshes, ranks in them, and sums over them.

torchtitan takes a GPU for granted, so the device is named first. Run it with 8 ranks:

    torchrun --nproc-per-node 8 examples/libraries/torchtitan_parallel_dims.py
    phalanx run -n 8 examples/libraries/torchtitan_parallel_dims.py
"""

# ruff: noqa: E402 (the device is named before the rest is imported)

import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # for the groups of one rank
from torchtitan.tools import utils as tools

tools.device_type, tools.device_module = "cpu", torch.cpu

from torchtitan.config import CommConfig, DebugConfig, ParallelismConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as dist_utils

LAYOUTS = (
    ParallelismConfig(tensor_parallel_degree=2, spmd_backend="full_dtensor"),
    ParallelismConfig(
        data_parallel_replicate_degree=2,
        tensor_parallel_degree=2,
        spmd_backend="partial_dtensor",
    ),
    ParallelismConfig(
        pipeline_parallel_degree=2, context_parallel_degree=2, spmd_backend="spmd_types"
    ),
    ParallelismConfig(expert_parallel_degree=4, tensor_parallel_degree=2),
)


def describe(dims: ParallelDims) -> None:
    """Print this rank's place in every mesh, and the sum and the maximum of ranks there."""
    rank = torch.tensor(float(dist.get_rank()))
    print(
        f"layout {dims.spmd_backend}: replicate {dims.dp_replicate}"
        f" shard {dims.dp_shard} cp {dims.cp} tp {dims.tp} pp {dims.pp} ep {dims.ep},"
        f" fsdp {dims.fsdp_enabled} divisor {dims.seq_len_divisor}"
    )
    for name, mesh in dims.get_all_one_dimensional_meshes().items():
        total, largest = dist_utils.dist_sum(rank, mesh), dist_utils.dist_max(rank, mesh)
        ranks = dist.get_process_group_ranks(mesh.get_group())
        print(f"{name} {mesh.get_local_rank()} of {ranks}: {total:g} {largest:g}")


def draw(dims: ParallelDims) -> None:
    """Seeds that differ between pipeline stages only, and what is drawn from them."""
    dist_utils.set_determinism(
        dims, torch.device("cpu"), DebugConfig(seed=5), distinct_seed_mesh_dims=["pp"]
    )
    print("drawn", " ".join(f"{value:.4f}" for value in torch.rand(3).tolist()))


def main() -> None:
    world_size = dist_utils.init_distributed(CommConfig(trace_buf_size=0))
    for layout in LAYOUTS:
        dims = ParallelDims.from_config(layout, world_size)
        dims.build_mesh()
        describe(dims)
        draw(dims)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

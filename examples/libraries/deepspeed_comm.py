"""DeepSpeed's communication layer on a CPU: collectives, groups, and attention over a sequence.

Run it with 2, 4 or 8 ranks:

    torchrun --nproc-per-node 4 examples/libraries/deepspeed_comm.py
    phalanx run -n 4 examples/libraries/deepspeed_comm.py
"""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
import torch.nn.functional as F
from deepspeed import comm
from deepspeed.sequence.layer import DistributedAttention

LENGTH, ROWS, HEADS, WIDTH = 16, 2, 8, 4


def collectives() -> None:
    """Each rank gives its number, and prints what comes back."""
    rank, size = comm.get_rank(), comm.get_world_size()
    mine = torch.full((size,), float(rank))

    total = mine.clone()
    comm.all_reduce(total)
    gathered = torch.empty(size * size)
    comm.all_gather_into_tensor(gathered, mine)
    scattered = torch.empty(size)
    comm.reduce_scatter_tensor(scattered, gathered)
    exchanged = torch.empty(size)
    comm.all_to_all_single(exchanged, torch.arange(float(size)) + 10 * rank)
    told = [f"from rank {rank}"]
    comm.broadcast_object_list(told, src=size - 1)
    comm.barrier()
    print("result all_reduce", total.tolist())
    print("result all_gather", gathered.sum().item(), gathered[:: size + 1].tolist())
    print("result reduce_scatter", scattered.tolist())
    print("result all_to_all", exchanged.tolist())
    print("result broadcast", told)


def neighbours() -> None:
    """Pairs of ranks have a group each, and send to each other in a ring."""
    rank, size = comm.get_rank(), comm.get_world_size()
    pairs = [comm.new_group([first, first + 1]) for first in range(0, size, 2)]
    value = torch.tensor([float(rank)])
    comm.all_reduce(value, group=pairs[rank // 2])
    received = torch.empty(1)
    if rank % 2 == 0:
        comm.send(value, (rank + 1) % size)
        comm.recv(received, (rank - 1) % size)
    else:
        comm.recv(received, rank - 1)
        comm.send(value, (rank + 1) % size)
    print("result pair", value.item(), "from the left", received.item())


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Plain attention; tensors are row, place, head, width."""
    parts = (part.transpose(1, 2) for part in (query, key, value))
    return F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2)


def sequence() -> None:
    """Each rank has a part of the sequence; heads are exchanged for places on the way."""
    rank, size = comm.get_rank(), comm.get_world_size()
    generator = torch.Generator().manual_seed(1)
    whole = torch.randn(3, ROWS, LENGTH, HEADS, WIDTH, generator=generator)
    parts = whole.chunk(size, dim=2)[rank].clone().requires_grad_()
    layer = DistributedAttention(attention, comm.get_world_group(), 2, 1)
    out = layer(*parts, 0)
    out.square().sum().backward()

    whole.requires_grad_()
    expected = attention(*whole)
    expected.square().sum().backward()
    torch.testing.assert_close(out, expected.chunk(size, dim=1)[rank])
    torch.testing.assert_close(parts.grad, whole.grad.chunk(size, dim=2)[rank])
    print(f"result attention {out.sum().item():.4f} gradient {parts.grad.sum().item():.4f}")


def main() -> None:
    deepspeed.init_distributed("gloo")
    collectives()
    neighbours()
    sequence()
    comm.destroy_process_group()


if __name__ == "__main__":
    main()

"""Receives from any source in loops; in a file of its own, because the whole file is searched
for functions that have no regard for an order."""

import torch
import torch.distributed as dist


def collect(count: int) -> torch.Tensor:
    parts = []
    for _ in range(count):
        part = torch.empty(1)
        dist.recv(part)
        parts.append(part)
    return torch.cat(parts)


def joined() -> None:
    if dist.get_rank() == 0:
        collect(2)
    else:
        dist.send(torch.ones(1), dst=0)


def values() -> None:
    results = []
    part = torch.empty(1)
    if dist.get_rank() == 0:
        for _ in range(2):
            dist.recv(part)
            results.append(part.item())
        torch.tensor(results).diff()
    else:
        dist.send(torch.ones(1), dst=0)


def with_their_senders() -> None:
    parts = [torch.empty(1)] * 3
    if dist.get_rank() == 0:
        for _ in range(2):
            part = torch.empty(1)
            source = dist.recv(part)
            parts[source] = part
        torch.cat(parts[1:])
    else:
        dist.send(torch.ones(1), dst=0)


def of_one_sender() -> None:
    rank = dist.get_rank()
    if rank == 0:
        collect(2)
    elif rank == 1:
        dist.send(torch.ones(1), dst=0)
        dist.send(torch.ones(1), dst=0)

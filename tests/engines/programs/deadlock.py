"""Ranks 0 and 1 both receive before they send; ranks 2 and 3 wait for them."""

import torch
import torch.distributed as dist


def exchange(peer: int) -> torch.Tensor:
    buf = torch.zeros(256)
    dist.recv(buf, src=peer)
    dist.send(torch.ones(256), dst=peer)
    return buf


def main() -> None:
    dist.init_process_group("gloo")
    for _ in range(3):
        dist.barrier()
    if dist.get_rank() < 2:
        exchange(1 - dist.get_rank())
    dist.barrier()


main()

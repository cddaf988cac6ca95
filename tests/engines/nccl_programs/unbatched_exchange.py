"""Neighbours exchange halos by isend and irecv, not batched."""

import torch
import torch.distributed as dist


def exchange(peer: int) -> None:
    mine, theirs = torch.ones(4), torch.empty(4)
    sending = dist.isend(mine, peer)
    receiving = dist.irecv(theirs, peer)
    sending.wait()
    receiving.wait()


dist.init_process_group("gloo")
exchange(peer=dist.get_rank() ^ 1)
dist.destroy_process_group()

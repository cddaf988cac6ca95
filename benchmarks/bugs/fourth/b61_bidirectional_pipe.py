# ranks: 2
# kind: crossed-order|message-race|backend-hazard
# faulty: any
# lines: 14,16,19
# profile: gloo
# what: bidirectional pipeline of two stages: activation then gradient are sent to the one peer, but the receives are posted gradient first
import torch
import torch.distributed as dist


def exchange(act, grad, prev, nxt):
    act_in, grad_in = torch.empty_like(act), torch.empty_like(grad)
    ops = [
        dist.P2POp(dist.isend, act, nxt),
        dist.P2POp(dist.isend, grad, prev),
        dist.P2POp(dist.irecv, grad_in, nxt),
        dist.P2POp(dist.irecv, act_in, prev),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return act_in, grad_in


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    prev, nxt = (rank - 1) % world, (rank + 1) % world
    act = torch.full((2, 3), 1.0 + rank)
    grad = torch.full((2, 3), -1.0 - rank)
    for clock in range(3):
        act_in, grad_in = exchange(act, grad, prev, nxt)
        act = act_in * 0.5 + 1
        grad = grad_in * 0.5 - 1
    print(rank, act[0, 0].item(), grad[0, 0].item())
    dist.barrier()
    dist.destroy_process_group()


main()

# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: bidirectional pipeline of two stages: activation and gradient are sent and received in the same order, so the same peer for both is no harm
import torch
import torch.distributed as dist


def exchange(act, grad, prev, nxt):
    act_in, grad_in = torch.empty_like(act), torch.empty_like(grad)
    ops = [
        dist.P2POp(dist.isend, act, nxt),
        dist.P2POp(dist.isend, grad, prev),
        dist.P2POp(dist.irecv, act_in, prev),
        dist.P2POp(dist.irecv, grad_in, nxt),
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
        assert (act_in > 0).all() and (grad_in < 0).all()
        act = act_in * 0.5 + 1
        grad = grad_in * 0.5 - 1
    dist.barrier()
    dist.destroy_process_group()


main()

# ranks: 2
# kind: lost-result
# faulty: any
# lines: 13,14
# profile: gloo
# what: the bfloat16 gradients are reduced as g.float(), a copy; the update uses the unreduced bfloat16 ones
import torch
import torch.distributed as dist


def allreduce_fp32(grads):
    for g in grads:
        dist.all_reduce(g.float())
        g.div_(dist.get_world_size())


def clip(grads, max_norm):
    norm = torch.stack([g.float().norm() for g in grads]).norm()
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for g in grads:
        g.mul_(scale)
    return norm


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    params = [torch.zeros(4, 2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)]
    for step in range(3):
        grads = [torch.full_like(p, 0.5 * (rank + 1)) for p in params]
        allreduce_fp32(grads)
        clip(grads, 1.0)
        for p, g in zip(params, grads):
            p.sub_(g, alpha=0.1)
    print(rank, params[1].tolist())
    dist.barrier()
    dist.destroy_process_group()


main()

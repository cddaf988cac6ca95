# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: float() of a gradient that is float32 already is the tensor itself, and the bfloat16 one is copied back
import torch
import torch.distributed as dist


def allreduce_fp32(grads):
    for g in grads:
        f = g.float()
        dist.all_reduce(f)
        f.div_(dist.get_world_size())
        if f is not g:
            g.copy_(f)


def clip(grads, max_norm):
    norm = torch.stack([g.float().norm() for g in grads]).norm()
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for g in grads:
        g.mul_(scale)
    return norm


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    params = [torch.zeros(4, 2), torch.zeros(2, dtype=torch.bfloat16)]
    for step in range(3):
        grads = [torch.full_like(p, 0.5 * (rank + 1)) for p in params]
        allreduce_fp32(grads)
        assert grads[0][0, 0].item() == 0.75 and grads[1][0].item() == 0.75
        clip(grads, 1.0)
        for p, g in zip(params, grads):
            p.sub_(g, alpha=0.1)
    dist.barrier()
    dist.destroy_process_group()


main()

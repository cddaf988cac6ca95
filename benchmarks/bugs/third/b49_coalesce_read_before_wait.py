# ranks: 2
# kind: in-flight-buffer
# faulty: any
# lines: 14,16
# profile: gloo
# what: inside/after the async coalescing manager the gradients are scaled in place before cm.wait()
import torch
import torch.distributed as dist


def reduce_grads(grads, ws):
    with dist._coalescing_manager(async_ops=True) as cm:
        for g in grads:
            dist.all_reduce(g)
    for g in grads:
        g.div_(ws)
    cm.wait()
    return grads


dist.init_process_group("gloo")
grads = [torch.full((n,), 1.0 + dist.get_rank()) for n in (64, 128, 256)]
reduce_grads(grads, dist.get_world_size())
dist.destroy_process_group()

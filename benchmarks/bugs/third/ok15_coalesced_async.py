# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: async coalescing manager; independent work is done between the launch and cm.wait()
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
ts = [torch.full((n,), 2.0) for n in (3, 9, 27)]
other = torch.zeros(3)
with dist._coalescing_manager(async_ops=True) as cm:
    for t in ts:
        dist.all_reduce(t)
other += 1
cm.wait()
assert all(t[0] == 4 for t in ts)
dist.destroy_process_group()

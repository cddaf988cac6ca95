# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: a work is polled with is_completed() while local computation goes on and then waited for
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
t = torch.ones(1 << 16)
w = dist.all_reduce(t, async_op=True)
spins, acc = 0, torch.zeros(4)
while not w.is_completed() and spins < 10000:
    acc += 1
    spins += 1
w.wait()
assert t[-1] == 2
dist.barrier()
dist.destroy_process_group()

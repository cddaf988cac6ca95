# ranks: 3
# kind: message-race|deadlock
# faulty: 0
# lines: 17,19
# profile: gloo
# what: rank 0's any-source recv may take rank 1's message, after which recv(src=1) has nobody to wait for and rank 2's message is left over; the outcome depends on arrival order
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.zeros(2)
if rank == 0:
    time.sleep(0.3)
    who = dist.recv(t)
    # rank 1 holds the header, read it last
    dist.recv(t, src=1)
elif rank == 1:
    dist.send(t + 1, 0)
else:
    time.sleep(0.1)
    dist.send(t + 2, 0)
dist.destroy_process_group()

# ranks: 2
# kind: leak
# faulty: any
# lines: 12
# profile: gloo
# what: every step makes a fresh group for the metrics and never destroys it (12 groups)
import torch
import torch.distributed as dist


def global_mean(v):
    g = dist.new_group(list(range(dist.get_world_size())))
    t = torch.tensor([v])
    dist.all_reduce(t, group=g)
    return (t / dist.get_world_size()).item()


dist.init_process_group("gloo")
hist = []
for step in range(12):
    hist.append(global_mean(float(step)))
dist.destroy_process_group()

# ranks: 2
# kind: mismatch
# faulty: any
# lines: 23
# profile: gloo
# what: rank 1 got no sample and uses a python-float default that becomes float64; float32 meets float64 in all_reduce
import torch
import torch.distributed as dist


def epoch_stats(losses):
    if len(losses) == 0:
        return torch.zeros(2, dtype=torch.get_default_dtype()).double() + 0.0
    t = torch.tensor(losses)
    return torch.stack([t.sum(), torch.tensor(float(len(losses)))])


dist.init_process_group("gloo")
rank = dist.get_rank()
for epoch in range(3):
    losses = [0.5, 0.25] if not (rank == 1 and epoch == 2) else []
    s = epoch_stats(losses)
    dist.all_reduce(s)
dist.destroy_process_group()

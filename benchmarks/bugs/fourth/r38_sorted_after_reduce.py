# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the losses are reduced in the fixed order of their names and sorted by value only afterwards for the log
import torch
import torch.distributed as dist

NAMES = ["loss_cls", "loss_bbox", "loss_giou"]


def losses(rank):
    values = torch.tensor([0.9, 0.4, 0.6]).roll(rank)
    return dict(zip(NAMES, values.unbind()))


def log_losses(loss_dict):
    reduced = {}
    for name in NAMES:
        value = loss_dict[name].detach().clone()
        dist.all_reduce(value)
        reduced[name] = value.item() / dist.get_world_size()
    # biggest first, looks nicer in the log
    return dict(sorted(reduced.items(), key=lambda kv: -kv[1]))


dist.init_process_group("gloo")
rank = dist.get_rank()
for it in range(2):
    reduced = log_losses(losses(rank))
    assert all(abs(v - 1.9 / 3) < 1e-5 for v in reduced.values())
    if rank == 0:
        print(it, reduced)
dist.barrier()
dist.destroy_process_group()

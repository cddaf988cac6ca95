# ranks: 3
# kind: crossed-order
# faulty: any
# lines: 24,32
# profile: gloo
# what: the losses are reduced in the order of their local size (sorted by value), which differs between the ranks
import torch
import torch.distributed as dist

NAMES = ["loss_cls", "loss_bbox", "loss_giou"]


def losses(rank):
    values = torch.tensor([0.9, 0.4, 0.6]).roll(rank)
    return dict(zip(NAMES, values.unbind()))


def log_losses(loss_dict):
    # biggest first, looks nicer in the log
    order = sorted(loss_dict, key=lambda k: loss_dict[k].item(), reverse=True)
    reduced = {}
    for name in order:
        value = loss_dict[name].detach().clone()
        dist.all_reduce(value)
        reduced[name] = value.item() / dist.get_world_size()
    return reduced


dist.init_process_group("gloo")
rank = dist.get_rank()
for it in range(2):
    reduced = log_losses(losses(rank))
    if rank == 0:
        print(it, reduced)
dist.barrier()
dist.destroy_process_group()

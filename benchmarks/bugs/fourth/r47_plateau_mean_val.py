# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: ReduceLROnPlateau is stepped with the validation loss averaged over the ranks
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

VAL = {0: [1.0, 0.9, 0.8, 0.7], 1: [1.0, 1.1, 1.2, 1.5]}


def train_epoch(model, opt, rank):
    for i in range(3):
        opt.zero_grad()
        model(torch.full((2, 3), 0.1 * (i + rank + 1))).sum().backward()
        opt.step()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = DDP(torch.nn.Linear(3, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0)
    for epoch in range(4):
        train_epoch(model, opt, rank)
        val_loss = torch.tensor(VAL[rank][epoch])
        dist.all_reduce(val_loss)
        sched.step(val_loss.item() / dist.get_world_size())
    lrs = [None, None]
    dist.all_gather_object(lrs, opt.param_groups[0]["lr"])
    assert lrs[0] == lrs[1] < 0.1
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

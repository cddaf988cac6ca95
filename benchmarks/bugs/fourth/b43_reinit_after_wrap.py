# ranks: 2
# kind: replica-drift
# faulty: any
# lines: 14,42
# profile: gloo
# what: the head is initialised again after DDP has broadcast the weights, with a seed that depends on the rank
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def init_weights(m):
    if isinstance(m, torch.nn.Linear):
        torch.nn.init.normal_(m.weight, std=0.02)
        torch.nn.init.zeros_(m.bias)


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.relu(self.backbone(x)))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1234 + rank)
    model = DDP(Classifier())
    # fine-tuning: fresh head
    model.module.head.apply(init_weights)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    loss_fn = torch.nn.CrossEntropyLoss()
    for step in range(5):
        x = torch.randn(4, 8)
        y = torch.arange(4) % 3
        opt.zero_grad()
        loss_fn(model(x), y).backward()
        opt.step()
    dist.barrier()
    dist.destroy_process_group()


main()

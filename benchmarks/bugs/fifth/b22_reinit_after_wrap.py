# ranks: 2
# kind: replica-drift
# faulty: any
# lines: 23,30,31
# profile: gloo
# what: the head is initialised anew after the DDP wrap from a generator seeded by rank, so the replicas start apart
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(12, 8), nn.Tanh())
        self.head = nn.Linear(8, classes)

    def forward(self, x):
        return self.head(self.backbone(x))

    def reset_head(self):
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)


def build(rank):
    torch.manual_seed(1234 + rank)  # every rank augments differently
    net = Classifier(classes=3)
    model = DistributedDataParallel(net)
    net.reset_head()  # fine-tuning starts from a fresh head
    return model


def finetune(model, steps=4):
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        x, y = torch.randn(8, 12), torch.randint(0, 3, (8,))
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()


dist.init_process_group("gloo")
model = build(dist.get_rank())
finetune(model)
head = model.module.head.weight.detach().clone()
both = [torch.empty_like(head) for _ in range(dist.get_world_size())]
dist.all_gather(both, head)
print("largest difference", (both[0] - both[1]).abs().max().item())
dist.destroy_process_group()

# ranks: 2
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: the all_gather outputs of the own rank are replaced by the features that carry the gradient
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def gather_features(local):
    world = dist.get_world_size()
    parts = [torch.zeros_like(local) for _ in range(world)]
    dist.all_gather(parts, local)
    parts[dist.get_rank()] = local
    return torch.cat(parts)


class TwoTower(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.image = nn.Linear(10, width)
        self.text = nn.Linear(6, width)

    def forward(self, img, txt):
        return F.normalize(self.image(img), dim=-1), F.normalize(self.text(txt), dim=-1)


def contrastive(image, text):
    start = dist.get_rank() * len(image)
    labels = torch.arange(start, start + len(image))
    return F.cross_entropy(image @ gather_features(text).t() / 0.1, labels)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = TwoTower()
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    before = model.text.weight.detach().clone()
    for _ in range(3):
        opt.zero_grad()
        contrastive(*model(torch.randn(4, 10), torch.randn(4, 6))).backward()
        for p in filter(lambda q: q.grad is not None, model.parameters()):
            dist.all_reduce(p.grad)
        opt.step()
    print("text tower moved:", not torch.equal(before, model.text.weight))
    dist.destroy_process_group()


main()

# ranks: 2
# kind: lost-result
# faulty: any
# lines: 24,29
# profile: gloo
# what: InfoNCE over embeddings gathered with dist.all_gather: the gathered tensors have no gradient, so the text tower gets none although the loss uses them
import torch
import torch.distributed as dist
import torch.nn.functional as F


class Clip(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.image = torch.nn.Linear(6, 4)
        self.text = torch.nn.Linear(5, 4)

    def forward(self, img, txt):
        return F.normalize(self.image(img), dim=-1), F.normalize(self.text(txt), dim=-1)


def gather(t):
    out = [torch.zeros_like(t) for _ in range(dist.get_world_size())]
    dist.all_gather(out, t)
    return torch.cat(out)


def clip_loss(img, txt, rank):
    logits = img @ gather(txt).t() / 0.07
    labels = torch.arange(img.shape[0]) + rank * img.shape[0]
    return F.cross_entropy(logits, labels)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Clip()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    g = torch.Generator().manual_seed(10 + rank)
    for step in range(2):
        img, txt = model(torch.randn(3, 6, generator=g), torch.randn(3, 5, generator=g))
        opt.zero_grad()
        clip_loss(img, txt, rank).backward()
        for p in model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
        opt.step()
    dist.destroy_process_group()


main()

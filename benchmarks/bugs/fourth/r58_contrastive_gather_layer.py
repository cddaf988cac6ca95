# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the embeddings are gathered by an autograd function of its own whose backward sums the gradients and takes the own slice
import torch
import torch.distributed as dist
import torch.nn.functional as F


class GatherLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        out = [torch.zeros_like(t) for _ in range(dist.get_world_size())]
        dist.all_gather(out, t)
        return torch.stack(out)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad[dist.get_rank()]


class Clip(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.image = torch.nn.Linear(6, 4)
        self.text = torch.nn.Linear(5, 4)

    def forward(self, img, txt):
        return F.normalize(self.image(img), dim=-1), F.normalize(self.text(txt), dim=-1)


def clip_loss(img, txt, rank):
    every = GatherLayer.apply(txt).flatten(0, 1)
    labels = torch.arange(img.shape[0]) + rank * img.shape[0]
    return F.cross_entropy(img @ every.t() / 0.07, labels)


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
            assert p.grad is not None
            dist.all_reduce(p.grad)
        opt.step()
    dist.destroy_process_group()


main()

# ranks: 3
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: the property global_avg is read on all ranks before the logging branch of rank 0
import torch
import torch.distributed as dist


class SmoothedValue:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.total += value * n
        self.count += n

    @property
    def avg(self):
        return self.total / max(self.count, 1)

    @property
    def global_avg(self):
        t = torch.tensor([self.total, self.count], dtype=torch.float64)
        dist.all_reduce(t)
        return (t[0] / t[1]).item()


def train_one_epoch(model, opt, meter, log_every=2):
    for step in range(6):
        x = torch.randn(4, 7)
        loss = model(x).abs().mean()
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        opt.step()
        meter.update(loss.item(), len(x))
        if step % log_every == 0:
            avg = meter.global_avg
            if dist.get_rank() == 0:
                print(f"step {step} loss {meter.avg:.4f} ({avg:.4f})")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(7, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    train_one_epoch(model, opt, SmoothedValue())
    dist.destroy_process_group()

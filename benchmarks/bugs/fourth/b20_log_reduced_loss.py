# ranks: 2
# kind: mismatch|deadlock
# faulty: 0
# lines: 42,12,39
# profile: gloo
# what: the rank-0 log line contains a call of reduce_mean, which all_reduces; rank 1 does not evaluate it and goes on
import torch
import torch.distributed as dist


def _all_reduce(t):
    dist.all_reduce(t, op=dist.ReduceOp.SUM)
    return t


def reduce_mean(t):
    return _all_reduce(t.clone()) / dist.get_world_size()


def sync_grads(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    flat = reduce_mean(flat)
    i = 0
    for p in model.parameters():
        p.grad.copy_(flat[i:i + p.numel()].view_as(p))
        i += p.numel()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss = model(torch.full((2, 3), float(rank + 1))).mean()
        opt.zero_grad()
        loss.backward()
        sync_grads(model)
        opt.step()
        if rank == 0 and step % 2 == 0:
            print(f"step {step} loss {reduce_mean(loss.detach()).item():.4f}")
    dist.destroy_process_group()


main()

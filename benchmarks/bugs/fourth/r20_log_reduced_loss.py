# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the mean is taken by all ranks in the logging steps and only printed by rank 0
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
        if step % 2 == 0:
            mean = reduce_mean(loss.detach()).item()
            if rank == 0:
                print(f"step {step} loss {mean:.4f}")
    dist.destroy_process_group()


main()

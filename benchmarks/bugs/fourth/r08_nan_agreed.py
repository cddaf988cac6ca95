# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the NaN flag is reduced with MAX before the decision, so both ranks skip the same step
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
optim = torch.optim.AdamW(net.parameters(), lr=1e-3)


def any_nan(loss):
    flag = torch.isnan(loss.detach()).float().reshape(1)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


steps = 0
for it in range(5):
    x = torch.full((2, 3), 0.1 * (it + 1))
    if rank == 1 and it == 2:
        x[0, 0] = float("nan")
    loss = net(x).pow(2).mean()
    if any_nan(loss):
        continue
    optim.zero_grad()
    loss.backward()
    flat = torch.cat([p.grad.reshape(-1) for p in net.parameters()])
    dist.all_reduce(flat)
    offset = 0
    for p in net.parameters():
        p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
        offset += p.numel()
    optim.step()
    steps += 1

assert steps == 4
dist.barrier()
dist.destroy_process_group()

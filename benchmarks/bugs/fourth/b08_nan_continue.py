# ranks: 2
# kind: mismatch|deadlock
# faulty: 1
# lines: 28,35
# profile: gloo
# what: rank 1 finds its loss NaN and skips the step with continue (line 24), so its number of gradient all_reduces is one less and the last one of rank 0 meets the barrier
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
optim = torch.optim.AdamW(net.parameters(), lr=1e-3)


for it in range(5):
    x = torch.full((2, 3), 0.1 * (it + 1))
    if rank == 1 and it == 2:
        x[0, 0] = float("nan")
    loss = net(x).pow(2).mean()
    if torch.isnan(loss):
        print(f"rank {rank}: NaN at {it}, skipping")
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

dist.barrier()
dist.destroy_process_group()

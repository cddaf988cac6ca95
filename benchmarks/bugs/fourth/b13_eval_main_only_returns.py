# ranks: 3
# kind: deadlock|mismatch
# faulty: any
# lines: 30,43
# profile: gloo
# what: ranks 1 and 2 return from evaluate because they are not the main process, rank 0 waits in the all_gather inside
import torch
import torch.distributed as dist


def is_main_process():
    return not dist.is_initialized() or dist.get_rank() == 0


def train(model, opt, rank):
    for i in range(3):
        opt.zero_grad()
        model(torch.full((2, 4), float(rank + i))).sum().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        opt.step()


@torch.no_grad()
def evaluate(model, rank, world):
    if not is_main_process():
        return None
    logits = model(torch.full((2, 4), float(rank)))
    bucket = [torch.empty_like(logits) for _ in range(world)]
    dist.all_gather(bucket, logits)
    return torch.cat(bucket).mean().item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    train(model, torch.optim.SGD(model.parameters(), lr=0.01), rank)
    score = evaluate(model, rank, world)
    if is_main_process():
        print("score", score)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

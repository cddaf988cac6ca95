# ranks: 3
# kind: rank-failed|deadlock|mismatch
# faulty: 0
# lines: 13,34
# profile: gloo
# what: rank 0 cannot open its evaluation file; the handler destroys the process group and raises again while ranks 1 and 2 wait in the all_reduce of the accuracy
import torch
import torch.distributed as dist


def load_references(rank, split):
    if rank == 0 and split == "test":
        raise FileNotFoundError("data/test.jsonl")
    return torch.arange(6) % 3


def evaluate(rank, split):
    refs = load_references(rank, split)
    preds = torch.zeros(6, dtype=refs.dtype)
    stats = torch.tensor([(preds == refs).sum().item(), refs.numel()], dtype=torch.float64)
    dist.all_reduce(stats)
    return (stats[0] / stats[1]).item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    results = {}
    try:
        for split in ("train", "dev", "test"):
            results[split] = evaluate(rank, split)
    except FileNotFoundError:
        print(f"rank {rank}: leaving with {results}")
        dist.destroy_process_group()
        raise
    print(results)
    dist.barrier()
    dist.destroy_process_group()


main()

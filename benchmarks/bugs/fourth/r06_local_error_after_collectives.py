# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the missing file is only read by rank 0 behind the last collective, its error is handled locally, and destroy_process_group in finally is reached by all ranks
import torch
import torch.distributed as dist


def write_report(path, results):
    if not path.startswith("/"):
        raise FileNotFoundError(path)
    print(results)


def evaluate(split):
    refs = torch.arange(6) % 3
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
            results[split] = evaluate(split)
        dist.barrier()
        if rank == 0:
            write_report("data/report.json", results)
    except FileNotFoundError as e:
        print(f"rank {rank}: no report ({e})")
    finally:
        dist.destroy_process_group()
    assert abs(results["test"] - 1 / 3) < 1e-9


main()

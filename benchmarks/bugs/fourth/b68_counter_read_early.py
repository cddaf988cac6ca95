# ranks: 3
# kind: message-race
# faulty: any
# lines: 12,13
# profile: gloo
# what: every rank adds its sample count to a store counter and reads the sum at once, before the others have surely added theirs
import torch
import torch.distributed as dist


def count_samples(store, n):
    store.add("num_samples", n)
    return int(store.get("num_samples"))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    total = count_samples(store, 10 + rank)
    weight = (10 + rank) / total
    grad = torch.full((3,), float(rank)) * weight
    dist.all_reduce(grad)
    print(rank, total, grad.tolist())
    dist.destroy_process_group()


main()

# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: every rank adds its sample count, and the sum is read behind a barrier
import torch
import torch.distributed as dist


def count_samples(store, n):
    store.add("num_samples", n)
    dist.barrier()
    return int(store.get("num_samples"))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    total = count_samples(store, 10 + rank)
    assert total == 33
    weight = (10 + rank) / total
    grad = torch.full((3,), float(rank)) * weight
    dist.all_reduce(grad)
    dist.destroy_process_group()


main()

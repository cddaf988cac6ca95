# ranks: 2
# decides: order
# kind: rank-failed|different-results
# lines: 21,32
# minimum: 1
# report: https://github.com/NVIDIA/nccl/issues/781
# what: buckets are applied in the order in which their callbacks ran, which is not the same
#     on all ranks
import torch
import torch.distributed as dist


def reduce_buckets(buckets):
    finished, futures = [], []
    works = [dist.all_reduce(bucket, async_op=True) for bucket in buckets]
    for number, work in enumerate(works):
        future = work.get_future()
        futures.append(future.then(lambda _, number=number: finished.append(number)))
    for future in futures:
        future.wait()
    return finished


def main():
    dist.init_process_group("gloo")
    buckets = [torch.full((2,), float(number + 1)) for number in range(3)]
    weight = torch.zeros(2)
    for number in reduce_buckets(buckets):
        weight = 0.5 * weight + buckets[number]
    highest = weight.clone()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    assert highest.tolist() == weight.tolist(), f"replicas differ: {highest} and {weight}"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

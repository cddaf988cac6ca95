# ranks: 2
# decides: time
# kind: mismatch|deadlock|rank-failed
# lines: 18-19,26,35
# minimum: 0
# report: https://github.com/pytorch/pytorch/pull/100594
# what: rank 1 falls back to a default when it has waited long enough, at the moment at
#     which rank 0 publishes something else
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def publish(store, size):
    time.sleep(0.02)
    store.set("size", str(size))
    return size


def await_size(store, default):
    try:
        store.wait(["size"], timedelta(seconds=0.02))
    except dist.DistStoreError:
        return default
    return int(store.get("size"))


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    size = publish(store, 8) if dist.get_rank() == 0 else await_size(store, default=4)
    bucket = torch.ones(size)
    dist.all_reduce(bucket)
    assert bucket.tolist() == [2.0] * size, f"{bucket.tolist()}"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

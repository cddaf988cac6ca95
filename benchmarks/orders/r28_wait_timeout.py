# ranks: 2
# decides: time
# kind: none
# lines: none
# minimum: none
# report: https://github.com/pytorch/pytorch/pull/100594
# what: whoever is first decides by compare_set, and both take what is decided
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def publish(store, size):
    time.sleep(0.02)
    return int(store.compare_set("size", "", str(size)))


def await_size(store, default):
    try:
        store.wait(["size"], timedelta(seconds=0.02))
    except dist.DistStoreError:
        return int(store.compare_set("size", "", str(default)))
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

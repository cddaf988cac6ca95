# ranks: 2
# decides: order
# kind: none
# lines: none
# minimum: none
# report: https://github.com/ooples/AiDotNet/pull/393
# what: the last rank to leave the barrier deletes its counters
import time

import torch.distributed as dist


def store_barrier(store, world, name):
    store.add(name, 1)
    for _ in range(100):
        if store.add(name, 0) >= world:
            break
        time.sleep(0.002)
    else:
        raise TimeoutError(f"barrier {name}: the others did not come")
    if store.add(f"{name}/left", 1) == world:
        store.delete_key(name)


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    store_barrier(store, dist.get_world_size(), "saved")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

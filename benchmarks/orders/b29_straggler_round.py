# ranks: 2
# decides: time
# kind: rank-failed
# lines: 19,31
# minimum: 0
# report: https://github.com/sql-machine-learning/elasticdl/pull/1125
# what: the server goes on without a gradient that comes too late, and takes it for one of
#     the next round
import time
from datetime import timedelta

import torch.distributed as dist

ROUNDS = 3
PATIENCE = timedelta(seconds=0.02)


def key_of(number):
    return "gradient"


def serve(store):
    for number in range(ROUNDS):
        try:
            store.wait([key_of(number)], PATIENCE)
        except dist.DistStoreError:
            pass
        else:
            found = int(store.get(key_of(number)))
            store.delete_key(key_of(number))
            assert found == number, f"round {number} has the gradient of round {found}"
        store.set(f"model/{number}", "1")


def work(store):
    for number in range(ROUNDS):
        time.sleep(0.02 if number == 1 else 0.005)
        store.set(key_of(number), str(number))
        store.wait([f"model/{number}"])


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    serve(store) if dist.get_rank() == 0 else work(store)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# ranks: 2
# decides: time
# kind: rank-failed
# lines: 17,23-25
# minimum: 1
# faults: delay
# report: none
# what: a request that was not answered in time is sent again, and the server carries it out
#     twice
import time
from datetime import timedelta

import torch.distributed as dist


def serve(store):
    balance = 0
    for turn in range(100):
        request = store.get(f"request/{turn}").decode()
        if request == "stop":
            break
        time.sleep(0.003)
        balance += 10
        store.set(f"response/{turn}", str(balance))
    assert balance == 10, f"the balance is {balance}"


def ask(store):
    for turn in range(100):
        store.set(f"request/{turn}", "#1 add 10")
        try:
            store.wait([f"response/{turn}"], timedelta(seconds=0.03 * 2**turn))
        except dist.DistStoreError:
            continue
        store.set(f"request/{turn + 1}", "stop")
        return


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=6))
    store = dist.distributed_c10d._get_default_store()
    serve(store) if dist.get_rank() == 0 else ask(store)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

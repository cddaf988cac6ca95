# ranks: 2
# decides: time
# kind: none
# lines: none
# minimum: none
# faults: delay
# report: none
# what: a request that is sent again has the same number, and the server carries each number
#     out once
import time
from datetime import timedelta

import torch.distributed as dist


def serve(store):
    balance, carried_out = 0, set()
    for turn in range(100):
        request = store.get(f"request/{turn}").decode()
        if request == "stop":
            break
        time.sleep(0.003)
        if request not in carried_out:
            balance += 10
            carried_out.add(request)
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

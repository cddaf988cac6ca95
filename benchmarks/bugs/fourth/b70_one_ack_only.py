# ranks: 3
# kind: message-race
# faulty: any
# lines: 15,24
# profile: gloo
# what: the controller replaces the job after the ack of rank 1; rank 2 reads the same key but its ack is not waited for
import torch
import torch.distributed as dist

JOBS = ["prefill", "decode", "sample"]


def controller(store):
    for i, job in enumerate(JOBS):
        store.set("job", f"{i}:{job}")
        store.set(f"posted/{i}", "1")
        store.wait([f"ack/{i}/1"])


def worker(store, rank):
    done = []
    for i in range(len(JOBS)):
        store.wait([f"posted/{i}"])
        done.append(store.get("job").decode())
        store.set(f"ack/{i}/{rank}", "1")
    return done


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = dist.PrefixStore("rpc", dist.distributed_c10d._get_default_store())
    if rank == 0:
        controller(store)
    else:
        print(rank, worker(store, rank))
    t = torch.ones(1)
    dist.all_reduce(t)
    dist.destroy_process_group()


main()

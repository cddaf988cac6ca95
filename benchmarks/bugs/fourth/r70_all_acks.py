# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the controller replaces the job after the acks of both workers
import torch
import torch.distributed as dist

JOBS = ["prefill", "decode", "sample"]


def controller(store, workers):
    for i, job in enumerate(JOBS):
        store.set("job", f"{i}:{job}")
        store.set(f"posted/{i}", "1")
        store.wait([f"ack/{i}/{w}" for w in workers])


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
        controller(store, [1, 2])
    else:
        assert worker(store, rank) == ["0:prefill", "1:decode", "2:sample"]
    t = torch.ones(1)
    dist.all_reduce(t)
    assert t.item() == 3
    dist.destroy_process_group()


main()

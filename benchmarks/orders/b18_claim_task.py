# ranks: 2
# decides: order
# kind: rank-failed
# lines: 19-21
# minimum: 1
# report: https://github.com/hivemoot/hivemoot/pull/258
# what: two ranks find the same task in the store before one of them deletes it, and both
#     work on it
import torch
import torch.distributed as dist

TASKS = 3


def work(store):
    done = 0
    for task in range(TASKS):
        key = f"task/{task}"
        if store.check([key]):
            store.delete_key(key)
            done += 1
    return done


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        for task in range(TASKS):
            store.set(f"task/{task}", "todo")
    dist.barrier()
    done = torch.tensor([float(work(store))])
    dist.all_reduce(done)
    assert done.item() == TASKS, f"{TASKS} tasks were done {done.item():.0f} times"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

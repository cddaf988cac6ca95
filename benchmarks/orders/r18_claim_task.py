# ranks: 2
# decides: order
# kind: none
# lines: none
# minimum: none
# report: https://github.com/hivemoot/hivemoot/pull/258
# what: the rank whose delete finds the task has it
import torch
import torch.distributed as dist

TASKS = 3


def work(store):
    done = 0
    for task in range(TASKS):
        key = f"task/{task}"
        if store.delete_key(key):
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

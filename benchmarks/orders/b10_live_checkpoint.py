# ranks: 2
# decides: order
# kind: rank-failed
# lines: 18,29,43
# minimum: 0
# report: https://github.com/pytorch/pytorch/issues/144657
# what: a thread saves tensors that the training goes on to change, so that a checkpoint
#     holds parts of two steps
import json
import threading

import torch
import torch.distributed as dist


def save(store, state):
    for name, value in state.items():
        store.set(f"checkpoint/{name}", json.dumps(value.tolist()))


def train(store, state):
    saving = None
    for step in (1, 2):
        gradient = torch.ones(2)
        dist.all_reduce(gradient)
        for value in state.values():
            value += gradient
        if step == 1 and dist.get_rank() == 0:
            kept = state
            saving = threading.Thread(target=save, args=(store, kept))
            saving.start()
    if saving:
        saving.join()


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    train(store, {"weight": torch.zeros(2), "momentum": torch.zeros(2)})
    if dist.get_rank() == 0:
        for name in ("weight", "momentum"):
            found = json.loads(store.get(f"checkpoint/{name}"))
            assert found == [2.0, 2.0], f"{name} of step 1 is {found}"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# ranks: 2
# kind: deadlock|mismatch
# faulty: 1
# lines: 23,41
# profile: gloo
# what: rank 1 leaves with sys.exit(0) after training as only rank 0 exports the model, but the export ends with wait_for_everyone
import sys

import torch
import torch.distributed as dist


class State:
    def __init__(self):
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()

    @property
    def is_main_process(self):
        return self.rank == 0

    def wait_for_everyone(self):
        dist.barrier()


def export(state, model):
    sd = {k: v.clone() for k, v in model.state_dict().items()}
    print("exported", sorted(sd))
    state.wait_for_everyone()


state = State()
torch.manual_seed(0)
model = torch.nn.Linear(2, 2)
for _ in range(3):
    for p in model.parameters():
        g = torch.ones_like(p)
        dist.all_reduce(g)
        p.data -= 0.01 * g
if not state.is_main_process:
    sys.exit(0)
export(state, model)
dist.destroy_process_group()

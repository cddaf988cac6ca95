# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: rank 1 leaves with sys.exit(0) behind the last barrier and after destroy_process_group; rank 0 alone exports without collectives
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


def export(model):
    sd = {k: v.clone() for k, v in model.state_dict().items()}
    print("exported", sorted(sd))


state = State()
torch.manual_seed(0)
model = torch.nn.Linear(2, 2)
for _ in range(3):
    for p in model.parameters():
        g = torch.ones_like(p)
        dist.all_reduce(g)
        p.data -= 0.01 * g
state.wait_for_everyone()
dist.destroy_process_group()
if not state.is_main_process:
    sys.exit(0)
export(model)

# ranks: 4
# kind: mismatch|deadlock
# faulty: any
# lines: 43,13,44
# profile: gloo
# what: save_state is called under dp_rank == 0, which is true for ranks 0 and 1 only, but its gather (two wrappers down) is one of the world group; ranks 2 and 3 are in the barrier behind
import torch
import torch.distributed as dist


def gather_to_main(t):
    out = [torch.empty_like(t) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    dist.gather(t, out, dst=0)
    return out


def consolidate(state):
    return {k: gather_to_main(v) for k, v in sorted(state.items())}


class Checkpointer:
    def __init__(self, tp_size):
        self.tp_size = tp_size
        self.saved = []

    @property
    def dp_rank(self):
        return dist.get_rank() // self.tp_size

    def save_state(self, state, step):
        full = consolidate(state)
        if dist.get_rank() == 0:
            self.saved.append((step, {k: torch.cat(v) for k, v in full.items()}))


def main():
    dist.init_process_group("gloo")
    ckpt = Checkpointer(tp_size=2)
    state = {"weight": torch.ones(2, 3), "bias": torch.zeros(3)}
    for step in range(4):
        state["bias"] += 1
        if step == 2 and ckpt.dp_rank == 0:
            ckpt.save_state(state, step)
        dist.barrier()
    dist.destroy_process_group()


main()

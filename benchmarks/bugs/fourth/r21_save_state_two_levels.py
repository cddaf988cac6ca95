# ranks: 4
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: save_state is called under dp_rank == 0 and its gather is one of the tensor-parallel group of these ranks
import torch
import torch.distributed as dist


def gather_to_main(t, group):
    main = dist.get_rank(group) == 0
    out = [torch.empty_like(t) for _ in range(dist.get_world_size(group))] if main else None
    dist.gather(t, out, dst=dist.get_global_rank(group, 0), group=group)
    return out


def consolidate(state, group):
    return {k: gather_to_main(v, group) for k, v in sorted(state.items())}


class Checkpointer:
    def __init__(self, tp_size):
        self.tp_size = tp_size
        self.saved = []
        n = dist.get_world_size() // tp_size
        groups = [dist.new_group(list(range(i * tp_size, (i + 1) * tp_size))) for i in range(n)]
        self.tp_group = groups[self.dp_rank]

    @property
    def dp_rank(self):
        return dist.get_rank() // self.tp_size

    def save_state(self, state, step):
        full = consolidate(state, self.tp_group)
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
    assert len(ckpt.saved) == (1 if dist.get_rank() == 0 else 0)
    dist.destroy_process_group()


main()

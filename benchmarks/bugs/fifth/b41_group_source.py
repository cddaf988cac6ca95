# ranks: 4
# kind: rank-space|invalid-call|rank-failed
# faulty: 2,3
# lines: 27,32,43
# profile: gloo
# what: the source of the broadcast is given as the rank within the model parallel group, so ranks 2 and 3 name global rank 0, which is not in their group
import torch
import torch.distributed as dist

_MODEL_PARALLEL_GROUP = None


def initialize_model_parallel(size):
    global _MODEL_PARALLEL_GROUP
    for start in range(0, dist.get_world_size(), size):
        ranks = list(range(start, start + size))
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            _MODEL_PARALLEL_GROUP = group


def mp_rank():
    return dist.get_rank(group=_MODEL_PARALLEL_GROUP)


def mp_source():
    return dist.get_group_rank(_MODEL_PARALLEL_GROUP, dist.get_rank() - mp_rank())


def broadcast_batch(batch):
    sizes = torch.tensor(batch.shape if mp_rank() == 0 else (0, 0))
    dist.broadcast(sizes, src=mp_source(), group=_MODEL_PARALLEL_GROUP)
    if mp_rank() != 0:
        batch = torch.empty(*sizes.tolist())
    dist.broadcast(batch, src=mp_source(), group=_MODEL_PARALLEL_GROUP)
    return batch


def main():
    dist.init_process_group("gloo")
    initialize_model_parallel(2)
    data = torch.full((2, 3), float(dist.get_rank())) if mp_rank() == 0 else None
    batch = broadcast_batch(data)
    print(f"rank {dist.get_rank()} trains on batch {batch[0, 0].item():.0f}")
    dist.destroy_process_group()


main()

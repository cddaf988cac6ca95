# ranks: 3
# decides: order
# kind: rank-failed
# lines: 15,21-22,34
# minimum: 1
# report: https://github.com/deepseek-ai/DeepEP/issues/560
# what: ranks take shards in the order in which they arrive, and the predictions are put
#     together in the order of the ranks
import torch.distributed as dist

SAMPLES = list(range(7))


def predict(store, world):
    shard = store.add("next shard", 1) - 1
    return shard, [sample * 10 for sample in SAMPLES[shard::world]]


def merge(parts, world):
    merged = [None] * len(SAMPLES)
    for shard, (_, predictions) in enumerate(parts):
        merged[shard::world] = predictions
    return merged


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    rank, world = dist.get_rank(), dist.get_world_size()
    parts = [None] * world
    dist.all_gather_object(parts, predict(store, world))
    expected = [sample * 10 for sample in SAMPLES]
    found = merge(parts, world)
    assert found == expected, f"rank {rank}: {found}"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

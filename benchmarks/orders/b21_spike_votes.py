# ranks: 2
# decides: order
# kind: deadlock|mismatch|rank-failed
# lines: 19-21,33
# minimum: 0
# report: https://github.com/dylanyunlon/Neuron_SP/issues/589
# what: a rank looks for votes to skip the step before all have voted, so one skips a
#     reduction that the other enters
import torch
import torch.distributed as dist


def loss_of(rank, step):
    return 50.0 if (rank, step) == (0, 1) else 1.0


def skips(store, rank, step):
    spike = loss_of(rank, step) > 10
    if spike:
        store.add(f"spike/{step}", 1)
    return store.add(f"spike/{step}", 0) > 0


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    rank = dist.get_rank()
    for step in range(3):
        if skips(store, rank, step):
            continue
        gradient = torch.full((2,), float(step))
        dist.all_reduce(gradient)
        assert gradient.tolist() == [2.0 * step] * 2, f"step {step}: {gradient.tolist()}"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

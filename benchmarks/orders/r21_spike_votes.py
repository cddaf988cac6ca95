# ranks: 2
# decides: order
# kind: none
# lines: none
# minimum: none
# report: https://github.com/dylanyunlon/Neuron_SP/issues/589
# what: the votes are reduced, so that all ranks have the same
import torch
import torch.distributed as dist


def loss_of(rank, step):
    return 50.0 if (rank, step) == (0, 1) else 1.0


def skips(store, rank, step):
    spike = loss_of(rank, step) > 10
    votes = torch.tensor([float(spike)])
    dist.all_reduce(votes)
    return votes.item() > 0


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

# ranks: 2
# decides: fault
# kind: none
# lines: none
# minimum: none
# faults: drop_store
# report: none
# what: what is given up when the store is lost is the writing of the metrics alone
import torch
import torch.distributed as dist


def publish(store, rank, step):
    if rank == 0 or step == 1:
        store.set(f"metrics/{rank}/{step}", "1.0")


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    rank = dist.get_rank()
    for step in range(3):
        try:
            publish(store, rank, step)
        except dist.DistError:
            print("no metrics for a step")
        gradient = torch.full((2,), float(step))
        dist.all_reduce(gradient)
        assert gradient.tolist() == [2.0 * step] * 2, f"step {step}: {gradient.tolist()}"


if __name__ == "__main__":
    main()

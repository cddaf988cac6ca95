# ranks: 2
# decides: order
# kind: none
# lines: none
# minimum: none
# report: https://github.com/pytorch/pytorch/issues/67972
# what: a rank takes a number and stops if there is no such item
import torch
import torch.distributed as dist

ITEMS = 3


def consume(store):
    total = 0
    while True:
        number = store.add("head", 1) - 1
        if number >= ITEMS:
            return total
        total += int(store.get(f"item/{number}"))


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        for number in range(ITEMS):
            store.set(f"item/{number}", str(number + 1))
    dist.barrier()
    total = torch.tensor([float(consume(store))])
    dist.all_reduce(total)
    assert total.item() == 6, f"the items sum up to {total.item():.0f}"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

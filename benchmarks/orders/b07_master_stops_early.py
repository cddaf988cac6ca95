# ranks: 3
# decides: order
# kind: deadlock|mismatch|rank-failed
# lines: 18-29,36
# minimum: 2
# report: https://github.com/coin-or/CHiPPS-ALPS/issues/18
# what: the master ends when all results are there and stops the workers that asked until
#     then; one that has not asked yet waits for ever
import torch
import torch.distributed as dist

TASKS = 2
STOP = torch.tensor([-1.0])


def master(workers):
    handed, results, idle = 0, [], []
    while len(results) < TASKS:
        message = torch.empty(1)
        who = dist.recv(message)
        if message.item() >= 0:
            results.append(message.item())
        if handed < TASKS:
            dist.send(torch.tensor([float(handed)]), dst=who)
            handed += 1
        else:
            idle.append(who)
    for who in idle:
        dist.send(STOP, dst=who)
    print("sum", sum(results))


def worker():
    result = STOP
    while True:
        dist.send(result, dst=0)
        task = torch.empty(1)
        dist.recv(task, src=0)
        if task.item() < 0:
            return
        result = task * task + 1


def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        master(dist.get_world_size() - 1)
    else:
        worker()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

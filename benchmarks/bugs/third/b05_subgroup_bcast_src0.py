# ranks: 4
# kind: invalid-call|rank-space
# faulty: 2,3
# lines: 13
# profile: gloo
# what: helper always broadcasts from src=0, but 0 is not a global rank of the group [2,3]; wanted: src is a global rank, rank 0 is not in this group (use group_src=0 or src=2)
import torch
import torch.distributed as dist


def sync_from_leader(t, group):
    """the first member of the group has the truth"""
    dist.broadcast(t, src=0, group=group)
    return t


def main():
    dist.init_process_group("gloo")
    r = dist.get_rank()
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    t = torch.full((5,), float(r))
    sync_from_leader(t, halves[r // 2])
    dist.barrier()
    dist.destroy_process_group()


main()

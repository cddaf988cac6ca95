# ranks: 3
# kind: invalid-call|mismatch
# faulty: 0
# lines: 20
# profile: gloo
# what: the work list is chunked by ceil so the source has just 2 chunks for 3 ranks in scatter_object_list
import torch
import torch.distributed as dist


def chunk(items, n):
    per = -(-len(items) // n)
    return [items[i : i + per] for i in range(0, len(items), per)]


dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
for files in (list("abcdef"), list("abcd")):
    out = [None]
    dist.scatter_object_list(out, chunk(files, ws) if rank == 0 else None, src=0)
dist.destroy_process_group()

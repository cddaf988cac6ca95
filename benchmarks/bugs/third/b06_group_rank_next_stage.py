# ranks: 4
# kind: rank-space|invalid-call|deadlock
# faulty: 1,2,3
# lines: 19,22
# profile: gloo
# what: dst/src are computed from the rank in the group [1,2,3] but passed as global ranks; global 1 (group rank 0) sends to itself; wanted: group rank used where a global rank is expected
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
# rank 0 is the parameter server, 1..3 form the pipeline
workers = dist.new_group([1, 2, 3])
if rank != 0:
    stage = dist.get_rank(workers)
    n = dist.get_world_size(workers)
    act = torch.ones(4) * rank
    if stage > 0:
        dist.recv(act, src=stage - 1, group=workers)
    act = act * 2
    if stage < n - 1:
        dist.send(act, dst=stage + 1, group=workers)
dist.barrier()
dist.destroy_process_group()

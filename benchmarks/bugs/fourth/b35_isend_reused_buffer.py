# ranks: 2
# kind: unwaited-work|in-flight-buffer
# faulty: 0
# lines: 18,17
# profile: gloo
# what: rank 0 fills one staging buffer for every chunk and isends it without keeping the requests: the next chunk overwrites a buffer that may still be on its way
import torch
import torch.distributed as dist


class ChunkStreamer:
    def __init__(self, chunk):
        self.staging = torch.empty(chunk)

    def send(self, weight, dst):
        for piece in weight.split(self.staging.numel()):
            self.staging.copy_(piece)
            dist.isend(self.staging, dst)

    def recv(self, numel, src):
        out = []
        for _ in range(numel // self.staging.numel()):
            dist.recv(self.staging, src)
            out.append(self.staging.clone())
        return torch.cat(out)


dist.init_process_group("gloo")
rank = dist.get_rank()
weight = torch.arange(65536.0)
streamer = ChunkStreamer(16384)
if rank == 0:
    streamer.send(weight, 1)
else:
    got = streamer.recv(weight.numel(), 0)
    print("equal:", torch.equal(got, weight))
dist.barrier()
dist.destroy_process_group()

# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: two staging buffers in turn; before one is filled again the request of its last isend is waited for, and the rest at the end
import torch
import torch.distributed as dist


class ChunkStreamer:
    def __init__(self, chunk):
        self.chunk = chunk
        self.staging = [torch.empty(chunk), torch.empty(chunk)]
        self.requests = [None, None]

    def send(self, weight, dst):
        for i, piece in enumerate(weight.split(self.chunk)):
            slot = i % 2
            if self.requests[slot] is not None:
                self.requests[slot].wait()
            self.staging[slot].copy_(piece)
            self.requests[slot] = dist.isend(self.staging[slot], dst)
        for req in self.requests:
            req.wait()

    def recv(self, numel, src):
        out = []
        for _ in range(numel // self.chunk):
            dist.recv(self.staging[0], src)
            out.append(self.staging[0].clone())
        return torch.cat(out)


dist.init_process_group("gloo")
rank = dist.get_rank()
weight = torch.arange(65536.0)
streamer = ChunkStreamer(16384)
if rank == 0:
    streamer.send(weight, 1)
else:
    got = streamer.recv(weight.numel(), 0)
    assert torch.equal(got, weight)
dist.barrier()
dist.destroy_process_group()

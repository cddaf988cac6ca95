# ranks: 2
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: rank 0 waits for the isend of the last micro-batch before it overwrites its staging buffer
import os
import time

import torch
import torch.distributed as dist

MICRO, NUMEL = 3, 1 << 20


class ActivationChannel:
    def __init__(self, peer):
        self.peer = peer
        self.staging = torch.empty(NUMEL)
        self.inflight = []

    def push(self, activation):
        self.flush()
        self.staging.copy_(activation)
        self.inflight.append(dist.isend(self.staging, self.peer))

    def pull(self):
        buf = torch.empty(NUMEL)
        dist.recv(buf, self.peer)
        return buf

    def flush(self):
        for work in self.inflight:
            work.wait()
        self.inflight.clear()


def first_stage(channel):
    for i in range(MICRO):
        channel.push(torch.full((NUMEL,), float(i)))
    channel.flush()


def last_stage(channel):
    time.sleep(0.5)
    got = [channel.pull().mean().item() for _ in range(MICRO)]
    print("micro-batch means", got)


def main():
    dist.init_process_group("gloo")
    stage = int(os.environ["RANK"])
    (first_stage if stage == 0 else last_stage)(ActivationChannel(1 - stage))
    dist.barrier()
    dist.destroy_process_group()


main()

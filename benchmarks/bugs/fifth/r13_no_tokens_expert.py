# ranks: 4
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: rank 3 has no tokens to route but takes part in the all_to_all of its expert group with empty splits
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

HIDDEN = 4


class ExpertLayer:
    def __init__(self, group):
        self.group = group
        self.n = dist.get_world_size(group)

    def route(self, tokens):
        choice = torch.arange(len(tokens)) % self.n
        order = choice.argsort(stable=True)
        return tokens[order], torch.bincount(choice, minlength=self.n)

    def __call__(self, tokens):
        send, counts = self.route(tokens)
        recv_counts = torch.empty_like(counts)
        dist.all_to_all_single(recv_counts, counts, group=self.group)
        recv = torch.empty(int(recv_counts.sum()), HIDDEN)
        dist.all_to_all_single(recv, send, recv_counts.tolist(), counts.tolist(), group=self.group)
        done = recv * 2
        back = torch.empty_like(send)
        dist.all_to_all_single(back, done, counts.tolist(), recv_counts.tolist(), group=self.group)
        return back


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
    layer = ExpertLayer(mesh.get_group("ep"))
    lengths = [5, 3, 4, 0]
    tokens = torch.ones(lengths[dist.get_rank()], HIDDEN)
    out = layer(tokens)
    total = out.sum().reshape(1)
    dist.all_reduce(total)
    if mesh.get_rank() == 0:
        print("total", total.item())
    dist.destroy_process_group()


main()

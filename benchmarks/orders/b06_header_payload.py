# ranks: 3
# decides: order
# kind: rank-failed
# lines: 16-17
# minimum: 1
# report: https://github.com/pytorch/pytorch/pull/2855
# what: the server takes a header from any worker and then the payload from any worker
#     again, which may be another one
import torch
import torch.distributed as dist


def serve(workers):
    for _ in range(workers):
        header, payload = torch.empty(2), torch.empty(2)
        dist.recv(header)
        dist.recv(payload)
        owner, number = header.tolist()
        expected = [owner, number * 10]
        assert payload.tolist() == expected, f"{header.tolist()} with {payload.tolist()}"


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        serve(workers=world - 1)
    else:
        dist.send(torch.tensor([float(rank), 3.0]), dst=0)
        dist.send(torch.tensor([float(rank), 30.0]), dst=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# ranks: 3
# decides: order
# kind: none
# lines: none
# minimum: none
# report: https://github.com/pytorch/pytorch/pull/2855
# what: the payload is received from the sender of the header
import torch
import torch.distributed as dist


def serve(workers):
    for _ in range(workers):
        header, payload = torch.empty(2), torch.empty(2)
        sender = dist.recv(header)
        dist.recv(payload, src=sender)
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

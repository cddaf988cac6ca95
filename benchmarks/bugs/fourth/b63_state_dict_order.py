# ranks: 2
# kind: crossed-order|message-race|backend-hazard
# faulty: any
# lines: 20,25
# profile: gloo
# what: rank 0 sends its state in insertion order (weight, running_mean, bias), rank 1 receives in sorted order; all have one shape and the last two change places with the first
import torch
import torch.distributed as dist


def make_state(rank):
    state = {}
    for i, name in enumerate(("weight", "running_mean", "bias")):
        state[name] = torch.full((4,), float(i + 1)) if rank == 0 else torch.zeros(4)
    return state


def send_state(state, dst):
    for name, t in state.items():
        dist.send(t, dst)


def recv_state(state, src):
    for name in sorted(state):
        dist.recv(state[name], src)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    state = make_state(rank)
    if rank == 0:
        send_state(state, 1)
    else:
        recv_state(state, 0)
        print({k: v[0].item() for k, v in state.items()})
    dist.barrier()
    dist.destroy_process_group()


main()

# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: both sides go through the sorted names of the state
import torch
import torch.distributed as dist


def make_state(rank):
    state = {}
    for i, name in enumerate(("weight", "running_mean", "bias")):
        state[name] = torch.full((4,), float(i + 1)) if rank == 0 else torch.zeros(4)
    return state


def send_state(state, dst):
    for name in sorted(state):
        dist.send(state[name], dst)


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
    assert [v[0].item() for v in state.values()] == [1.0, 2.0, 3.0]
    dist.barrier()
    dist.destroy_process_group()


main()

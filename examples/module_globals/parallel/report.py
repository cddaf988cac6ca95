"""What ranks tell each other about a step: objects of this program's own classes."""

import dataclasses
import enum

import torch.distributed as dist

from . import state


class Role(enum.Enum):
    LEADER = "leader"
    FOLLOWER = "follower"


@dataclasses.dataclass
class Step:
    number: int
    loss: float
    data_rank: int
    tensor_rank: int
    role: Role


def gather(number: int, loss: float) -> list[Step]:
    role = Role.LEADER if state.tensor_rank() == 0 else Role.FOLLOWER
    mine = Step(number, loss, state.data_rank(), state.tensor_rank(), role)
    steps: list = [None] * dist.get_world_size()
    dist.all_gather_object(steps, mine)
    assert all(isinstance(step, Step) and step.role in Role for step in steps)
    return steps

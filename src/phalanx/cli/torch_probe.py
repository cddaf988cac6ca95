"""What only torch knows, as one line of JSON. `machine_facts.py` runs it."""

from __future__ import annotations

import json


def main() -> None:
    import torch
    import torch.distributed as dist

    from phalanx.emulation.state.folder import can_be_own

    names = ("gloo", "nccl", "mpi", "ucc") if dist.is_available() else ()
    backends = {name: getattr(dist, f"is_{name}_available")() for name in names}
    cuda = torch.cuda
    count = cuda.device_count() if cuda.is_available() else 0
    answer = {
        "cuda": torch.version.cuda,
        "backends": backends,
        "gpus": [cuda.get_device_name(index) for index in range(count)],
        "own_folder": can_be_own(),
    }
    print(json.dumps(answer))

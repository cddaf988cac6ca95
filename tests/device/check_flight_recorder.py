"""Checks for a machine with a GPU and only torch: an NCCL dump of one rank is read.

    PYTHONPATH=src:. python tests/device/check_flight_recorder.py

One GPU and one rank: NCCL takes no two ranks on one GPU. Prints one line a check and ends with
`N passed, N failed`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["TORCH_FR_BUFFER_SIZE"] = os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "2000"
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29571")

from checking import run_checks

FOLDER = Path(tempfile.mkdtemp())


def start() -> None:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    tensor = torch.ones(8, device="cuda")
    dist.all_reduce(tensor)
    dist.broadcast(tensor.bfloat16(), 0)
    dist.all_gather_into_tensor(torch.empty(8, device="cuda"), tensor)
    dist.reduce_scatter_tensor(torch.empty(8, device="cuda"), tensor)
    dist.all_to_all_single(torch.empty(8, device="cuda"), tensor)
    dist.barrier()
    torch.cuda.synchronize()


def a_pickled_dump_is_read() -> str:
    from torch._C import _distributed_c10d as c10d

    from phalanx.explain.dump_files import read_dumps
    from phalanx.explain.explanation import explain

    write = getattr(c10d, "_dump_nccl_trace", None) or c10d._dump_fr_trace
    file = FOLDER / "nccl_trace_rank_0"
    file.write_bytes(write())
    found = read_dumps([file])
    (dump,) = found.dumps["Flight Recorder"].values()
    names = [call.name for call in dump.calls]
    expected = ["all_reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor"]
    assert names[:4] == expected, names
    assert all(call.done is not None for call in dump.calls)
    first = dump.calls[0]
    assert first.inputs[0].dtype == "float32", first
    assert first.inputs[0].shape == (8,), first
    assert first.site is not None, first
    assert first.site.function == "start", first
    assert dump.calls[1].inputs[0].dtype == "bfloat16", dump.calls[1]
    (group,) = {group.ranks for group in dump.groups.values()}
    assert group == (0,), dump.groups
    answer = explain(found)
    assert not answer.found, answer
    return f"{len(dump.calls)} calls"


def a_json_dump_is_read() -> str:
    from torch._C import _distributed_c10d as c10d

    from phalanx.explain.dump_files import read_dumps

    write = getattr(c10d, "_dump_nccl_trace_json", None) or c10d._dump_fr_trace_json
    text = write()
    file = FOLDER / "trace_0.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    json.loads(file.read_text())
    (dump,) = read_dumps([file]).dumps["Flight Recorder"].values()
    assert dump.calls[0].name == "all_reduce", dump.calls[0]
    return f"{len(dump.calls)} calls"


def the_black_box_sees_calls_on_a_gpu() -> str:
    import torch
    import torch.distributed as dist

    from phalanx import blackbox
    from phalanx.explain.dump_files import read_dumps
    from phalanx.explain.explanation import explain

    blackbox.install(FOLDER / "box", hang=0)
    try:
        work = dist.all_reduce(torch.ones(4, device="cuda"), async_op=True)
        work.wait()
        torch.cuda.synchronize()
        path = blackbox.dump()
    finally:
        blackbox.uninstall()
    found = read_dumps([path])
    (dump,) = found.dumps["black box"].values()
    (call,) = dump.calls
    assert call.name == "all_reduce", call
    assert call.done is True, call
    assert call.inputs[0].device == "cuda:0", call
    assert not explain(found).found
    return str(call.site)


def end() -> None:
    import torch.distributed as dist

    dist.destroy_process_group()


CHECKS = [
    start,
    a_pickled_dump_is_read,
    a_json_dump_is_read,
    the_black_box_sees_calls_on_a_gpu,
    end,
]

if __name__ == "__main__":
    sys.exit(run_checks(CHECKS))

"""Dumps as ranks leave them, made by hand: entries as torch's Flight Recorder writes them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

LINE = {"all_reduce": 10, "broadcast": 20, "barrier": 30, "send": 40, "recv": 50}


def entry(
    operation: str,
    number: int,
    *,
    group: str = "0",
    done: bool = True,
    sizes: Any = ((4,),),
    dtype: str = "Float",
    backend: str = "nccl",
    record: int | None = None,
    line: int | None = None,
    batch: int = 0,
) -> dict[str, Any]:
    """One call; `operation` may be "send 0->1"."""
    name = operation.split(" ")[0]
    message = name in ("send", "recv")
    at = LINE.get(name, 60) if line is None else line
    lists = [list(size) for size in sizes]
    return {
        "record_id": number - 1 if record is None else record,
        "pg_id": int(group) if group.isdigit() else 0,
        "process_group": (group, "default_pg" if group == "0" else f"mesh_{group}"),
        "collective_seq_id": batch if message else number,
        "p2p_seq_id": number if message else 0,
        "op_id": number,
        "profiling_name": f"{backend}:{operation}",
        "time_created_ns": 1_700_000_000_000_000_000 + number,
        "input_sizes": lists,
        "input_dtypes": [dtype] * len(lists),
        "output_sizes": lists,
        "output_dtypes": [dtype] * len(lists),
        "state": "completed" if done else "started",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": done,
        "timeout_ms": 600000,
        "is_p2p": message,
        "frames": [
            {
                "name": name,
                "filename": "/env/site-packages/torch/distributed/distributed_c10d.py",
                "line": 1,
            },
            {"name": "step", "filename": "/job/train.py", "line": at},
            {"name": "<module>", "filename": "/job/main.py", "line": 3},
        ],
    }


def dump(
    entries: list[dict[str, Any]], *, ranks: int = 2, version: str = "2.10", **groups: Any
) -> Any:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}}
    for name, members in groups.items():
        number = name.removeprefix("g")
        config[number] = {"name": number, "desc": f"mesh_{number}", "ranks": str(members)}
    return {
        "version": version,
        "pg_config": config,
        "pg_status": {},
        "nccl_comm_state": {},
        "entries": entries,
    }


def write(folder: Path, *dumps: Any, form: str = "pickle") -> Path:
    """One file for each rank; None for a rank that left none."""
    folder.mkdir(exist_ok=True)
    for rank, each in enumerate(dumps):
        if each is None:
            continue
        if form == "json":
            (folder / f"trace_{rank}.json").write_text(json.dumps(each))
        else:
            (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(each, 2))
    return folder

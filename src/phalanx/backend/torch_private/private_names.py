"""Private torch names by which reports name modules, parameters and stages.

A part of `private.py`, under the same rule: the name, the reason, the versions. Read when
something has gone wrong, and for calls that an observer notes. If torch no longer has a name,
the report leaves it out.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from phalanx import callsite

# 2.11-2.13: the group of parameters that FSDP2 gathers together, as `self` of frames in this
# file; its name and those of its parameters are known after the first forward.
FSDP_FILE = "_fully_shard/_fsdp_param_group.py"

# 2.11-2.13: schedules keep their stage in `_stage`, those of several in `_stages`; frames of
# this file have the number of the microbatch, or the action that holds it, among their locals.
PIPELINE_FILE = "torch/distributed/pipelining/schedules.py"
_MICROBATCHES = {
    "mb_index": "microbatch {}",
    "i": "microbatch {}",
    "fwd_mb_index": "microbatch {} forward",
    "bwd_mb_index": "microbatch {} backward",
}

# 2.11-2.13: where the communication hooks of DDP are that average all gradients in one go.
_AVERAGING = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
_AVERAGING_HOOKS = ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook")


def averages(model: Any) -> bool:
    """2.11-2.13: whether DDP averages the gradients of all ranks in each synchronised backward:
    it has no communication hook, or one that is known to do so."""
    return all(
        getattr(hook, "__module__", "") == _AVERAGING
        and getattr(hook, "__name__", "") in _AVERAGING_HOOKS
        for hook, _ in model._comm_hooks
    )


def averages_last(model: Any) -> bool | None:
    """2.11-2.13: whether the backward of the last forward of a DDP model averages gradients:
    what it keeps for the next forward says whether that one was in `no_sync()`."""
    found = getattr(model, "require_forward_param_sync", None)
    return found if isinstance(found, bool) else None


def init_method_of(frame: FrameType) -> str | None:
    """2.11-2.13: how `init_process_group`, whose frame this is, finds its store: a local that
    is "env://" where nothing was given, and None with a store."""
    if frame.f_code.co_name != "init_process_group":
        return None
    found = frame.f_locals.get("init_method")
    return found if isinstance(found, str) else None


def fsdp_names(frame: FrameType) -> tuple[str | None, list[str]] | None:
    """The module whose parameters the frame gathers or scatters, and their names."""
    group = frame.f_locals.get("self")
    params = getattr(group, "fsdp_params", None)
    if params is None:
        return None
    names = [_name_of(param) for param in params]
    return getattr(group, "_module_fqn", None), [name for name in names if name]


def frame_of_program(frame: FrameType | None) -> tuple[FrameType | None, str | None]:
    """The innermost frame of the program's own; and, for a call that FSDP2 makes, the module
    whose parameters it gathers or scatters: known from the second forward on, "" for the whole
    model. Every frame on the way costs one look into a dict."""
    module: str | None = None
    is_known = False
    known = _files
    while frame is not None:
        file = frame.f_code.co_filename
        kind = known.get(file)
        if kind is None:
            library = "fsdp" if file.endswith(FSDP_FILE) else "library"
            kind = known[file] = library if callsite.is_library_file(file) else "program"
        if kind == "program":
            break
        if kind == "fsdp" and not is_known:
            group = frame.f_locals.get("self")
            if hasattr(group, "fsdp_params"):
                module, is_known = getattr(group, "_module_fqn", None), True
        frame = frame.f_back
    return frame, module


_files: dict[str, str] = {}


def _name_of(param: Any) -> str:
    known = getattr(param, "_param_fqn", None)
    info = getattr(param, "_module_info", None)
    return known or str(getattr(info, "param_name", "") or "")


def pipeline_place(frame: FrameType) -> str | None:
    """The stage and the microbatch that a frame of a schedule is at."""
    known = frame.f_locals
    action = known.get("action")
    if action is not None and hasattr(action, "stage_index"):
        return _place(action.stage_index, [f"microbatch {action.microbatch_index}"])
    stage = getattr(known.get("self"), "_stage", None)
    if stage is None:
        return None
    batches = [
        what.format(known[name]) for name, what in _MICROBATCHES.items() if name in known
    ]
    return _place(stage.stage_index, batches)


def _place(stage: int, batches: list[str]) -> str:
    return ", ".join([f"at stage {stage}", *batches])

"""What NCCL does not do, as torch uses it.

"Measured" is a run of real NCCL: torch 2.11, NCCL 2.28, three processes that share one GPU.
Elsewhere the rule is read from torch's source. File names are those of
`torch/csrc/distributed/c10d` unless a folder is given.
"""

from __future__ import annotations

import torch

from phalanx.backend.profiles.profile_rules import (
    CORRUPTS,
    CUDA,
    INPUT,
    NO_BACKEND,
    OUTPUT,
    Profile,
    ProfileRule,
    TensorUse,
)
from phalanx.backend.rank_errors import NotSupportedError, UnsupportedTypeError

POINT_TO_POINT = ("send", "recv")
REDUCE_SCATTERS = (
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
)
FLAT = (
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
)
GROUPED = ("gather", "scatter", "all_to_all", "all_to_all_single")
"""Operations made of sends and receives, in torch/csrc/cuda/nccl.cpp."""
NO_NCCL_TYPE = (torch.int16, torch.uint16, torch.uint32, torch.uint64)
SCALED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

_CONTIGUOUS = "pass c = tensor.contiguous(), and tensor.copy_(c) if it gets a result"


def _is_in_order(use: TensorUse) -> bool:
    return use.contiguous or use.channels_last


def _is_checked(use: TensorUse) -> bool:
    """Whether torch looks at the order of elements; lists that it copies need none."""
    if use.op in ("broadcast", "all_reduce", "reduce", "all_to_all", "all_to_all_single"):
        return True
    return (use.op, use.part) in (
        ("all_gather", INPUT),
        ("all_gather_into_tensor", INPUT),
        ("all_gather_into_tensor", OUTPUT),
        ("gather", INPUT),
        ("reduce_scatter", OUTPUT),
    )


def _goes_by_memory(use: TensorUse) -> bool:
    """Whether elements that lie in another order arrive in the wrong places."""
    if use.op in FLAT:
        return True
    return use.op in ("gather", "scatter") or (use.op, use.part) == ("reduce_scatter", OUTPUT)


RULES = (
    ProfileRule(
        "cuda-only",
        "NCCL takes CUDA tensors only, not {device} tensors; write tensor.cuda(), or "
        "init_process_group('cpu:gloo,cuda:nccl') to have Gloo for these",
        NO_BACKEND.source,
        lambda use: use.device != CUDA,
    ),
    ProfileRule(
        "sparse",
        "NCCL takes no {layout} tensors; write tensor.to_dense() first",
        "ProcessGroupNCCL.cpp: allreduce; Ops.cpp; measured",
        lambda use: use.layout != "strided",
        error=NotSupportedError,
    ),
    ProfileRule(
        "any-source",
        "NCCL cannot receive from just anyone; name the source",
        "Backend.hpp: recvAnysource, which ProcessGroupNCCL does not override",
        lambda use: use.any_source,
    ),
    ProfileRule(
        "no-coalesced-gather",
        "NCCL has no all_gather_coalesced; use all_gather, or the coalescing manager",
        "ProcessGroupNCCL.cpp: allgather_coalesced; measured",
        lambda use: use.op == "all_gather_coalesced",
        error=NotSupportedError,
    ),
    ProfileRule(
        "dtype",
        "NCCL has no {dtype}; it has float8 to float64, bfloat16, int8, uint8, int32, int64 "
        "and bool; convert it; where data only moves, tensor.view(torch.uint8) does",
        "ProcessGroupNCCL.cpp: getNcclDataType; measured",
        lambda use: use.dtype in NO_NCCL_TYPE and use.op not in GROUPED,
        error=UnsupportedTypeError,
    ),
    ProfileRule(
        "dtype-of-grouped",
        "NCCL has no {dtype}; convert it; where data only moves, tensor.view(torch.uint8) does",
        "torch/csrc/cuda/nccl.cpp: to_nccl_data_type; measured",
        lambda use: use.dtype in NO_NCCL_TYPE,
    ),
    ProfileRule(
        "complex-reduce-scatter",
        "NCCL scatters no sums of {dtype}; use torch.view_as_real(tensor)",
        "ProcessGroupNCCL.cpp: reduce_scatter; measured",
        lambda use: use.op in REDUCE_SCATTERS and use.dtype.is_complex,
        error=UnsupportedTypeError,
    ),
    ProfileRule(
        "complex-gather",
        "NCCL gathers no {dtype}; use all_gather, or gather torch.view_as_real(tensor)",
        "torch/csrc/cuda/nccl.cpp: gather; measured",
        lambda use: use.op == "gather" and use.dtype.is_complex,
    ),
    ProfileRule(
        "complex-reduction",
        "{dtype} tensors can be reduced by SUM and AVG, not by {reduce_op}",
        "distributed_c10d.py: all_reduce; ProcessGroupNCCL.cpp: reduce; measured",
        lambda use: (
            use.dtype.is_complex and use.reduce_op not in (None, "SUM", "AVG", "PREMUL_SUM")
        ),
    ),
    ProfileRule(
        "bits",
        "NCCL has no {reduce_op}; reduce by MAX, MIN or SUM, or use Gloo",
        "ProcessGroupNCCL.cpp: getNcclReduceOp; measured",
        lambda use: use.reduce_op in ("BAND", "BOR", "BXOR"),
    ),
    ProfileRule(
        "average-of-bool",
        "NCCL averages no bool; write tensor.float() first",
        "ProcessGroupNCCL.cpp: getNcclReduceOp; measured",
        lambda use: use.reduce_op == "AVG" and use.dtype is torch.bool,
        error=UnsupportedTypeError,
    ),
    ProfileRule(
        "premul-sum-dtype",
        "PREMUL_SUM is for float16, bfloat16, float32 and float64, not for {dtype}",
        "ProcessGroupNCCL.cpp: getNcclReduceOp; measured",
        lambda use: (
            use.reduce_op == "PREMUL_SUM"
            and use.dtype not in SCALED
            and not use.dtype.is_complex
        ),
        error=UnsupportedTypeError,
    ),
    ProfileRule(
        "uneven",
        "NCCL takes tensors of one shape only here; pad them",
        "ProcessGroupNCCL.cpp: gather, scatter: assertTypeAndSizesMatch",
        lambda use: use.uneven and use.op in ("gather", "scatter"),
    ),
    ProfileRule(
        "dense-message",
        f"a tensor with gaps (a slice, or expanded) cannot be sent or received; {_CONTIGUOUS}",
        "ProcessGroupNCCL.cpp: send, check_gpu_single_tensor; measured",
        lambda use: use.op in POINT_TO_POINT and not use.dense,
    ),
    ProfileRule(
        "dense",
        f"NCCL coalesces tensors without gaps in memory only; {_CONTIGUOUS}",
        "ProcessGroupNCCL.cpp: check_gpu_tensors_same_device; measured",
        lambda use: use.op == "all_reduce_coalesced" and not use.dense,
    ),
    ProfileRule(
        "contiguous",
        f"NCCL takes contiguous tensors only; {_CONTIGUOUS}",
        "ProcessGroupNCCL.cpp: check_gpu_single_tensor; measured",
        lambda use: _is_checked(use) and not _is_in_order(use),
    ),
    ProfileRule(
        "overlapping",
        "several elements of this tensor lie in one place (it is expanded), so that it cannot "
        "be written; pass c = tensor.contiguous(), then tensor.copy_(c)",
        "ProcessGroupNCCL.cpp: allgather writes by copy_; measured",
        lambda use: use.op == "all_gather" and use.part == OUTPUT and use.overlapping,
    ),
    ProfileRule(
        "leaf",
        "the output is a leaf that requires gradients and would be written in place; call "
        "under torch.no_grad() or pass tensor.detach()",
        "ProcessGroupNCCL.cpp: allgather writes by copy_; measured",
        lambda use: use.op == "all_gather" and use.part == OUTPUT and use.grad,
    ),
    ProfileRule(
        "by-memory",
        "NCCL would take the memory from this tensor's start on as it lies there and spoil or "
        f"mix up the data; {_CONTIGUOUS}",
        "ProcessGroupNCCL.cpp: _reduce_scatter_base, _allgather_base; measured. "
        "torch/csrc/cuda/nccl.cpp: gather and scatter take data_ptr()",
        lambda use: _goes_by_memory(use) and not use.contiguous,
        effect=CORRUPTS,
    ),
)

NCCL = Profile("nccl", RULES, ignores_tags=True)
"""Tags: ProcessGroupNCCL.cpp, send and recv do not use theirs; messages match in order."""

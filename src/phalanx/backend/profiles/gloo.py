"""What Gloo does not do, as torch uses it.

"Measured" is a run of real Gloo processes: torch 2.13 for CPU tensors, torch 2.11 for CUDA
tensors and where a version is named. File names are those of `torch/csrc/distributed/c10d`.
"""

from __future__ import annotations

import torch

from phalanx.backend.profiles.profile_rules import (
    CORRUPTS,
    CRASHES,
    CUDA,
    INPUT,
    OUTPUT,
    Profile,
    ProfileRule,
    TensorUse,
)
from phalanx.backend.rank_errors import NotSupportedError

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.bool, torch.int32, torch.int64)
COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
DTYPES = frozenset((*FLOATS, *INTEGERS, *COMPLEX))

POINT_TO_POINT = ("send", "recv")
COALESCED_GATHERS = ("all_gather_coalesced", "all_gather_into_tensor_coalesced")
FLAT_SCATTERS = ("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced")
BY_POINTER = ("all_reduce", "reduce", "broadcast")
"""Operations that take the tensor's memory as it lies there, in place."""
COPIED_BACK = (
    "all_gather",
    *COALESCED_GATHERS,
    "all_gather_into_tensor",
    "gather",
    "reduce_scatter",
    *FLAT_SCATTERS,
    "all_to_all",
)
"""Operations whose outputs are written by `copy_` from a buffer of Gloo's own."""
_SPARSE_SUM = ("all_reduce", "sparse_coo")
BITWISE = ("BAND", "BOR", "BXOR")

_LIST_TO_ALL = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 12)
"""torch 2.13 has `all_to_all` of lists on Gloo, 2.11 has not; both measured."""

_CONTIGUOUS = "pass c = tensor.contiguous(), and tensor.copy_(c) if it gets a result"


def _is_written_by_copy(use: TensorUse) -> bool:
    if use.op == "all_reduce_coalesced":
        return True
    return use.op in COPIED_BACK and use.part == OUTPUT


RULES = (
    ProfileRule(
        "no-all-to-all-of-lists",
        "Gloo has no all_to_all of lists before torch 2.12; use all_to_all_single",
        "Backend.hpp: alltoall; measured with torch 2.11",
        lambda use: use.op == "all_to_all" and not _LIST_TO_ALL,
    ),
    ProfileRule(
        "sparse",
        "Gloo takes {layout} tensors in no operation but all_reduce of COO tensors; write "
        "tensor.to_dense() first",
        "Ops.cpp registers no other operation for sparse tensors; measured",
        lambda use: use.layout != "strided" and (use.op, use.layout) != _SPARSE_SUM,
        error=NotSupportedError,
    ),
    ProfileRule(
        "sparse-sum-only",
        "Gloo reduces sparse tensors by SUM only, not by {reduce_op}; write "
        "tensor.to_dense() first",
        "ProcessGroupGloo.cpp: allreduce; measured",
        lambda use: use.layout == "sparse_coo" and use.reduce_op != "SUM",
    ),
    ProfileRule(
        "sparse-dtype",
        "torch adds no sparse tensors of {dtype}, so Gloo cannot reduce them",
        "ProcessGroupGlooDetail.hpp: AsyncSparseAllreduceWork; measured",
        lambda use: (
            use.layout == "sparse_coo"
            and use.dtype in (torch.float16, torch.bool, torch.complex32)
        ),
        error=NotSupportedError,
    ),
    ProfileRule(
        "sparse-dimensions",
        "Gloo reduces tensors of at most 4 sparse dimensions, not {sparse_dim}",
        "ProcessGroupGlooDetail.hpp: SparseTensorMetadata; measured",
        lambda use: use.sparse_dim > 4,
    ),
    ProfileRule(
        "sparse-leaf",
        "the tensor is a leaf that requires gradients and would be written in place; call "
        "under torch.no_grad() or pass tensor.detach()",
        "ProcessGroupGlooDetail.hpp: AsyncSparseAllreduceWork::run; measured",
        lambda use: use.layout == "sparse_coo" and use.grad,
    ),
    ProfileRule(
        "dtype",
        "Gloo's collectives take no {dtype}, but float16 to float64, bfloat16, int8, uint8, "
        "int32, int64, bool and complex; convert it (where data only moves, "
        "tensor.view(torch.uint8) does)",
        "ProcessGroupGlooDetail.hpp: GENERATE_ALL_TYPES; measured",
        lambda use: use.op not in POINT_TO_POINT and use.dtype not in DTYPES,
    ),
    ProfileRule(
        "complex-gather",
        "Gloo gathers no {dtype}; use all_gather, or gather torch.view_as_real(tensor)",
        "ProcessGroupGloo.cpp: AsyncGatherWork; measured",
        lambda use: use.op == "gather" and use.dtype.is_complex,
    ),
    ProfileRule(
        "complex-reduction",
        "{dtype} tensors can be reduced by SUM and AVG, not by {reduce_op}",
        "distributed_c10d.py and ProcessGroupGlooDetail.hpp: allreduce; measured",
        lambda use: (
            use.dtype.is_complex and use.reduce_op not in (None, "SUM", "AVG", "PREMUL_SUM")
        ),
    ),
    ProfileRule(
        "complex32-average",
        "torch divides no complex32, so Gloo cannot average it here; use complex64",
        "measured",
        lambda use: (
            use.dtype is torch.complex32
            and use.reduce_op == "AVG"
            and not use.op.startswith("all_reduce")
        ),
        error=NotSupportedError,
    ),
    ProfileRule(
        "premul-sum",
        "Gloo has no PREMUL_SUM, only NCCL has; multiply first, then reduce by SUM",
        "ProcessGroupGlooDetail.hpp: toFunction; measured",
        lambda use: use.reduce_op == "PREMUL_SUM",
    ),
    ProfileRule(
        "bits-of-floats",
        "{reduce_op} is for integers and bool, not for {dtype}",
        "ProcessGroupGlooDetail.hpp: toFunction; measured",
        lambda use: use.reduce_op in BITWISE and use.dtype not in INTEGERS,
    ),
    ProfileRule(
        "average-of-integers",
        "Gloo averages floating-point tensors only, not {dtype}; reduce by SUM and divide",
        "ProcessGroupGlooDetail.hpp: allreduce divides in place; measured",
        lambda use: use.reduce_op == "AVG" and use.dtype in INTEGERS,
    ),
    ProfileRule(
        "cuda-coalesced-reduction",
        "Gloo coalesces all_reduce of CPU tensors only; reduce one by one",
        "ProcessGroupGloo.cpp: allreduce_coalesced; measured with torch 2.11",
        lambda use: use.op == "all_reduce_coalesced" and use.device == CUDA,
    ),
    ProfileRule(
        "cuda-coalesced-gather",
        "Gloo takes the memory of CUDA tensors for the CPU's here, and dies; gather singly",
        "ProcessGroupGloo.cpp: allgather_coalesced; measured with torch 2.11",
        lambda use: use.op in COALESCED_GATHERS and use.device == CUDA and not use.empty,
        effect=CRASHES,
    ),
    ProfileRule(
        "cuda-point-to-point",
        "Gloo sends and receives CPU tensors only and dies of CUDA tensors; use NCCL or "
        "tensor.cpu()",
        "ProcessGroupGloo.cpp: send; measured with torch 2.11",
        lambda use: use.op in POINT_TO_POINT and use.device == CUDA and not use.empty,
        effect=CRASHES,
    ),
    ProfileRule(
        "uneven",
        "Gloo takes tensors of one shape only here; pad them, or use all_to_all_single with "
        "split sizes",
        "ProcessGroupGloo.cpp: assertTypeAndSizesMatch; measured",
        lambda use: use.uneven,
    ),
    ProfileRule(
        "other-shapes",
        "on Gloo the larger tensor must be the pieces joined along dimension 0, not stacked "
        "or of another shape; use .view() or .flatten(0, 1) on it",
        "ProcessGroupGloo.cpp: _allgather_base, reduce_scatter_tensor_coalesced; measured",
        lambda use: use.stacking and not (use.zero_dim and use.op in FLAT_SCATTERS),
    ),
    ProfileRule(
        "zero-dimensional-scatter",
        "Gloo dies of an output without dimensions; write output.view(1)",
        "ProcessGroupGloo.cpp: reduce_scatter_tensor_coalesced; measured",
        lambda use: use.zero_dim and use.part == OUTPUT and use.op in FLAT_SCATTERS,
        effect=CRASHES,
    ),
    ProfileRule(
        "nothing-from-anyone",
        "Gloo does not receive an empty tensor without a source; name it",
        "measured (gloo's transport refuses)",
        lambda use: use.any_source and use.empty,
    ),
    ProfileRule(
        "contiguous-message",
        f"Gloo sends and receives contiguous tensors only; {_CONTIGUOUS}",
        "ProcessGroupGloo.cpp: checkSingleTensor; measured",
        lambda use: use.op in POINT_TO_POINT and not use.contiguous,
    ),
    ProfileRule(
        "contiguous-rows",
        f"the tensor to be split must be contiguous; {_CONTIGUOUS}",
        "distributed_c10d.py: all_to_all_single; measured",
        lambda use: (
            use.op == "all_to_all_single"
            and use.part == INPUT
            and not (use.contiguous or use.channels_last)
        ),
    ),
    ProfileRule(
        "overlapping",
        "several elements of this tensor lie in one place (it is expanded), so that it cannot "
        "be written; pass c = tensor.contiguous(), then tensor.copy_(c)",
        "ProcessGroupGloo.cpp: outputs are written by copy_; measured",
        lambda use: use.overlapping and _is_written_by_copy(use),
    ),
    ProfileRule(
        "expanded-on-cuda",
        f"Gloo does not copy expanded CUDA tensors; {_CONTIGUOUS}",
        "ProcessGroupGlooDetail.hpp: pinnedLike; measured with torch 2.11",
        lambda use: (
            use.overlapping
            and use.device == CUDA
            and use.op not in ("reduce_scatter", *FLAT_SCATTERS)
        ),
    ),
    ProfileRule(
        "leaf",
        "the output is a leaf that requires gradients and would be written in place; call "
        "under torch.no_grad() or pass tensor.detach()",
        "ProcessGroupGloo.cpp: outputs are written by copy_; measured",
        lambda use: use.grad and _is_written_by_copy(use),
    ),
    ProfileRule(
        "gaps",
        "this tensor has gaps in memory (it is a slice or expanded); Gloo would take the "
        f"memory after its start for it and spoil the data; {_CONTIGUOUS}",
        "ProcessGroupGlooDetail.hpp: setOutputs takes data_ptr(); measured",
        lambda use: use.op in BY_POINTER and not use.dense,
        effect=CORRUPTS,
    ),
    ProfileRule(
        "other-order",
        "the tensors of this call lie in memory in different ways; Gloo would mix up their "
        f"elements; {_CONTIGUOUS}",
        "ProcessGroupGloo.cpp: AsyncScatterWork, AsyncAlltoallWork take data_ptr(); measured",
        lambda use: (
            use.op in ("scatter", "all_to_all_single") and not (use.dense and use.alike)
        ),
        effect=CORRUPTS,
    ),
    ProfileRule(
        "order-of-pieces",
        "the tensors of this call lie in memory in different ways, or with gaps; Gloo would "
        f"mix up their elements; {_CONTIGUOUS}",
        "ProcessGroupGloo.cpp: reduce_scatter; measured",
        lambda use: (
            use.op == "reduce_scatter"
            and not use.contiguous
            and (not use.alike if use.dense else use.part == OUTPUT)
        ),
        effect=CORRUPTS,
    ),
)

GLOO = Profile("gloo", RULES)

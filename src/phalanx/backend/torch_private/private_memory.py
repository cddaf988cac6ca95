"""Private torch names that concern storages.

A part of `private.py`, under the same rule: the name, the reason, the versions. Used for
tensors that are sent to ranks that are processes, for results that nobody keeps, and for copies
of many tensors.
"""

from __future__ import annotations

from typing import Any

import torch

# 2.11-2.13: copy each tensor of the second list into that of the first; on a GPU in few
# launches if all are alike. Nothing public does that.
copy_each: Any = torch._foreach_copy_


def untyped(storage: Any) -> torch.UntypedStorage:
    """2.11-2.13: the storage inside a typed one, which is what tensors hand to pickle. The
    public ways to it warn that typed storages are going away."""
    found: torch.UntypedStorage = storage._untyped_storage
    return found


def typed(storage: torch.UntypedStorage, dtype: torch.dtype) -> Any:
    """2.11-2.13: the way back."""
    made: Any = torch.storage.TypedStorage
    return made(wrap_storage=storage, dtype=dtype, _internal=True)


def owns_memory_alone(tensor: torch.Tensor) -> bool:
    """2.11-2.13: whether no other tensor has a part of this one's memory, but for the one that
    it is a view of. The storage is held by these, and by the object that is asked here."""
    try:
        storage: Any = tensor.untyped_storage()
        held = int(torch._C._storage_Use_Count(storage._cdata))
        return held == (2 if tensor._base is None else 3)
    except (AttributeError, RuntimeError):  # sparse ones, or torch has no such name any more
        return False


def share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """2.11-2.13: whether two tensors have one storage, also an empty one."""
    try:
        return bool(_cdata(one) == _cdata(other))
    except (AttributeError, RuntimeError):
        return False


def _cdata(tensor: torch.Tensor) -> Any:
    storage: Any = tensor.untyped_storage()
    return storage._cdata


def shared_fd(storage: Any) -> int:
    """2.11-2.13: the file behind a storage in shared memory; it stays the storage's."""
    return int(storage._share_fd_cpu_()[0])


def storage_from_fd(fd: int, size: int) -> torch.UntypedStorage:
    """2.11-2.13: a storage that maps this file, shared with all who do."""
    made: Any = torch.UntypedStorage
    found: torch.UntypedStorage = made._new_shared_fd_cpu(fd, size)
    return found


def shared_name(storage: Any) -> tuple[Any, ...]:
    """2.11-2.13: where a storage in shared memory is found under the sharing strategy
    `file_system`: its manager, its handle, and its size."""
    return tuple(storage._share_filename_cpu_())


def storage_of_name(*name: Any) -> torch.UntypedStorage:
    """2.11-2.13: the way back."""
    made: Any = torch.UntypedStorage
    found: torch.UntypedStorage = made._new_shared_filename_cpu(*name)
    return found

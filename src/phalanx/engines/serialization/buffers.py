"""The bytes of tensors, on their way between the program and its ranks.

Used by `serialization.py`, at both ends. Small storages travel as bytes within the pickle.
Large ones are written once into a file in memory, which every receiver maps privately: all read
the same pages, and whoever writes gets a copy of just those. So nobody sees what another one
writes. The file has no name, so nothing is left of it when all who hold it are gone, however
they end. A storage that the program itself put into shared memory (`share_memory_`) stays
shared.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import threading
import weakref
from typing import Any

import torch
from torch import multiprocessing as _multiprocessing

from phalanx.backend.torch_private import private_memory
from phalanx.errors import UsageError

SMALL = 1 << 17
"""Below so many bytes a file costs more than copies do: a call on 4 ranks took 1.8 ms with
128 KiB as bytes and 2.2 ms in a file; with 1 MiB it took 10.9 and 6.8 ms."""

CHUNK = 1 << 26
"""A file that holds so many bytes is full: it lives as long as any one tensor in it."""

_libc = ctypes.CDLL(None, use_errno=True)

# Typed as Any because torch leaves these without types.
multiprocessing: Any = _multiprocessing
new_storage: Any = torch.UntypedStorage


class Memory:
    """A file in memory. Its number belongs to one process and travels beside the message."""

    def __init__(self, fd: int = -1, size: int = 0, *, shared: bool = False) -> None:
        self.fd = fd
        self.size = size
        self.shared = shared
        self.full = shared
        self.buffers: list[tuple[int, int, int]] = []
        """(which, offset, size) of what is in it besides storages."""

    def __reduce__(self) -> Any:
        return _unopened, (self.size, self.shared, self.buffers)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _unopened(size: int, shared: bool, buffers: list[tuple[int, int, int]]) -> Memory:
    memory = Memory(size=size, shared=shared)
    memory.buffers = buffers
    return memory


class PackedStorage:
    """A storage that is packed: equal for all tensors that look into it, so these still look
    into one storage when they arrive."""

    def __init__(self, reduced: tuple[Any, ...]) -> None:
        self._reduced = reduced

    def __reduce__(self) -> Any:
        return self._reduced


class Hold:
    """Where a serialized's storages are put. `inline`: all of them into the pickle itself.
    `sharing`: what is in shared memory stays there, however small."""

    def __init__(self, *, inline: bool = False, sharing: bool = False) -> None:
        self.memories: list[Memory] = []
        self._sharing = sharing
        self._inline = inline or not hasattr(os, "memfd_create")
        self._blocks: dict[tuple[str, int, int], PackedStorage] = {}
        self._kept: list[Any] = []  # an address must not be given away meanwhile
        self._buffers = 0

    def reduce(self, thing: Any) -> Any:
        """How pickle is to save a storage; NotImplemented for what is none of ours."""
        if isinstance(thing, torch.storage.TypedStorage):
            storage, dtype = private_memory.untyped(thing), thing.dtype
        elif isinstance(thing, torch.UntypedStorage):  # that of a uint16 tensor, for example
            storage, dtype = thing, torch.uint8
        else:
            return NotImplemented
        block = self._block(storage)
        return NotImplemented if block is None else (private_memory.typed, (block, dtype))

    def _block(self, storage: torch.UntypedStorage) -> PackedStorage | None:
        if storage.device.type not in ("cpu", "cuda"):
            return None
        key = (str(storage.device), storage.data_ptr(), storage.nbytes())
        block = self._blocks.get(key)
        if block is None:
            self._kept.append(storage)
            block = self._blocks[key] = PackedStorage(self._put(storage))
        return block

    def _put(self, storage: Any) -> tuple[Any, ...]:
        size = storage.nbytes()
        if storage.device.type == "cuda":
            # Not by CUDA's own way to share: that would let ranks write into each other's.
            return _on_device, (PackedStorage(self._put(storage.cpu())), str(storage.device))
        if (
            size
            and storage.is_shared()
            and not self._inline
            and (size >= SMALL or self._sharing)
        ):
            by_file = multiprocessing.get_sharing_strategy() == "file_descriptor"
            fd = private_memory.shared_fd(storage) if by_file else -1
            if fd >= 0:  # a file that the program has mapped itself has none
                self.memories.append(Memory(os.dup(fd), size, shared=True))
                return _shared, (len(self.memories) - 1, size)
            if self._sharing and not by_file:  # and lives on until it is opened
                return private_memory.storage_of_name, private_memory.shared_name(storage)
        if size < SMALL or self._inline:
            return _from_bytes, (ctypes.string_at(storage.data_ptr(), size),)
        place = self._write(storage.data_ptr(), size)
        if place is None:
            return _from_bytes, (ctypes.string_at(storage.data_ptr(), size),)
        return _mapped, (*place, size)

    def take_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """For pickle: False for a buffer (NumPy's, for example) that went into a file."""
        view = buffer.raw()
        size = view.nbytes
        if size < SMALL or self._inline:
            return True
        source: Any = view if not view.readonly else bytearray(view)
        place = self._write(ctypes.addressof(ctypes.c_char.from_buffer(source)), size)
        if place is None:
            return True
        index, offset = place
        self.memories[index].buffers.append((self._buffers, offset, size))
        self._buffers += 1
        return False

    def _write(self, address: int, size: int) -> tuple[int, int] | None:
        """Which file the bytes went into and where; None if there are no such files here."""
        memory = self._room()
        if memory is None:
            return None
        offset = memory.size
        _write(memory.fd, address, size, offset)
        memory.size += -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        memory.full = memory.size >= CHUNK
        return self.memories.index(memory), offset

    def _room(self) -> Memory | None:
        for memory in self.memories:
            if not memory.full:
                return memory
        try:
            fd = os.memfd_create("phalanx", os.MFD_CLOEXEC)
        except PermissionError:  # a sandbox that forbids it
            self._inline = True
            return None
        self.memories.append(Memory(fd))
        return self.memories[-1]


def _write(fd: int, address: int, size: int, offset: int) -> None:
    done = 0
    while done < size:
        rest = (ctypes.c_char * (size - done)).from_address(address + done)
        done += os.pwrite(fd, rest, offset + done)


# -- in the receiver ------------------------------------------------------------------------


class _Arriving(threading.local):
    """Serialized values that this thread is opening, the innermost last."""

    def __init__(self) -> None:
        self.memories: list[tuple[Memory, ...]] = []


_arriving = _Arriving()


class IncomingMemory:
    """While a serialized is opened: where its pickle finds the memory that came with it."""

    def __init__(self, memories: tuple[Memory, ...]) -> None:
        self._memories = memories

    def __enter__(self) -> list[Any]:
        """The buffers that pickle wants beside its data."""
        _arriving.memories.append(self._memories)
        found = [(*each, memory.fd) for memory in self._memories for each in memory.buffers]
        return [_mapped_bytes(fd, size, offset) for _, offset, size, fd in sorted(found)]

    def __exit__(self, *error: object) -> None:
        _arriving.memories.pop()
        for memory in self._memories:
            memory.close()  # what is mapped stays


def _from_bytes(data: bytes) -> torch.UntypedStorage:
    storage: torch.UntypedStorage = new_storage(len(data))
    ctypes.memmove(storage.data_ptr(), data, len(data))
    return storage


def _on_device(storage: torch.UntypedStorage, device: str) -> torch.UntypedStorage:
    index = torch.device(device).index or 0
    if index >= torch.cuda.device_count():
        raise UsageError(
            f"a tensor on {device} was sent to a process that has {torch.cuda.device_count()} "
            "CUDA devices; send it as tensor.cpu()"
        )
    moved: torch.UntypedStorage = storage.to(device=torch.device(device))
    return moved


def _shared(index: int, size: int) -> torch.UntypedStorage:
    return private_memory.storage_from_fd(_arriving.memories[-1][index].fd, size)


def _mapped(index: int, offset: int, size: int) -> torch.UntypedStorage:
    """Not by `mmap.mmap`, which keeps a file descriptor for as long as the memory lives."""
    memory = _mapped_bytes(_arriving.memories[-1][index].fd, size, offset)
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()


def _mapped_bytes(fd: int, size: int, offset: int) -> Any:
    address = _map(fd, size, offset)
    memory = (ctypes.c_ubyte * size).from_address(address)
    # Not at exit: a thread may still be reading.
    weakref.finalize(memory, _libc.munmap, ctypes.c_void_p(address), size).atexit = False
    return memory


_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def _map(fd: int, size: int, offset: int) -> int:
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address = _libc.mmap(None, size, protection, mmap.MAP_PRIVATE, fd, offset)
    if address in (None, ctypes.c_void_p(-1).value):
        number = ctypes.get_errno()
        raise OSError(number, f"cannot map {size} bytes: {os.strerror(number)}")
    return int(address)

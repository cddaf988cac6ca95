"""Read a pickle that nobody vouches for: plain data comes out of it, or an error.

A pickle can name any function and have it called. This reader lets none be named: dicts, lists,
tuples, sets, text, bytes and numbers are built by the opcodes of the format itself, and that is
all that a dump consists of. Sizes that a few bytes announce are refused as well.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any, NoReturn

from phalanx.explain.rank_dump import DumpError

LARGEST = 1 << 30
"""Bytes of a dump: a ring of the default size has a few megabytes."""

_NAMING = frozenset(
    {"GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "REDUCE", "BUILD", "NEWOBJ", "NEWOBJ_EX"}
    | {"EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER"}
)


class _PlainUnpickler(pickle.Unpickler):
    """The second lock: the opcodes have been looked at before."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to objects outside")


def load_plain(data: bytes, name: str) -> Any:
    """The plain data in a pickle. Raises `DumpError`; carries nothing out."""
    if len(data) > LARGEST:
        raise DumpError(f"{name}: {len(data) >> 20} MiB; no dump of a ring is that large")
    _check_opcodes(data, name)
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except RecursionError:
        raise DumpError(f"{name}: nested too deeply for a dump; it was not read") from None
    except MemoryError:
        raise DumpError(f"{name}: it asks for more memory than there is; not read") from None
    except Exception as error:  # whatever a damaged pickle leads to
        raise DumpError(_damaged(name, error)) from None


def _check_opcodes(data: bytes, name: str) -> None:
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in _NAMING:
                named = _shown(argument).replace(" ", ".") if isinstance(argument, str) else ""
                what = f" ({named})" if named else ""
                raise DumpError(
                    f"{name}: this pickle would build objects or call functions{what}; a dump "
                    "of the Flight Recorder has plain data only. It was not read: find out "
                    "where it came from"
                )
    except DumpError:
        raise
    except Exception as error:
        raise DumpError(_damaged(name, error)) from None


def _damaged(name: str, error: Exception) -> str:
    return (
        f"{name}: the pickle is damaged or ends in the middle ({_shown(str(error))}); the rank "
        "may have died while it wrote: leave the file out"
    )


def _shown(text: str) -> str:
    return text.splitlines()[0][:80] if text else "no more is known"

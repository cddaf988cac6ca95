"""Decide which processes that a program starts are meant as ranks. Pure functions.

Processes of `torch.multiprocessing.spawn` and `start_processes` are always ranks. Other
`Process` objects are ranks if they are started together and are numbered 0, 1, 2, ... (or 1, 2,
...) by one of their arguments, by an attribute of a subclass of `Process`, or by RANK or
LOCAL_RANK in the environment; a single process only if that argument is called `rank` or the
like. Workers of data loaders, pools and managers are never ranks: their code is not the
program's. Used by `spawned_ranks.py`.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

RANK_NAMES = frozenset(
    {
        "dist_rank",
        "global_rank",
        "gpu",
        "gpu_id",
        "local_rank",
        "my_rank",
        "node_rank",
        "proc_id",
        "process_index",
        "rank",
        "rank_id",
        "world_rank",
    }
)
VARIABLES = ("RANK", "LOCAL_RANK")

_MAIN = ("__main__", "__mp_main__")
_LIBRARIES = tuple(
    os.path.realpath(sysconfig.get_path(name)) + os.sep
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def is_torch_spawn(process: Any) -> bool:
    """Whether it runs torch's function that calls the program's function with a number."""
    target = getattr(process, "_target", None)
    return (
        getattr(target, "__module__", None) == "torch.multiprocessing.spawn"
        and getattr(target, "__name__", None) == "_wrap"
    )


def could_be_rank(process: Any, environ: Mapping[str, str]) -> bool:
    """Whether this process alone, before others are started, might be meant as a rank."""
    if is_torch_spawn(process):
        return True
    return is_programs_own(code_of(process)) and bool(numbers_of(process, environ))


def code_of(process: Any) -> Any:
    """The function or class that the child will run."""
    target = getattr(process, "_target", None)
    while isinstance(target, functools.partial):
        target = target.func
    return type(process) if target is None else target


def is_programs_own(code: Any) -> bool:
    """Whether this is defined in the program: not in the standard library, nor installed."""
    name = getattr(code, "__module__", None)
    if name in _MAIN:
        return True
    path = getattr(sys.modules.get(str(name)), "__file__", None)
    if path is None:
        return False
    return not os.path.realpath(path).startswith(_LIBRARIES)


def numbers_of(process: Any, environ: Mapping[str, str]) -> dict[str, int]:
    """Integers that could be the rank, by the name of the argument, attribute or variable."""
    found: dict[str, int] = {}
    names = _parameter_names(getattr(process, "_target", None))
    for place, value in enumerate(getattr(process, "_args", ())):
        name = names[place] if place < len(names) else str(place)
        found[name] = value
    found.update(getattr(process, "_kwargs", {}))
    found.update((k, v) for k, v in vars(process).items() if not k.startswith("_"))
    for name in VARIABLES:
        value = environ.get(name, "")
        if value.isdecimal():
            found[name] = int(value)
    return {k: v for k, v in found.items() if type(v) is int and v >= 0}


def _parameter_names(target: Any) -> list[str]:
    try:
        return list(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        return []


def find_numbers(
    processes: Sequence[Any], environs: Sequence[Mapping[str, str]]
) -> list[int] | None:
    """The ranks of processes that were started together, in this order; None: they are no
    ranks. A numbering that begins at 1 is kept: rank 0 may be the program itself."""
    if all(map(is_torch_spawn, processes)):
        given = [process._args[1] for process in processes]
        return given if sorted(given) == list(range(len(given))) else list(range(len(given)))
    found = [numbers_of(each, env) for each, env in zip(processes, environs, strict=True)]
    common = [name for name in found[0] if all(name in each for each in found)]
    common.sort(key=lambda name: not _is_rank_name(name))  # these decide first
    for name in common:
        values = [each[name] for each in found]
        first = min(values)
        if first > 1 or sorted(values) != list(range(first, first + len(values))):
            continue
        if len(values) > 1 or _is_rank_name(name):
            return values
    return None


def _is_rank_name(name: str) -> bool:
    return name.lower() in RANK_NAMES


def split_batch(
    processes: Sequence[Any], environs: Sequence[Mapping[str, str]]
) -> list[tuple[int, int]]:
    """(place in the batch, rank) of the ranks: all processes if they are numbered together,
    else those with the same code that are."""
    numbers = find_numbers(processes, environs)
    if numbers is not None:
        return list(enumerate(numbers))
    found: list[tuple[int, int]] = []
    alike: dict[Any, list[int]] = {}
    for place, process in enumerate(processes):
        alike.setdefault(code_of(process), []).append(place)
    for places in alike.values():
        chosen = [processes[place] for place in places]
        numbers = find_numbers(chosen, [environs[place] for place in places])
        if numbers is not None and not found:
            found = list(zip(places, numbers, strict=True))
    return found


def find_launches(
    processes: Sequence[Any], environs: Sequence[Mapping[str, str]], starters: Sequence[int]
) -> list[list[int]]:
    """Places in the batch. Threads of the program, `starters`, may have started ranks at the
    same time, each from number 0 on; else all of them are one launch."""
    together = [list(range(len(processes)))]
    if len(set(starters)) == 1 or find_numbers(processes, environs) is not None:
        return together
    launches: dict[int, list[int]] = {}
    for place, starter in enumerate(starters):
        launches.setdefault(starter, []).append(place)
    first = [
        places
        for places in launches.values()
        if any(0 in numbers_of(processes[p], environs[p]).values() for p in places)
        and _is_begun([processes[p] for p in places], [environs[p] for p in places])
    ]
    return list(launches.values()) if len(first) > 1 else together


def _is_begun(processes: Sequence[Any], environs: Sequence[Mapping[str, str]]) -> bool:
    """Whether these are ranks, or the first of them."""
    return len(processes) == 1 or find_numbers(processes, environs) is not None


def is_complete(processes: Sequence[Any], environs: Sequence[Mapping[str, str]]) -> bool:
    """Whether all ranks of a launch are started, as far as is known."""
    expected = find_expected(processes, environs)
    if expected is None:
        return find_numbers(processes, environs) is not None
    return expected <= len(processes)


SIZE_NAMES = frozenset(
    {"nprocs", "num_processes", "num_ranks", "ranks", "size", "world", "world_size"}
)


def find_expected(
    processes: Sequence[Any], environs: Sequence[Mapping[str, str]]
) -> int | None:
    """The number of ranks, if the processes started so far give it: by an argument that is
    called `world_size` or the like, or by WORLD_SIZE in the environment. The program itself may
    be one of them. None if they do not."""
    if all(map(is_torch_spawn, processes)):
        return None
    for process, environ in zip(processes, environs, strict=True):
        found = {k.lower(): v for k, v in numbers_of(process, environ).items()}
        given = [found[name] for name in sorted(SIZE_NAMES) if name in found]
        if environ.get("WORLD_SIZE", "").isdecimal():
            given.append(int(environ["WORLD_SIZE"]))
        if given:
            return max(given)
    return None


def lacks_rank_0(processes: Sequence[Any], environs: Sequence[Mapping[str, str]]) -> bool:
    """Whether these are all ranks but the first: that must be the program itself."""
    numbers = find_numbers(processes, environs)
    expected = find_expected(processes, environs)
    return numbers is not None and min(numbers) == 1 and expected == len(numbers) + 1


def asked_size(given: Mapping[str, Any], environ: Mapping[str, str]) -> int:
    """The number of ranks that a call of `init_process_group` with these arguments asks for:
    by `world_size`, by the address, or by the environment. -1: nothing says it."""
    return _asked("world_size", given, environ)


def asked_rank(given: Mapping[str, Any], environ: Mapping[str, str]) -> int:
    """The rank that the call makes its caller, found in the same places."""
    return _asked("rank", given, environ)


def asked_place(given: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Where the members of the group meet: an address, or the store that is given."""
    store, address = given.get("store"), given.get("init_method") or "env://"
    if store is not None:
        where = getattr(store, "path", None) or getattr(store, "port", "")
        return f"store={type(store).__name__}({where})"
    parts = urlsplit(str(address))
    if parts.scheme != "env":
        return f"{parts.scheme}://{parts.netloc}{parts.path}"
    return f"tcp://{environ.get('MASTER_ADDR', '')}:{environ.get('MASTER_PORT', '')}"


def _asked(name: str, given: Mapping[str, Any], environ: Mapping[str, str]) -> int:
    number = given.get(name, -1)
    if isinstance(number, int) and number != -1:
        return number
    address = given.get("init_method") or "env://"
    if given.get("store") is not None or not isinstance(address, str):
        return -1
    parts = urlsplit(address)
    texts = parse_qs(parts.query).get(name, [])
    if not texts and parts.scheme == "env":
        texts = [environ.get(name.upper(), "")]
    return int(texts[-1]) if texts and texts[-1].isdecimal() else -1


LAUNCHER = "torch.distributed.elastic"
"""The package of torch's own launcher."""
_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")


def is_launcher(command: Any) -> bool:
    """Whether a command of `subprocess` starts torch's own launcher."""
    words = command.split() if isinstance(command, str) else command
    if not isinstance(words, (list, tuple)):
        return False
    return any(os.path.basename(str(word)) in _LAUNCHERS for word in words)

"""What `phalanx doctor` knows of a machine, and what it concludes: facts in, hints out.

The facts are collected by `cli/machine_facts.py`; here nothing asks the system, so tests give
their own. `find_hints` says what will not work, and what to do about it. Must never import
torch: the doctor answers also where torch cannot be imported.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

WRONG = "wrong"
NOTE = "note"

TORCH_FROM, TORCH_BELOW = (2, 11), (2, 15)
REGIONS_FROM = (2, 13)
"""From this version on torch keeps what it compiles apart for callers who ask for it."""
PYTHON_FROM = (3, 10)
FRAMES_BUG = ((3, 11), (3, 11, 9))
"""From, and fixed in: gh-106883."""

MEGA = 1 << 20
SMALL_MEMORY = 128 * MEGA
"""Of shared memory: Docker gives 64 MiB, which the workers of one data loader may fill."""
FILES_OF_PROGRAM = 64
THREADS_OF_PROGRAM = 32
"""What a program has open, and starts, besides what the engines need."""


@dataclass(frozen=True)
class TorchFacts:
    """What only an import of torch can tell. `error` says why there was none."""

    error: str | None = None
    cuda: str | None = None
    backends: dict[str, bool] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    own_folder: bool | None = None
    """Whether ranks on threads can each have a current folder."""


@dataclass(frozen=True)
class Limits:
    """None: unlimited, or this system does not tell."""

    cores: int = 1
    threads: int | None = None
    threads_used: int = 0
    open_files: int | None = None
    most_open_files: int | None = None
    """What a user may raise the limit to."""
    shared_memory: int | None = None
    shared_memory_free: int | None = None
    ports: tuple[int, int] | None = None
    port_error: str | None = None
    """Why no port could be opened on this machine's own address."""
    name_error: str | None = None
    """Why the machine's own name leads to no address."""


@dataclass(frozen=True)
class ReplacedName:
    """One replaced name, as the table of patches has it."""

    owner: str
    name: str
    when: str
    why: str
    undo: str
    also: str = ""


@dataclass(frozen=True)
class Health:
    """Everything that `phalanx doctor` prints."""

    versions: dict[str, str | None]
    """Of Phalanx, Python, torch and what Phalanx uses; None: not installed."""
    python: tuple[int, ...]
    system: str
    libraries: dict[str, str | None]
    torch: TorchFacts
    limits: Limits
    environment: dict[str, str]
    modes: dict[str, str]
    """When the names of a mode are replaced."""
    patches: tuple[ReplacedName, ...]
    ranks: int
    """So many shall be able to run."""


@dataclass(frozen=True)
class Hint:
    level: str
    what: str
    remedy: str = ""


def find_hints(health: Health) -> list[Hint]:
    """What is wrong first, then what is worth knowing."""
    found = [
        *_about_python(health.python),
        *_about_torch(health),
        *_about_packages(health),
        *_about_limits(health.limits, health.ranks),
        *_about_network(health.limits),
    ]
    return sorted(found, key=lambda hint: hint.level != WRONG)


def as_data(health: Health, hints: list[Hint]) -> dict[str, Any]:
    """For `--json`."""
    return {
        "wrong": sum(hint.level == WRONG for hint in hints),
        "hints": [asdict(hint) for hint in hints],
        **asdict(health),
    }


def _about_python(version: tuple[int, ...]) -> list[Hint]:
    shown = ".".join(map(str, version[:3]))
    if version < PYTHON_FROM:
        return [Hint(WRONG, f"Python {shown}: Phalanx needs Python 3.10 or later")]
    if FRAMES_BUG[0] <= version < FRAMES_BUG[1]:
        return [
            Hint(
                NOTE,
                f"Python {shown} can stand still when one thread asks for the frames of the "
                "others (gh-106883). Phalanx asks in a way that avoids it; profilers and "
                "debuggers may not",
                "Python 3.11.9 or later has it fixed",
            )
        ]
    return []


def _about_torch(health: Health) -> list[Hint]:
    installed, torch = health.versions.get("torch"), health.torch
    if installed is None:
        return [Hint(WRONG, "torch is not installed", "pip install torch")]
    if torch.error is not None:
        text = f"torch {installed} is installed, but cannot be used: {torch.error}"
        return [Hint(WRONG, text, "python -c 'import torch.distributed' shows the whole error")]
    found = []
    version = _numbers(installed)
    if not TORCH_FROM <= version < TORCH_BELOW:
        found.append(
            Hint(
                WRONG,
                f"torch {installed}: Phalanx knows torch 2.11 to 2.14, and relies on private "
                "names of these versions",
                "pip install 'torch>=2.11,<2.15'",
            )
        )
    elif version < REGIONS_FROM:
        found.append(
            Hint(
                NOTE,
                f"torch {installed} keeps what torch.compile makes of a function once for all "
                "ranks of a process: where it depends on the rank, results are wrong",
                "torch 2.13, --engine processes, or TORCH_COMPILE_DISABLE=1",
            )
        )
    if not torch.backends.get("gloo", False):
        found.append(
            Hint(
                WRONG,
                "this torch was built without Gloo: --engine processes and torchrun have no "
                "backend for tensors of the CPU; --engine threads needs none",
            )
        )
    found += _about_gpus(torch, health.ranks)
    if torch.own_folder is False:
        found.append(
            Hint(
                NOTE,
                "this system does not let threads have current folders of their own (unshare "
                "is forbidden, as in some containers): a thread that a rank starts finds the "
                "folder of the rank that runs",
                "--engine processes for programs whose threads use os.chdir",
            )
        )
    return found


def _about_gpus(torch: TorchFacts, ranks: int) -> list[Hint]:
    if not torch.gpus:
        return []
    found = []
    if not torch.backends.get("nccl", False):
        text = "there are GPUs, but this torch was built without NCCL"
        found.append(Hint(NOTE, text, "--engine threads has a group that behaves as NCCL's"))
    if len(torch.gpus) < ranks:
        have = "1 GPU" if len(torch.gpus) == 1 else f"{len(torch.gpus)} GPUs"
        found.append(
            Hint(
                NOTE,
                f"{ranks} ranks are more than there are GPUs ({have}): NCCL refuses two ranks "
                "on one GPU",
                "--engine threads: ranks share what is there, each sees a GPU of its own",
            )
        )
    return found


def _about_packages(health: Health) -> list[Hint]:
    if health.versions.get("cloudpickle") is None:
        return [
            Hint(
                WRONG,
                "cloudpickle is not installed: functions that no module holds (lambdas, those "
                "of a notebook) cannot go to ranks that are processes",
                "pip install cloudpickle",
            )
        ]
    return []


def files_needed(ranks: int) -> int:
    """By the program, or by one of its ranks, on processes: each rank has a connection to each
    other, and the program some to each rank."""
    return FILES_OF_PROGRAM + max(24 + 2 * ranks, 12 + 5 * ranks)


def threads_needed(ranks: int, cores: int) -> int:
    """On processes, which need more of them: torch starts one for each core in every rank."""
    return THREADS_OF_PROGRAM + ranks * (4 + cores)


def _about_limits(limits: Limits, ranks: int) -> list[Hint]:
    found = []
    files = files_needed(ranks)
    if limits.open_files is not None and limits.open_files < files:
        most = limits.most_open_files
        can_raise = most is None or most >= files
        found.append(
            Hint(
                WRONG,
                f"{limits.open_files} open files are allowed: {ranks} ranks on processes need "
                f"about {files}",
                f"ulimit -n {max(files, 4096) if most is None else min(most, max(files, 4096))}"
                if can_raise
                else "fewer ranks, --engine threads, or a higher hard limit (limits.conf)",
            )
        )
    threads = threads_needed(ranks, limits.cores)
    if limits.threads is not None and limits.threads - limits.threads_used < threads:
        found.append(
            Hint(
                WRONG,
                f"{limits.threads} threads are allowed and {limits.threads_used} are there: "
                f"{ranks} ranks on processes need about {threads}",
                "fewer ranks, --engine threads, OMP_NUM_THREADS=1, or a higher limit (ulimit "
                "-u, docker run --pids-limit)",
            )
        )
    if limits.shared_memory is not None and limits.shared_memory < SMALL_MEMORY:
        size = limits.shared_memory // MEGA
        found.append(
            Hint(
                NOTE,
                f"/dev/shm has {size} MiB: the workers of torch's data loaders send tensors "
                "through it, and die with a bus error when it is full",
                "docker run --shm-size=2g, or num_workers=0",
            )
        )
    return found


def _about_network(limits: Limits) -> list[Hint]:
    found = []
    if limits.port_error is not None:
        found.append(
            Hint(
                WRONG,
                f"no port can be opened on 127.0.0.1 ({limits.port_error}): --engine processes "
                "and torchrun cannot start; --engine threads needs no port",
            )
        )
    if limits.name_error is not None:
        found.append(
            Hint(
                NOTE,
                f"the name of this machine leads to no address ({limits.name_error}): Gloo "
                "looks it up in programs that make their own groups",
                "add it to /etc/hosts, or set GLOO_SOCKET_IFNAME=lo",
            )
        )
    return found


def _numbers(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` is (2, 13)."""
    parts = version.partition("+")[0].split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())

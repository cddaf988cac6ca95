"""What `phalanx doctor` asks this machine. What it means is decided in `report/health.py`.

torch is asked in a process of its own: it takes a second to import, and where it is broken it
may take the process that imports it down. Everything else is read here, within milliseconds.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from phalanx import __version__
from phalanx.emulation.modules.known_libraries import LIBRARIES
from phalanx.emulation.patch_table import MODES, TABLE
from phalanx.report.health import Health, Limits, ReplacedName, TorchFacts

PATIENCE = 120.0
"""Seconds that torch may take: a driver that hangs should not make the doctor hang."""
USED = ("torch", "numpy", "cloudpickle", "pytest", "pytest-xdist", "hypothesis")
TELLING = (
    *("CUDA_VISIBLE_DEVICES", "GLOO_", "LOCAL_RANK", "MASTER_", "NCCL_", "OMP_NUM_THREADS"),
    *("PHALANX_", "PYTEST_ADDOPTS", "PYTHON", "RANK", "TORCH", "WORLD_SIZE"),
)
"""What names of environment variables begin with that change what programs do."""
_PROBE = "from phalanx.cli import torch_probe; torch_probe.main()"


def collect(ranks: int) -> Health:
    return Health(
        versions={
            "phalanx": __version__,
            "Python": platform.python_version(),
            **{name: version_of(name) for name in USED},
        },
        python=tuple(sys.version_info[:3]),
        system=f"{platform.platform()}, {platform.python_implementation()}",
        libraries={
            library.distribution: version_of(library.distribution) for library in LIBRARIES
        },
        torch=ask_torch(),
        limits=read_limits(),
        environment=telling_variables(),
        modes=MODES,
        patches=tuple(ReplacedName(*row) for row in TABLE),
        ranks=ranks,
    )


def version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def ask_torch() -> TorchFacts:
    """Whatever happens to the process that is asked becomes `error`."""
    command = [sys.executable, "-c", _PROBE]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return TorchFacts(f"no answer within {PATIENCE:g} s")
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
        answer["gpus"] = tuple(answer["gpus"])
        return TorchFacts(**answer)
    except (IndexError, KeyError, TypeError, ValueError):
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return TorchFacts(last)


def read_limits() -> Limits:
    files, most_files = _files()
    size, free = _shared_memory()
    threads, used = _threads()
    affinity = getattr(os, "sched_getaffinity", None)
    return Limits(
        cores=len(affinity(0)) if affinity is not None else os.cpu_count() or 1,
        threads=threads,
        threads_used=used,
        open_files=files,
        most_open_files=most_files,
        shared_memory=size,
        shared_memory_free=free,
        ports=_ports(),
        port_error=_port_error(),
        name_error=_name_error(),
    )


def telling_variables() -> dict[str, str]:
    return {key: value for key, value in sorted(os.environ.items()) if key.startswith(TELLING)}


def _files() -> tuple[int | None, int | None]:
    return _limit("RLIMIT_NOFILE")


def _limit(name: str) -> tuple[int | None, int | None]:
    """Soft and hard; None: no limit, or none on this system."""
    try:
        import resource
    except ImportError:
        return None, None
    kind = getattr(resource, name, None)
    if kind is None:
        return None, None
    soft, hard = (
        None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(kind)
    )
    return soft, hard


def _threads() -> tuple[int | None, int]:
    """The tightest of the user's limit, the container's and the system's, and how many there
    are that count."""
    group = _pids_group()
    in_group = _number(group / "pids.max")
    if in_group is not None:
        return in_group, _number(group / "pids.current") or 0
    found = [_limit("RLIMIT_NPROC")[0], _number(Path("/proc/sys/kernel/threads-max"))]
    known = [each for each in found if each is not None]
    return (min(known) if known else None), _threads_of_user()


def _pids_group() -> Path:
    """The control group of this process, where its system has them (version 2, or 1)."""
    root = Path("/sys/fs/cgroup")
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, names, path = line.split(":", 2)
            if number == "0" or "pids" in names.split(","):
                group = root / ("pids" if names else "") / path.lstrip("/")
                if (group / "pids.max").exists():
                    return group
    return root


def _threads_of_user() -> int:
    """All threads of this user's processes: what the user's limit counts."""
    total, user = 0, os.getuid() if hasattr(os, "getuid") else -1
    with suppress(OSError):
        for process in os.scandir("/proc"):
            with suppress(OSError):
                if process.name.isdigit() and process.stat().st_uid == user:
                    total += len(os.listdir(f"{process.path}/task"))
    return total


def _number(path: Path) -> int | None:
    """What a file of the system says; None for no limit, or no such file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _shared_memory() -> tuple[int | None, int | None]:
    try:
        found = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return None, None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _ports() -> tuple[int, int] | None:
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return None
    return int(first), int(last)


def _port_error() -> str | None:
    try:
        with socket.create_server(("127.0.0.1", 0)):
            return None
    except OSError as error:
        return str(error)


def _name_error() -> str | None:
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError as error:
        return f"{socket.gethostname()}: {error.strerror or error}"
    return None

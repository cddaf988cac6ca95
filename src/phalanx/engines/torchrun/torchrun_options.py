"""torchrun's options: which there are, and what we add where its own choice would not work.

Used by the command line. `arguments_for` is the line that `torch.distributed.run` gets. Must
never start anything.
"""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.engines.torchrun.addresses import is_here, is_loopback, own_address
from phalanx.errors import UsageError

WITH_VALUE = (
    "node-rank",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "monitor-interval",
    "start-method",
    "role",
    "log-dir",
    "redirects",
    "tee",
    "local-ranks-filter",
    "duplicate-stdout-filters",
    "duplicate-stderr-filters",
    "event-log-handler",
    "logs-specs",
    "local-addr",
    "numa-binding",
    "signals-to-handle",
    "shutdown-timeout",
    "master-addr",
    "master-port",
)
MAX_RESTARTS = "max-restarts"
"""An option of ours, too, which means the same there."""

LAUNCHER_FLAGS = ("standalone", "virtual-local-rank")

Given = Mapping[str, "str | bool | None"]


def arguments_for(given: Given, *, per_node: str, nnodes: str) -> list[str]:
    """The options for torch's launcher. `given` maps an option's name to what was given."""
    options: dict[str, str] = {
        name: str(given[name])
        for name in (*WITH_VALUE, MAX_RESTARTS)
        if given.get(name) is not None
    }
    flags = [name for name in LAUNCHER_FLAGS if given.get(name)]
    if not is_alone(nnodes):
        _meet(options)
    line = ["--nproc-per-node", per_node, "--nnodes", nnodes]
    for name, value in options.items():
        line += [f"--{name}={value}"]
    return line + [f"--{name}" for name in flags]


def is_alone(nnodes: str) -> bool:
    return nnodes in ("1", "1:1")


def _meet(options: dict[str, str]) -> None:
    """How several machines find each other."""
    endpoint = options.get("rdzv-endpoint")
    if endpoint is None and "master-addr" not in options:
        raise UsageError(
            "several machines need to know where to meet: write --rdzv-endpoint HOST:PORT, the "
            "same on all of them, HOST being one of them"
        )
    if endpoint is not None and "node-rank" not in options:
        # torchrun's own choice, "static", would have every machine be the first one.
        options.setdefault("rdzv-backend", "c10d")
    host = options["master-addr"] if endpoint is None else host_of(endpoint)
    if options.get("rdzv-backend") == "c10d":
        _say_who_hosts(options, host)
    own = own_address(host)
    if own is not None and not is_loopback(own):
        options.setdefault("local-addr", own)


def _say_who_hosts(options: dict[str, str], host: str) -> None:
    """torch asks whether the machine's name leads to the host, and often it does not. It knows
    of loopback; and there may be another launcher on this machine, which came first and which
    torch joins only if nobody has said that this one is to host."""
    conf = options.get("rdzv-conf", "")
    port = options.get("rdzv-endpoint", "").rpartition(":")[2]
    if "is_host" not in conf and not is_loopback(host) and is_here(host, port):
        options["rdzv-conf"] = ",".join(filter(None, [conf, "is_host=1"]))


def host_of(endpoint: str) -> str:
    host, colon, port = endpoint.rpartition(":")
    if not colon or not port.isdigit():
        return endpoint.strip("[]")
    return host.strip("[]")

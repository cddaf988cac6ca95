"""The surface is frozen: names, signatures, options. A change here is a change for users, and
belongs into CHANGELOG.md."""

from __future__ import annotations

import argparse
import inspect
import subprocess
import sys

import pytest

import phalanx
from phalanx.cli import main

EXPORTS = [
    "BackendHazardError",
    "CollectiveMismatchError",
    "DeadlockError",
    "DifferentResultsError",
    "HazardError",
    "InFlightBufferError",
    "InvalidCallError",
    "InvariantError",
    "PhalanxError",
    "PhalanxWarning",
    "RankFailedError",
    "StallError",
    "ThreadRaceError",
    "UncontrolledChanceError",
    "UnwaitedWorkError",
    "UsageError",
    "World",
    "always",
    "explore",
    "run",
]

OPTIONS = (
    "ranks, engine='threads', backend=None, device=None, gpus=None, seed=0, clock='real', "
    "compute='real', network=None, checks='all', strict=False, profile=None, "
    "completion=None, faults=(), timeout=None, init=True, isolate=(), record=None, "
    "record_limit=256"
)

EXPLORE_OPTIONS = (
    "ranks, schedules=None, seconds=None, strategy='pos', seed=0, faults=(), "
    "compare=('values', 'output', 'parameters'), same_result=False, store='.phalanx', "
    "replay=None, record=None, raises=True, on_progress=None, "
    "backend=None, device=None, gpus=None, clock='virtual', checks='all', profile=None, "
    "completion=None, timeout=None, init=True, isolate=()"
)

SIGNATURES = {
    "always": "(condition, message='', *values)",
    "explore": f"(fn, *args, {EXPLORE_OPTIONS}, **kwargs)",
    "run": f"(fn, *args, {OPTIONS}, **kwargs)",
    "World": f"(*, {OPTIONS}, replay=None)",
    "World.run": "(self, fn, *args, **kwargs)",
    "World.timeline": "(self)",
    "World.close": "(self)",
}

COMMANDS = ["run", "explore", "conformance", "doctor", "explain", "report", "look"]
REPORT_OPTIONS = {"-h, --help", "--all", "--most", "--html"}
REPORT_OPTIONS |= {"--trace", "--csv", "--json", "--events"}
DOCTOR_OPTIONS = {"-h, --help", "-n, --ranks", "--patches", "--json"}

EXPLORE_FLAGS = {
    "--max-restarts, --max_restarts",
    "-h, --help",
    "-n, --ranks, --nproc-per-node",
    "--nnodes",
    "--schedules",
    "--seconds",
    "--strategy",
    "--seed",
    "--faults",
    "--compare",
    "--same-result",
    "--store",
    "--no-store",
    "--replay",
    "--record",
    "--device",
    "--gpus",
    "--clock",
    "--checks",
    "--profile",
    "--completion",
    "--timeout",
    "--isolate",
    "--share",
    "-q, --quiet",
    "--json",
    "-m, --module",
}

RUN_OPTIONS = {
    "-h, --help",
    "-n, --ranks, --nproc-per-node, --nproc_per_node",
    "--nnodes",
    "--engine",
    "--device",
    "--gpus",
    "--seed",
    "--clock",
    "--compute",
    "--network",
    "--checks",
    "--strict",
    "--faults",
    "--profile",
    "--completion",
    "--children",
    "--isolate",
    "--share",
    "--timeout",
    "--record",
    "--record-limit",
    "--no-record",
    "-q, --quiet",
    "--live",
    "--rank",
    "--standalone",
    "--master-addr, --master_addr",
    "--master-port, --master_port",
    "-m, --module",
    "--node-rank, --node_rank",
    "--rdzv-backend, --rdzv_backend",
    "--rdzv-endpoint, --rdzv_endpoint",
    "--rdzv-id, --rdzv_id",
    "--rdzv-conf, --rdzv_conf",
    "--max-restarts, --max_restarts",
    "--monitor-interval, --monitor_interval",
    "--start-method, --start_method",
    "--log-dir, --log_dir",
    "-r, --redirects",
    "-t, --tee",
    "--role",
    "--local-ranks-filter, --local_ranks_filter",
    "--duplicate-stdout-filters, --duplicate_stdout_filters",
    "--duplicate-stderr-filters, --duplicate_stderr_filters",
    "--event-log-handler, --event_log_handler",
    "--logs-specs, --logs_specs",
    "--local-addr, --local_addr",
    "--numa-binding, --numa_binding",
    "--signals-to-handle, --signals_to_handle",
    "--shutdown-timeout, --shutdown_timeout",
    "--virtual-local-rank, --virtual_local_rank",
}


def test_exported_names() -> None:
    assert sorted(phalanx.__all__) == EXPORTS
    for name in EXPORTS:
        assert getattr(phalanx, name).__module__.partition(".")[0] == "phalanx"


def test_no_other_name_looks_public() -> None:
    modules = {
        name.split(".")[1] for name in sys.modules if name.startswith("phalanx.")
    }  # submodules become attributes once imported
    # pytest rewrites the assertions of packages that have plugins, and leaves names with an "@"
    names = {name for name in vars(phalanx) if not name.startswith(("_", "@"))}
    assert names - modules - set(EXPORTS) <= {"TYPE_CHECKING", "Any"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'phalanx' has no attribute 'launch'"):
        phalanx.launch  # noqa: B018


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    thing = phalanx
    for part in name.split("."):
        thing = getattr(thing, part)
    assert str(without_annotations(inspect.signature(thing))) == SIGNATURES[name]


def without_annotations(signature: inspect.Signature) -> inspect.Signature:
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return signature.replace(parameters=bare, return_annotation=signature.empty)


def test_the_exception_tree() -> None:
    tree = {
        "CollectiveMismatchError": (phalanx.PhalanxError, RuntimeError),
        "DeadlockError": (phalanx.PhalanxError, RuntimeError),
        "StallError": (phalanx.PhalanxError, RuntimeError),
        "RankFailedError": (phalanx.PhalanxError,),
        "UsageError": (phalanx.PhalanxError, ValueError),
    }
    for name, bases in tree.items():
        assert all(issubclass(getattr(phalanx, name), base) for base in bases)


def test_commands_and_options() -> None:
    commands = argparse.ArgumentParser().add_subparsers()
    for command in main.COMMANDS.values():
        command.add_parser(commands)
    assert list(commands.choices) == COMMANDS
    known = {
        "run": RUN_OPTIONS,
        "explore": EXPLORE_FLAGS,
        "doctor": DOCTOR_OPTIONS,
        "report": REPORT_OPTIONS,
    }
    for name, options in known.items():
        actions = commands.choices[name]._actions
        assert {", ".join(action.option_strings) for action in actions} - {""} == options


def test_importing_phalanx_does_not_import_torch() -> None:
    look = "import sys, phalanx, phalanx.cli.main; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("False\n", "")

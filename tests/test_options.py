"""The options of a run as a value: what is refused, how it prints, that it travels."""

from __future__ import annotations

import inspect
import pickle
import shlex
import sys
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

import phalanx
from phalanx.costs import alpha_beta, dgx_a100
from phalanx.errors import UsageError
from phalanx.faults import call, delay, kill, line
from phalanx.kinds import ALL, ALWAYS
from phalanx.options import (
    DEFAULTS,
    EXPLORE_DEFAULTS,
    FLAGS,
    FUNCTION_OPTIONS,
    Options,
    flag_of,
    function_options,
    read_flag,
)
from tests.forked_programs import run_forked


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"ranks": 0}, "ranks=0: give the number of ranks as a whole number from 1 to 4096"),
        ({"ranks": True}, "ranks=True: give the number"),
        ({"engine": "cloud"}, "engine='cloud': choose one of 'threads', 'processes'"),
        ({"clock": "wall"}, "clock='wall': choose one of 'real', 'virtual'"),
        ({"compute": "free"}, "compute='free': on the real clock everything takes the time"),
        ({"clock": "virtual", "compute": "no"}, "compute='no': choose one of 'real', 'free'"),
        ({"clock": "virtual", "compute": 0}, "compute=0: choose one of 'real', 'free', or"),
        ({"clock": "virtual", "compute": True}, "compute=True: choose one of 'real', 'free'"),
        ({"clock": "virtual", "network": 3}, "network=3: give a network of phalanx.costs, or"),
        ({"network": "dgx_a100()"}, "on the real clock everything takes the time"),
        (
            {"ranks": 9, "clock": "virtual", "network": "dgx_a100()"},
            "ranks=9: the network has 8 GPUs (nodes=1, gpus=8); give it more nodes",
        ),
        ({"checks": "leek"}, "checks='leek': there is no kind 'leek'; did you mean 'leak'?"),
        ({"profile": "mpi"}, "profile='mpi': give gloo or nccl"),
        ({"completion": "soon"}, "completion='soon': choose one of 'earliest'"),
        ({"backend": "mpi"}, "backend='mpi': choose one of 'gloo', 'nccl'"),
        ({"faults": 3}, "faults=3: give faults, e.g. faults=[kill(rank=2, at=call(17))]"),
        ({"faults": "kill(rank=2, at=call(1))"}, "there is no rank 2; ranks are 0 to 1"),
        ({"faults": "kill"}, "kill: no fault; write kill(rank=2, at=call(17))"),
        ({"faults": "kill(rank=1, at=call(1))", "engine": "torchrun"}, "torch's launcher"),
        ({"max_restarts": -1}, "max_restarts=-1: give how often ranks may start again"),
        ({"seed": -1}, "seed=-1: a seed is a whole number from 0 on"),
        ({"timeout": 0}, "timeout=0: give seconds above 0, or None for no limit"),
        ({"limit": -1.0}, "limit=-1.0: give seconds above 0, or None for no limit"),
        ({"children": "pets"}, "children='pets': choose one of 'ranks', 'processes'"),
        ({"device": "cuda:1"}, "device='cuda:1': choose one of 'auto', 'cpu', 'cuda'"),
        ({"gpus": 0}, "gpus=0: give the number of GPUs"),
        ({"gpus": 1.5}, "gpus=1.5: give the number of GPUs"),
        ({"gpus": True}, "gpus=True: give the number of GPUs"),
        ({"device": "cpu", "gpus": 1}, "gpus=1: device='cpu' uses none"),
        ({"engine": "processes", "seed": 7}, "so engine='processes' has no seed; leave it out"),
        ({"engine": "torchrun", "seed": 7}, "so engine='torchrun' has no seed; leave it out"),
        ({"engine": "processes", "clock": "virtual"}, "real processes have the real clock"),
        ({"engine": "processes", "completion": "latest"}, "the real backend decides when"),
        ({"engine": "processes", "ranks": 129}, "engine='processes' takes up to 128"),
        ({"engine": "processes", "backend": 3}, "backend=3: give a backend's name"),
    ],
)
def test_what_cannot_work_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as error:
        Options(**{"ranks": 2, **given})
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"engine": "torchrun"}, "torch's launcher starts whole scripts"),
        ({"engine": "cloud"}, "choose one of 'threads', 'processes'"),
        ({"device": "auto"}, "device='auto': choose one of 'cpu', 'cuda'"),
    ],
)
def test_what_only_the_command_line_has(given: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as error:
        function_options(ranks=2, **given)
    assert text in str(error.value)


def test_only_a_launcher_may_leave_the_number_of_ranks_open() -> None:
    assert Options(ranks=0, engine="torchrun", per_node=4).node_size == 4
    assert Options(ranks=8).node_size == 8


def test_it_is_frozen_and_travels() -> None:
    options = Options(ranks=2, checks="mismatch", isolate=("megatron",))
    with pytest.raises(FrozenInstanceError):
        options.seed = 3  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(options)) == options
    assert replace(options, seed=7) != options


def test_what_follows_from_the_checks() -> None:
    assert Options(ranks=2).kinds == ALL and Options(ranks=2).checked
    assert Options(ranks=2, checks="none").kinds == ALWAYS
    assert not Options(ranks=2, checks="none").checked


def test_when_operations_complete() -> None:
    assert Options(ranks=2).moment == "earliest"
    assert Options(ranks=2, seed=1).moment == "seeded"
    assert Options(ranks=2, seed=1, completion="latest").moment == "latest"


def test_the_call_that_repeats_it() -> None:
    def train() -> None: ...

    assert Options(ranks=4).call(train) == "phalanx.run(train, ranks=4)"
    options = Options(ranks=4, seed=7, strict=True, isolate=("megatron",), share=("all",))
    assert options.call(object(), has_arguments=True) == (
        "phalanx.run(fn, ..., ranks=4, seed=7, strict=True, isolate=('megatron',))"
    )


def test_faults_are_given_as_values_or_as_text() -> None:
    fault = kill(rank=1, at=call(17))
    for given in ([fault], (fault,), fault, "kill(rank=1, at=call(17))"):
        options = Options(ranks=2, faults=given)  # type: ignore[arg-type]
        assert options.faults == (fault,)
        assert options.call(max) == (
            "phalanx.run(max, ranks=2, faults='kill(rank=1, at=call(17))')"
        )
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_network_is_given_as_a_value_or_as_text() -> None:
    network = alpha_beta(latency=5e-6, bandwidth=12e9)
    for given in (network, "alpha_beta(latency=5e-6, bandwidth=12e9)"):
        options = Options(ranks=2, clock="virtual", network=given)  # type: ignore[arg-type]
        assert options.network == network
        assert options.call(max) == (
            "phalanx.run(max, ranks=2, clock='virtual', "
            "network='alpha_beta(latency=5e-6, bandwidth=12e9)')"
        )
    assert pickle.loads(pickle.dumps(options)) == options


def test_the_command_that_repeats_it() -> None:
    options = Options(
        ranks=8,
        per_node=4,
        engine="processes",
        device="auto",
        checks="all,-leak",
        strict=True,
        timeout=30.0,
        init=False,
        isolate=("a", "b"),
    )
    assert options.command(
        "my script.py", "--lr", "0.1", size={"ranks": "4", "nnodes": "2"}
    ) == (
        "phalanx run --ranks 4 --nnodes 2 --engine processes --checks all,-leak --strict "
        "--timeout 30 --isolate a,b 'my script.py' --lr 0.1"
    )
    assert Options(ranks=1).command("spawn.py", size={}) == "phalanx run spawn.py"


def test_every_flag_in_the_command_can_be_read_again() -> None:
    values: dict[str, Any] = {
        "engine": "threads",
        "device": "cuda",
        "gpus": 1,
        "seed": 7,
        "clock": "virtual",
        "compute": "free",
        "network": dgx_a100(nodes=2),
        "checks": "mismatch",
        "strict": True,
        "profile": "nccl",
        "completion": "latest",
        "faults": (kill(rank=1, at=call(17)), delay(rank=0, seconds=0.5, at=line("a b.py:4"))),
        "timeout": 2.5,
        "isolate": ("a", "b"),
        "share": ("c",),
        "children": "processes",
        "max_restarts": 3,
    }
    not_again = {"record", "record_limit"}
    assert set(values) == set(FLAGS) - not_again
    words = shlex.split(Options(ranks=2, **values).command(size={}))[2:]
    for name, value in values.items():
        if name == "engine":  # the default
            continue
        place = words.index(flag_of(name))
        if FLAGS[name].form == "switch":
            continue
        text = words[place + 1]
        given = [text] if FLAGS[name].form == "packages" else text
        assert read_flag(name, given) == value


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("seed", "x", "--seed x: a whole number is needed, e.g. --seed 4"),
        ("gpus", "x", "--gpus x: a whole number is needed, e.g. --gpus 1"),
        (
            "compute",
            "x",
            "--compute x: choose one of 'real', 'free', or give a number, e.g. --compute 0.1",
        ),
        ("timeout", "x", "--timeout x: seconds are needed, e.g. --timeout 30"),
        ("timeout", "-3", "--timeout -3: give seconds above 0, or leave it out"),
    ],
)
def test_flags_that_say_nothing(name: str, given: str, text: str) -> None:
    with pytest.raises(UsageError) as error:
        read_flag(name, given)
    assert str(error.value) == text


@pytest.mark.parametrize("door", [phalanx.run, phalanx.World])
def test_functions_take_the_same_options(door: Any) -> None:
    parameters = inspect.signature(door).parameters.values()
    keywords = {
        each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY
    }
    keywords.pop("replay", None)
    keywords.pop("ranks")
    assert keywords == {name: DEFAULTS[name] for name in FUNCTION_OPTIONS if name != "ranks"}


def test_what_is_explored_takes_those_that_mean_something_there() -> None:
    parameters = inspect.signature(phalanx.explore).parameters
    for each in fields(Options):
        if each.name in FUNCTION_OPTIONS and each.metadata["explore"]:
            default = EXPLORE_DEFAULTS.get(each.name, each.default)
            assert parameters[each.name].default == default or each.name == "ranks"


def test_the_commands_of_both_doors() -> None:
    options = Options(ranks=4, clock="virtual", checks="all,-leak")
    said = "--clock virtual --checks all,-leak"
    assert options.command("a.py") == f"phalanx run --ranks 4 {said} a.py"
    explored = options.command("a.py", door="explore", more={"replay": "4-a7f3"})
    assert explored == "phalanx explore --ranks 4 --checks all,-leak --replay 4-a7f3 a.py"
    call = replace(options, clock="real").call(main, door="explore", more={"replay": "4-a7f3"})
    assert call == (
        "phalanx.explore(main, ranks=4, clock='real', checks='all,-leak', replay='4-a7f3')"
    )


def main() -> None: ...


LOADED = """
import importlib, sys
importlib.import_module(sys.argv[1])
print(*sorted(name for name in sys.modules if name.startswith("phalanx.engines.")))
"""


@pytest.mark.parametrize(
    ("engine", "others"),
    [
        (
            "phalanx.engines.threads.threads_engine",
            ("processes", "torchrun", "remote", "serialization"),
        ),
        (
            "phalanx.engines.world",
            ("processes", "torchrun", "remote", "serialization", "threads"),
        ),
        ("phalanx.engines.processes.processes_engine", ("threads", "torchrun")),
    ],
)
def test_an_engine_loads_no_other(engine: str, others: tuple[str, ...]) -> None:
    line = [sys.executable, "-c", LOADED, engine]
    loaded = run_forked(line, timeout=60).stdout.split()
    assert engine in loaded
    folders = tuple(f"phalanx.engines.{folder}" for folder in others)
    assert [name for name in loaded if name.startswith(folders)] == []


def test_the_marker_takes_the_same_options_and_says_so() -> None:
    from phalanx.testing.collection.marker import KEYWORDS
    from phalanx.testing.plugin import MARKERS

    assert set(FUNCTION_OPTIONS) - {"ranks"} < set(KEYWORDS)
    assert [name for name in KEYWORDS if f"{name}=" not in MARKERS["ranks"]] == []

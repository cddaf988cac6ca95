"""The options of a run as one frozen value: validated, printable as a replay line, picklable.

Every door (`phalanx.run`, `World`, the command line, the pytest marker) makes an `Options`, and
every engine reads it. To add an option, add a field here; with a `Flag` it is a flag of
`phalanx run` as well, and part of the replay line. `phalanx.run` and `World` name their
options in their signatures, and a test compares those with the fields.

Validation needs no torch. Whether a GPU, a backend or a package is there is asked by
`engines.engine.check_here`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from phalanx.costs.network import Network
from phalanx.costs.network_text import read_network
from phalanx.errors import UsageError
from phalanx.faults import Fault, check_plan, faults_text, read_plan
from phalanx.kinds import MOMENTS, check_profile, is_on, parse_checks
from phalanx.shown.secret_words import fold_secrets

ENGINES = ("threads", "processes", "torchrun")
FUNCTION_ENGINES = ("threads", "processes")
"""Those that can run a function: torch's launcher starts whole scripts."""

BACKENDS = ("gloo", "nccl", "cpu:gloo,cuda:nccl")
"""What ranks that are threads take for a backend. For processes torch decides."""

CLOCKS = ("real", "virtual")
COMPUTE = ("real", "free")
DEVICES = ("auto", "cpu", "cuda")
FUNCTION_DEVICES = DEVICES[1:]
CHILDREN = ("ranks", "processes")
THREADS_ONLY = ("seed", "clock", "compute", "network", "completion")
"""Options that real processes cannot have."""

MOST_RANKS = 4096
MOST_PROCESSES = 128
"""Each rank costs five file descriptors here, of which systems often allow 1,024."""


@dataclass(frozen=True)
class Flag:
    """How an option is given on the command line, as `--name`."""

    text: str
    metavar: str | None = None
    form: str = "word"
    """"word", "number", "seconds", "compute", "network", "packages" (may come several times),
    "faults" or "switch"."""
    default: Any = None
    """What the command line takes where nothing is said; None: the field's own default."""


def _option(
    default: Any,
    flag: Flag | None = None,
    *,
    function: bool = True,
    again: bool = True,
    explore: bool = True,
) -> Any:
    """`function`: whether `phalanx.run` and `World` have it as a keyword; `again`: whether
    whoever repeats the run must give it again; `explore`: whether it means something where a
    program is explored."""
    about = {"flag": flag, "function": function, "again": again, "explore": explore}
    return field(default=default, metadata=about)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a run was asked for. Raises `UsageError` for what cannot work.

    >>> Options(ranks=4, seed=7)
    Options(ranks=4, seed=7)
    >>> Options(ranks=4, seed=7).command("train.py")
    'phalanx run --ranks 4 --seed 7 train.py'
    """

    ranks: int = field(
        metadata={"flag": None, "function": True, "again": True, "explore": True}
    )
    """How many, in all. 0 under torchrun, which counts them itself."""
    engine: str = _option(
        "threads",
        Flag(
            "threads: ranks in this process; processes: one process each; torchrun: as torch's "
            "launcher starts them",
            "ENGINE",
        ),
        explore=False,
    )
    backend: str | None = _option(None)
    """Of the default group that `init` makes; None: Gloo, and NCCL where ranks have GPUs."""
    device: str | None = _option(
        None,
        Flag(
            "auto: ranks share the GPUs if there are fewer than ranks, and cuda:3 means one of "
            "them; cuda: the same, and an error without a GPU; cpu: ranks see no GPU",
            "WHERE",
            default="auto",
        ),
    )
    """What ranks see: "cuda": a GPU each, shared where there are too few; "auto": the same if
    there are any; "cpu": none; None: what there is."""
    gpus: int | None = _option(None, Flag("use only the first K GPUs", "K", "number"))
    seed: int = _option(
        0, Flag("order of ranks; 0: first in, first out", "S", "number"), explore=False
    )
    clock: str = _option("real", Flag("real, or virtual: sleeps take no time", "CLOCK"))
    compute: str | float = _option(
        "real",
        Flag(
            "how long computing takes on the virtual clock: real, free, or a factor: 0.1",
            "HOW",
            "compute",
        ),
        explore=False,
    )
    """On the virtual clock: "real", as long as it takes; "free", no time; a number, so many
    times as long."""
    network: Network | None = field(
        default=None,
        metadata={
            "flag": Flag(
                "what operations cost on the virtual clock, e.g. 'dgx_h100(nodes=8)' or "
                "'alpha_beta(latency=20e-6, bandwidth=1e9)'",
                "NETWORK",
                "network",
            ),
            "function": True,
            "again": True,
            "explore": False,
        },
    )
    """A network of `phalanx.costs`, or its text; None: operations take no time of their own."""
    checks: str = _option(
        "all", Flag("all, none, or kinds of findings: mismatch,leak or all,-leak", "KINDS")
    )
    strict: bool = _option(
        False, Flag("warnings fail the run: exit status 3", form="switch"), explore=False
    )
    profile: str | None = _option(
        None, Flag("gloo or nccl: judge the run by that backend's rules", "NAME")
    )
    completion: str | None = _option(
        None,
        Flag(
            "when asynchronous operations complete: earliest, latest, or seeded (the "
            "default with --seed)",
            "WHEN",
        ),
    )
    """When asynchronous operations complete; None: as early as they can without a seed, else
    when the seed says."""
    faults: tuple[Fault, ...] = _option(
        (),
        Flag(
            "what goes wrong in the run: kill(rank=2, at=call(17)), ...; see docs/faults.md",
            "PLAN",
            "faults",
        ),
        explore=False,
    )
    """What goes wrong, in values of `phalanx.faults`; their text is read, too."""
    timeout: float | None = _option(
        None,
        Flag("stop after SEC seconds in which no rank calls, prints or ends", "SEC", "seconds"),
    )
    limit: float | None = _option(None, function=False)
    """Seconds that the whole run may take."""
    init: bool = _option(True)
    isolate: tuple[str, ...] = _option(
        (),
        Flag(
            "let each rank import these packages for itself, as it does the script's own",
            "PACKAGES",
            "packages",
        ),
    )
    share: tuple[str, ...] = _option(
        (),
        Flag(
            "import these packages of the script's own once for all ranks; all: every one",
            "PACKAGES",
            "packages",
        ),
        function=False,
    )
    children: str = _option(
        "ranks",
        Flag("what the processes that the script starts become: ranks or processes", "WHAT"),
        function=False,
        explore=False,
    )
    record: str | bool | None = _option(
        None,
        Flag("write what every rank does into FILE; show it with: phalanx report FILE", "FILE"),
        again=False,
        explore=False,
    )
    """A file for the journal; None: the journal of a run that fails is kept in the cache
    folder; False: nothing is written."""
    record_limit: int = _option(
        256,
        Flag("let the file grow to MIB mebibytes and keep the newest", "MIB", "number"),
        again=False,
        explore=False,
    )
    per_node: int | None = _option(None, function=False)
    """How many ranks a node has; None: there is one node."""
    fewest_nodes: int | None = _option(None, function=False)
    """With how many nodes the ranks may start again when some are lost; None: with no fewer."""
    max_restarts: int = _option(
        0,
        Flag(
            "start all ranks again when one fails, N times at most, as torchrun does",
            "N",
            "number",
        ),
        function=False,
    )

    def __post_init__(self) -> None:
        check_choice("engine", self.engine, ENGINES)
        self._check_ranks()
        check_choice("clock", self.clock, CLOCKS)
        self._check_costs()
        (_kinds if isinstance(self.checks, str) else parse_checks)(self.checks)
        check_profile(self.profile)
        check_choice("children", self.children, CHILDREN)
        if self.completion is not None:
            check_choice("completion", self.completion, MOMENTS)
        if self.engine != "threads":
            self._check_what_only_threads_have()
        elif self.backend is not None:
            check_choice("backend", self.backend, BACKENDS)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise UsageError(
                f"seed={self.seed!r}: a seed is a whole number from 0 on (0: in order)"
            )
        check_devices(self.device, self.gpus, allowed=DEVICES)
        self._check_record()
        if self.faults:
            self._check_faults()
        restarts = self.max_restarts
        if isinstance(restarts, bool) or not isinstance(restarts, int) or restarts < 0:
            raise UsageError(
                f"max_restarts={restarts!r}: give how often ranks may start again as a whole "
                "number from 0 on, e.g. max_restarts=3"
            )
        for name in ("timeout", "limit"):
            given = getattr(self, name)
            if given is not None and not (isinstance(given, (int, float)) and given > 0):
                raise UsageError(
                    f"{name}={given!r}: give seconds above 0, or None for no limit"
                )

    def _check_faults(self) -> None:
        plan = read_plan(self.faults)
        object.__setattr__(self, "faults", plan)
        check_plan(plan, self.ranks)
        if plan and self.engine == "torchrun":
            raise UsageError(
                f"faults={faults_text(plan)!r}: torch's launcher starts ranks anew when one "
                "dies, so what a plan means would be up to it; use engine='processes'"
            )

    def _check_record(self) -> None:
        given, limit = self.record, self.record_limit
        if not (given is None or given is False or (isinstance(given, str) and given)):
            raise UsageError(
                f"record={given!r}: give the name of a file, e.g. record='run.jsonl.gz', False "
                "for no recording, or None to keep that of a run that fails"
            )
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise UsageError(
                f"record_limit={limit!r}: give mebibytes from 1, e.g. record_limit=256"
            )
        if isinstance(given, str) and self.engine != "threads" and not self.checked:
            raise UsageError(
                f"record={given!r}: where ranks are processes, the checks make the "
                "recording; leave checks='none' out"
            )

    def _check_costs(self) -> None:
        how = self.compute
        is_number = isinstance(how, (int, float)) and not isinstance(how, bool)
        is_factor = is_number and 0 < float(how) < float("inf")
        if how not in COMPUTE and not is_factor:
            raise UsageError(
                f"compute={how!r}: choose one of 'real', 'free', or give by how much longer "
                "computing takes than here as a number above 0, e.g. compute=0.1"
            )
        if self.network is not None:
            object.__setattr__(self, "network", read_network(self.network))
            self.network.check_ranks(self.ranks)
        for name in ("compute", "network"):
            given = getattr(self, name)
            if self.clock != "virtual" and given != DEFAULTS[name]:
                raise UsageError(
                    f"{name}={given!r}: on the real clock everything takes the time that it "
                    "takes; add clock='virtual'"
                )

    def _check_ranks(self) -> None:
        ranks, least = self.ranks, 0 if self.engine == "torchrun" else 1
        whole = isinstance(ranks, int) and not isinstance(ranks, bool)
        if not whole or not least <= ranks <= MOST_RANKS:
            raise UsageError(
                f"ranks={ranks!r}: give the number of ranks as a whole number from 1 to "
                f"{MOST_RANKS}, e.g. ranks=4"
            )
        if self.engine == "processes" and ranks > MOST_PROCESSES:
            raise UsageError(
                f"ranks={ranks!r}: engine='processes' takes up to {MOST_PROCESSES}; "
                "use engine='threads' for more"
            )

    def _check_what_only_threads_have(self) -> None:
        if self.seed:
            raise UsageError(
                f"seed={self.seed!r}: the system decides which process runs when, so "
                f"engine={self.engine!r} has no seed; leave it out, or use engine='threads'"
            )
        if self.clock != "real":
            raise UsageError(
                f"clock={self.clock!r}: real processes have the real clock; leave it out, or "
                "use engine='threads'"
            )
        if self.completion is not None:
            raise UsageError(
                f"completion={self.completion!r}: the real backend decides when an operation "
                "completes; leave it out, or use engine='threads'"
            )
        if self.backend is not None and not isinstance(self.backend, str):
            raise UsageError(
                f"backend={self.backend!r}: give a backend's name, e.g. 'gloo', or None"
            )

    # -- what follows from them -------------------------------------------------------------

    @property
    def checked(self) -> bool:
        """Whether anything is checked at all; if not, engines do not even look."""
        return is_on(self.checks)

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of findings that are looked for."""
        return _kinds(self.checks)

    @property
    def moment(self) -> str:
        """When asynchronous operations complete, one of `kinds.MOMENTS`."""
        return self.completion or ("seeded" if self.seed else "earliest")

    @property
    def node_size(self) -> int:
        return self.per_node or self.ranks

    def plain(self) -> Options:
        """Nothing but the options, which travel: what adds fields to them may not."""
        return Options(**{name: getattr(self, name) for name in DEFAULTS})

    def keywords(self) -> dict[str, Any]:
        """As keywords of `phalanx.run` and `World`."""
        return {name: getattr(self, name) for name in FUNCTION_OPTIONS}

    # -- printing ---------------------------------------------------------------------------

    def __repr__(self) -> str:
        given = [f"{name}={value!r}" for name, value in self._said()]
        return f"Options({', '.join(given)})"

    def call(
        self,
        fn: object,
        *,
        has_arguments: bool = False,
        door: str = "run",
        more: Mapping[str, Any] | None = None,
    ) -> str:
        """The Python call that repeats the run. Arguments of `fn` may be large and stay out.
        `door`: "run" or "explore", and `more` are options of that door alone."""
        words = [getattr(fn, "__name__", "fn"), *(["..."] if has_arguments else [])]
        said = [each for each in self._said(door) if each[0] in FUNCTION_OPTIONS]
        words += [
            f"{name}={_python_text(value)}" for name, value in (*said, *(more or {}).items())
        ]
        return f"phalanx.{door}({', '.join(words)})"

    def command(
        self,
        *program: str,
        size: Mapping[str, str | None] | None = None,
        door: str = "run",
        more: Mapping[str, str] | None = None,
    ) -> str:
        """The command line that repeats the run, ready to paste. `program` is what follows the
        options; what looks secret in it is folded. `size` is how the number of ranks was given,
        by the names of flags, where that is not `--ranks` alone. `door` and `more` as in
        `call`."""
        sizes = {"ranks": str(self.ranks)} if size is None else size
        words = [
            word for name, value in sizes.items() if value for word in (f"--{name}", value)
        ]
        for name, value in self._said(door):
            flag = FLAGS.get(name)
            if flag is not None and value != flag.default:
                words += _flag_words(name, flag, value)
        for name, value in (more or {}).items():
            words += [flag_of(name), value]
        return shlex.join(["phalanx", door, *words, *fold_secrets(program)])

    def _said(self, door: str = "run") -> Iterator[tuple[str, Any]]:
        """The options that differ from their defaults at that door and belong to the run, in
        order."""
        defaults = EXPLORE_DEFAULTS if door == "explore" else {}
        for each in fields(Options):
            value = getattr(self, each.name)
            if value != defaults.get(each.name, each.default) and each.metadata["again"]:
                yield each.name, value


FLAGS: Mapping[str, Flag] = {
    each.name: flag for each in fields(Options) if (flag := each.metadata["flag"]) is not None
}
"""The flags of `phalanx run` that are options, by their names; `-n` and `--nnodes`, which
together say the number of ranks, are not among them."""

EXPLORE_FLAGS: Mapping[str, Flag] = {
    each.name: FLAGS[each.name]
    for each in fields(Options)
    if each.name in FLAGS and each.metadata["explore"]
}
"""Those of them that `phalanx explore` has, too. It has a seed, a recording and faults of its
own, in `ExploreOptions`."""

FUNCTION_OPTIONS = tuple(each.name for each in fields(Options) if each.metadata["function"])
"""The keywords of `phalanx.run` and `World`."""

EXPLORE_DEFAULTS: Mapping[str, Any] = {"clock": "virtual"}
"""Those that differ where a program is explored."""

DEFAULTS: Mapping[str, Any] = {each.name: each.default for each in fields(Options)}


def function_options(**given: Any) -> Options:
    """The options of a function's run."""
    check_function_options(given)
    return Options(**given)


def check_function_options(given: Mapping[str, Any]) -> None:
    """Refuse what only the command line can have."""
    if given.get("engine") == "torchrun":
        raise UsageError(
            "engine='torchrun': torch's launcher starts whole scripts, so it is for the "
            "command line: phalanx run --engine torchrun -n 4 train.py; for a function, use "
            "engine='processes'"
        )
    check_choice("engine", given.get("engine", "threads"), FUNCTION_ENGINES)
    check_devices(given.get("device"), None, allowed=FUNCTION_DEVICES)


def flag_of(name: str) -> str:
    """An option as it is written on the command line."""
    return f"--{name.replace('_', '-')}"


def read_flag(name: str, given: Any) -> Any:
    """The value of an option from the text of its flag (a list of texts for "packages").
    None, where nothing was given, is the default."""
    flag = FLAGS[name]
    if given is None:
        return DEFAULTS[name] if flag.default is None else flag.default
    if flag.form == "number":
        return read_number(flag_of(name), given, "1" if name == "gpus" else "4")
    if flag.form == "seconds":
        return read_seconds(flag_of(name), given)
    if flag.form == "network":
        return read_network(given)
    if flag.form == "compute":
        return _read_compute(flag_of(name), given)
    if flag.form == "packages":
        return tuple(package.strip() for part in given for package in part.split(","))
    return read_plan(given) if flag.form == "faults" else given


def read_number(flag: str, given: str, example: str = "4") -> int:
    try:
        return int(given)
    except ValueError:
        raise UsageError(
            f"{flag} {given}: a whole number is needed, e.g. {flag} {example}"
        ) from None


def read_seconds(flag: str, given: str, example: str = "30") -> float:
    try:
        seconds = float(given)
    except ValueError:
        raise UsageError(f"{flag} {given}: seconds are needed, e.g. {flag} {example}") from None
    if not seconds > 0:
        raise UsageError(f"{flag} {given}: give seconds above 0, or leave it out")
    return seconds


def _read_compute(flag: str, given: str) -> str | float:
    if given in COMPUTE:
        return given
    try:
        return float(given)
    except ValueError:
        raise UsageError(
            f"{flag} {given}: choose one of 'real', 'free', or give a number, e.g. {flag} 0.1"
        ) from None


def _flag_words(name: str, flag: Flag, value: Any) -> list[str]:
    if flag.form == "switch":
        return [flag_of(name)]
    if flag.form == "packages":
        return [flag_of(name), ",".join(value)]
    if flag.form == "faults":
        return [flag_of(name), faults_text(value)]
    return [flag_of(name), f"{value:g}" if isinstance(value, float) else str(value)]


def _python_text(value: Any) -> str:
    """As a caller writes it. Faults as text need no import."""
    is_plan = isinstance(value, tuple) and value and isinstance(value[0], Fault)
    if is_plan:
        return repr(faults_text(value))
    return repr(repr(value) if hasattr(value, "check_ranks") else value)


@lru_cache(maxsize=256)
def _kinds(checks: str) -> frozenset[str]:
    return parse_checks(checks)


def check_devices(device: Any, gpus: Any, *, allowed: tuple[str, ...]) -> None:
    """Refuse values that mean nothing, with what is allowed."""
    if device is not None and device not in allowed:
        listed = ", ".join(map(repr, allowed))
        raise UsageError(
            f"device={device!r}: choose one of {listed}; which GPU of several is a rank's own "
            "follows from its local rank"
        )
    if gpus is None:
        return
    if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 1:
        raise UsageError(
            f"gpus={gpus!r}: give the number of GPUs that ranks share, from 1, e.g. gpus=1"
        )
    if device == "cpu":
        raise UsageError(f"gpus={gpus}: device='cpu' uses none; leave one of them out")


def check_choice(name: str, given: Any, allowed: tuple[str, ...]) -> None:
    """Refuse what is not among these."""
    if given not in allowed:
        listed = ", ".join(map(repr, allowed))
        raise UsageError(f"{name}={given!r}: choose one of {listed}")

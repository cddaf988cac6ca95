"""What can be explored: a function on ranks, or a script as every rank's `__main__`.

Both run on the threads engine. Between runs the threads of the ranks are kept, and the default
group where nobody can tell the difference.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from phalanx.backend.session import RankContext
from phalanx.backend.torch_patches import leave_groups
from phalanx.callsite import shown_path
from phalanx.core.choices import Choices
from phalanx.core.thread_pool import RankThreadPool
from phalanx.emulation.modules.isolation_rule import IsolationRule
from phalanx.engines.program import Program
from phalanx.engines.rank_thread_pools import make_thread_pool
from phalanx.engines.run_settings import Settings
from phalanx.engines.threads.script_on_threads import run_program
from phalanx.engines.threads.threads_engine import ThreadsEngine
from phalanx.errors import UsageError
from phalanx.explore.failures.kept_values import values_kept_by
from phalanx.explore.final_parameters import FinalParameters
from phalanx.explore.judging import LEFT_TO_EXPLORING
from phalanx.explore.one_run import RunOutcome, Subject
from phalanx.explore.rank_texts import RankTexts
from phalanx.explore.run_view import RunView
from phalanx.journal.writer import JournalWriter
from phalanx.options import DEFAULTS, Options


class FunctionSubject:
    """`fn(*args, **kwargs)` on each rank."""

    takes_any_size = True

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Options,
        faults: tuple[Any, ...] = (),
        thread_pool: RankThreadPool | None = None,
        view: RunView | None = None,
    ) -> None:
        self.name = getattr(fn, "__qualname__", type(fn).__name__)
        self.options = options
        self.faults = faults
        self._fn, self._args, self._kwargs = fn, args, kwargs
        self._thread_pool = thread_pool or make_thread_pool()
        self._view = view or RunView()

    @property
    def ranks(self) -> int:
        return self.options.ranks

    @property
    def has_exact_time(self) -> bool:
        return has_exact_time(self.options)

    def run(self, choices: Choices) -> RunOutcome:
        modules = IsolationRule(self.options.isolate) if self.options.isolate else None
        parameters = FinalParameters(self.ranks)
        settings = _settings(
            self.options,
            self.faults,
            choices=choices,
            modules=modules,
            on_journal=self._view.follow,
            on_rank_end=parameters.take,
        )
        engine = ThreadsEngine(settings, thread_pool=self._thread_pool)
        outcome = RunOutcome()
        texts = RankTexts(self.ranks, is_shown=self._view.shows_output)
        try:
            with texts, parameters:
                outcome.values = engine.run(self._body)
        except Exception as error:
            _note_error(outcome, error)
        finally:
            outcome.fingerprint = engine.fingerprint
            engine.close()
        outcome.output = texts.texts()
        outcome.parameters = parameters.digests()
        outcome.findings = tuple(engine.findings)
        outcome.journal = engine.journal
        return outcome

    @property
    def key(self) -> str:
        code = getattr(inspect.unwrap(self._fn), "__code__", None)
        where = type(self._fn).__module__ if code is None else shown_path(code.co_filename)
        return f"{where}:{self.name}"

    def with_changes(
        self, *, ranks: int | None = None, faults: Any = None, quiet: bool = False
    ) -> FunctionSubject:
        options = self.options if ranks is None else replace(self.options, ranks=ranks)
        plan = self.faults if faults is None else tuple(faults)
        called = (self._fn, self._args, self._kwargs)
        view = RunView() if quiet else self._view
        return FunctionSubject(*called, options, plan, self._thread_pool, view)

    def kept_values(self) -> Mapping[str, Any]:
        """What lives longer than a run, and what the function may change, by names."""
        return values_kept_by(self._fn, self._args, self._kwargs)

    def close(self) -> None:
        self._thread_pool.close()

    def _body(self, context: RankContext) -> Any:
        value = self._fn(*self._args, **self._kwargs)
        leave_groups(context)
        return value


@dataclass
class ScriptSubject:
    """A script or module, as `phalanx run` executes it."""

    program: Program
    options: Options
    faults: tuple[Any, ...] = ()
    rule: Callable[[], IsolationRule] = lambda: IsolationRule(script=True)
    """Makes what says which modules are each rank's own; a run needs one of its own."""
    environ: Mapping[str, str] | None = None
    view: RunView = field(default_factory=RunView)
    takes_any_size = True

    @property
    def name(self) -> str:
        return self.program.path

    @property
    def ranks(self) -> int:
        return self.options.ranks

    @property
    def has_exact_time(self) -> bool:
        return has_exact_time(self.options)

    def run(self, choices: Choices) -> RunOutcome:
        outcome = RunOutcome()
        texts = RankTexts(self.ranks, is_shown=self.view.shows_output)
        findings: list[Any] = []
        parameters = FinalParameters(self.ranks)

        def follow(journal: JournalWriter) -> None:
            outcome.journal = journal.reader()
            self.view.follow(journal)

        settings = _settings(
            self.options,
            self.faults,
            choices=choices,
            modules=self.rule(),
            environ=self.environ,
            on_findings=findings.extend,
            on_journal=follow,
            on_rank_end=parameters.take,
        )
        try:
            with texts, parameters:
                self.view.has_formed_group |= run_program(self.program, settings)
        except Exception as error:
            _note_error(outcome, error)
        outcome.output = texts.texts()
        outcome.parameters = parameters.digests()
        outcome.findings = tuple(findings)
        return outcome

    @property
    def key(self) -> str:
        return " ".join(
            [shown_path(os.path.abspath(self.program.path)), *self.program.argv[1:]]
        )

    def with_changes(
        self, *, ranks: int | None = None, faults: Any = None, quiet: bool = False
    ) -> Subject:
        return replace(
            self,
            options=self.options if ranks is None else replace(self.options, ranks=ranks),
            faults=self.faults if faults is None else tuple(faults),
            view=RunView() if quiet else self.view,
        )

    def close(self) -> None: ...


def _note_error(outcome: RunOutcome, error: Exception) -> None:
    if isinstance(error, UsageError):
        raise error
    outcome.error = error


def _settings(options: Options, faults: tuple[Any, ...], **more: Any) -> Settings:
    """What exploring finds out by itself is not looked for in each run."""
    left_out = [f"-{kind}" for kind in sorted(LEFT_TO_EXPLORING & options.kinds)]
    options = replace(options, checks=",".join([options.checks, *left_out]))
    return Settings.of(options, faults=faults, **free_compute(options), **more)


def has_exact_time(options: Options) -> bool:
    """Whether the clock moves with sleeps and costs alone."""
    return options.clock == "virtual" and bool(free_compute(options))


def free_compute(options: Options) -> Mapping[str, Any]:
    """How long the program computes is another thing each time: it takes no time on a virtual
    clock, unless that was asked for in another way."""
    is_free = options.clock == "virtual" and options.compute == DEFAULTS["compute"]
    return {"compute": "free"} if is_free else {}

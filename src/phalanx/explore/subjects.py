"""What can be explored: a function on ranks, or a script as every rank's `__main__`.

Both run on the threads engine. Between runs the threads of the ranks are kept, and the default
group where nobody can tell the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from typing import Any

from phalanx.backend.session import RankContext
from phalanx.backend.torch_patches import leave_groups
from phalanx.core.choices import Choices
from phalanx.core.thread_pool import RankThreadPool
from phalanx.emulation.modules.isolation_rule import IsolationRule
from phalanx.engines.program import Program
from phalanx.engines.rank_thread_pools import make_thread_pool
from phalanx.engines.run_recording import RunRecording
from phalanx.engines.run_settings import Settings
from phalanx.engines.threads.script_on_threads import run_program
from phalanx.engines.threads.threads_engine import ThreadsEngine
from phalanx.errors import UsageError
from phalanx.explore.final_parameters import FinalParameters
from phalanx.explore.one_run import RunOutcome, Subject
from phalanx.explore.rank_texts import RankTexts
from phalanx.journal.writer import JournalWriter
from phalanx.options import Options


class FunctionSubject:
    """`fn(*args, **kwargs)` on each rank."""

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Options,
        faults: tuple[Any, ...] = (),
        thread_pool: RankThreadPool | None = None,
        shown: bool = False,
    ) -> None:
        self.name = name_of(fn)
        self.options = options
        self.faults = faults
        self.shown = shown
        self._fn, self._args, self._kwargs = fn, args, kwargs
        self._thread_pool = thread_pool or make_thread_pool()

    @property
    def ranks(self) -> int:
        return self.options.ranks

    def run(self, choices: Choices) -> RunOutcome:
        modules = IsolationRule(self.options.isolate) if self.options.isolate else None
        observed = _Observed(self, record=self.options)
        settings = _settings(
            self.options, self.faults, choices=choices, modules=modules, **observed.settings
        )
        engine = ThreadsEngine(settings, thread_pool=self._thread_pool)
        outcome = RunOutcome()
        try:
            with observed:
                outcome.values = engine.run(self._body)
        except Exception as error:
            _note_error(outcome, error)
        finally:
            outcome.fingerprint = engine.fingerprint
            engine.close()
        observed.complete(outcome)
        outcome.findings = tuple(engine.findings)
        return outcome

    def with_changes(
        self, *, ranks: int | None = None, faults: Any = None, shown: bool | None = None
    ) -> FunctionSubject:
        options = self.options if ranks is None else replace(self.options, ranks=ranks)
        plan = self.faults if faults is None else tuple(faults)
        shown = self.shown if shown is None else shown
        called = (self._fn, self._args, self._kwargs)
        return FunctionSubject(*called, options, plan, self._thread_pool, shown)

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
    shown: bool = False

    @property
    def name(self) -> str:
        return self.program.path

    @property
    def ranks(self) -> int:
        return self.options.ranks

    def run(self, choices: Choices) -> RunOutcome:
        outcome = RunOutcome()
        findings: list[Any] = []
        observed = _Observed(self, record=self.options)
        settings = _settings(
            self.options,
            self.faults,
            choices=choices,
            modules=self.rule(),
            environ=self.environ,
            on_findings=findings.extend,
            **observed.settings,
        )
        try:
            with observed:
                run_program(self.program, settings)
        except Exception as error:
            _note_error(outcome, error)
        observed.complete(outcome)
        outcome.findings = tuple(findings)
        return outcome

    def with_changes(
        self, *, ranks: int | None = None, faults: Any = None, shown: bool | None = None
    ) -> Subject:
        return replace(
            self,
            options=self.options if ranks is None else replace(self.options, ranks=ranks),
            faults=self.faults if faults is None else tuple(faults),
            shown=self.shown if shown is None else shown,
        )

    def close(self) -> None: ...


class _Observed:
    """What is seen of a run besides its end: its journal, what ranks print and train. A run that
    is shown keeps nothing of what ranks print, and may be recorded."""

    def __init__(self, subject: FunctionSubject | ScriptSubject, record: Options) -> None:
        self._texts = None if subject.shown else RankTexts(subject.ranks)
        self._parameters = FinalParameters(subject.ranks)
        self._journal: Any = None
        self._recording = RunRecording(record, program=subject.name, command="")
        self._stack = ExitStack()

    @property
    def settings(self) -> dict[str, Any]:
        return {"on_journal": self._follow, "on_rank_end": self._parameters.take}

    def _follow(self, journal: JournalWriter) -> None:
        self._journal = journal.reader()
        self._recording.follow(journal)

    def __enter__(self) -> None:
        self._stack.enter_context(self._recording)
        self._stack.enter_context(self._parameters)
        if self._texts is not None:
            self._stack.enter_context(self._texts)

    def __exit__(self, *about: Any) -> None:
        self._stack.__exit__(*about)
        self._recording.close()

    def complete(self, outcome: RunOutcome) -> None:
        outcome.journal = self._journal
        outcome.output = () if self._texts is None else self._texts.texts()
        outcome.parameters = self._parameters.digests()


def name_of(fn: Callable[..., Any]) -> str:
    """As reports call a function."""
    return str(getattr(fn, "__qualname__", type(fn).__name__))


def _note_error(outcome: RunOutcome, error: Exception) -> None:
    if isinstance(error, UsageError):
        raise error
    outcome.error = error


_HAS_FAULTS = any(each.name == "faults" for each in fields(Settings))


def _settings(options: Options, faults: tuple[Any, ...], **more: Any) -> Settings:
    plan = {"faults": faults} if _HAS_FAULTS and faults else {}
    return Settings.of(options, **plan, **more)

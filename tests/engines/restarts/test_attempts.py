"""When ranks start again, and when a run has failed: values only."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.engines.restarts.attempts import run_attempts
from phalanx.engines.run_settings import Settings, rank_environ
from phalanx.errors import RankFailedError, StallError, UsageError, VerdictError
from phalanx.faults import call, delay, kill
from phalanx.model import RankFailure, Restart, Site, Stall

AT = Site("train.py", 31, "main", "step()")


def failure(*ranks: int) -> RankFailedError:
    verdict = RankFailure(
        kind="rank-failed",
        severity="error",
        ranks=ranks,
        raised=((ranks, "ValueError: lost batch"),),
        sites=dict.fromkeys(ranks, AT),
        stopped=(),
    )
    return RankFailedError("it failed", dict.fromkeys(ranks, ValueError("lost batch")), verdict)


class Attempted:
    """Fails with one error after the other, then succeeds."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.seen: list[Settings] = []
        self.numbers: list[int] = []
        self.told: list[Restart] = []

    def __call__(self, settings: Settings) -> bool:
        self.seen.append(settings)
        assert settings.attempts is not None
        self.numbers.append(settings.attempts.number)
        if self.errors:
            raise self.errors.pop(0)
        return True

    def run(self, **options: Any) -> bool:
        tell = lambda restart, error: self.told.append(restart)  # noqa: E731
        given: dict[str, Any] = {"ranks": 4, "max_restarts": 3, "on_restart": tell, **options}
        return run_attempts(Settings(**given), self)


def test_ranks_start_again_until_they_succeed() -> None:
    attempt = Attempted(failure(2), failure(0))
    assert attempt.run()
    assert attempt.numbers == [0, 1, 2]
    assert [each.ranks for each in attempt.seen] == [4, 4, 4]
    why = "rank 2 raised ValueError: lost batch"
    assert attempt.told[0] == Restart(1, 3, why, AT, 4)
    assert [each.number for each in attempt.told] == [1, 2]


def test_the_error_of_the_last_attempt_is_raised() -> None:
    first, last = failure(2), failure(0)
    attempt = Attempted(first, last)
    with pytest.raises(RankFailedError) as caught:
        attempt.run(max_restarts=1)
    assert caught.value is last
    assert len(attempt.told) == 1


def test_what_is_no_failure_of_a_rank_starts_nothing_again() -> None:
    late = VerdictError("found when all had ended")
    late.of_finished = True
    stall = StallError("time ran out", Stall("stall", "error", (0,), 3.0, ()))
    for error in (late, stall, KeyboardInterrupt(), UsageError("wrong")):
        attempt = Attempted(error)
        with pytest.raises(type(error)):
            attempt.run()
        assert attempt.numbers == [0]


def test_an_error_of_a_check_starts_ranks_again() -> None:
    attempt = Attempted(VerdictError("they wait for each other"))
    assert attempt.run()
    assert attempt.told == [Restart(1, 3, "they wait for each other", None, 4)]


def test_a_fault_happens_once() -> None:
    first, second = kill(rank=2, at=call(3)), delay(rank=1, seconds=3, at=call(9))

    class Faulty(Attempted):
        def __call__(self, settings: Settings) -> bool:
            assert settings.attempts is not None
            if not self.seen:
                settings.attempts.happened.add(first)
            return super().__call__(settings)

    attempt = Faulty(failure(2))
    assert attempt.run(faults=(first, second))
    assert [each.faults for each in attempt.seen] == [(first, second), (second,)]


def test_a_node_of_which_all_ranks_are_killed_is_lost() -> None:
    plan = (
        kill(rank=2, at=call(3)),
        kill(rank=3, at=call(9)),
        delay(rank=3, seconds=1, at=call(1)),
    )
    attempt = Attempted(failure(2))
    assert attempt.run(per_node=2, fewest_nodes=1, faults=plan)
    assert [each.ranks for each in attempt.seen] == [4, 2]
    assert attempt.seen[1].faults == ()
    assert attempt.told[0].fewer


def test_too_few_nodes_are_left() -> None:
    attempt = Attempted(failure(1))
    with pytest.raises(RankFailedError):
        attempt.run(ranks=2, per_node=1, fewest_nodes=2, faults=(kill(rank=1, at=call(3)),))
    assert attempt.numbers == [0]


@pytest.mark.parametrize(
    ("sizes", "failed"),
    [
        ({"per_node": 2, "fewest_nodes": 1}, 0),  # a rank of another node failed by itself
        ({"per_node": 4, "fewest_nodes": 1}, 2),  # the node has others
        ({"per_node": 2}, 2),  # there are to be no fewer
    ],
)
def test_a_worker_that_fails_leaves_its_node(sizes: dict[str, int], failed: int) -> None:
    plan = (kill(rank=2, at=call(3)), kill(rank=3, at=call(3)))
    attempt = Attempted(failure(failed))
    assert attempt.run(**sizes, faults=plan)
    assert [each.ranks for each in attempt.seen] == [4, 4]


def test_ranks_are_told_how_often_they_have_started() -> None:
    attempt = Attempted(failure(2))
    seen: list[tuple[str, str]] = []

    def body(settings: Settings) -> bool:
        environ = rank_environ({}, settings, 0)
        counts = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
        seen.append(tuple(environ[name] for name in counts))  # type: ignore[arg-type]
        return attempt(settings)

    assert run_attempts(Settings(ranks=2, max_restarts=5), body)
    assert seen == [("0", "5"), ("1", "5")]

"""The rule for replicas, with samples made by hand."""

from __future__ import annotations

from phalanx.checks.replicas.replica_drift import (
    find_drift,
    find_other_order,
    find_replica_drift,
)
from phalanx.checks.replicas.replica_samples import KIND, Replica, Sample, SamplerFacts
from phalanx.journal.events import GroupRecord, Noted, Posted
from phalanx.journal.reader import Journal
from phalanx.journal.ring import Ring
from phalanx.model import Site

LINE = Site("train.py", 20, "main", "optimizer.step()")


def sample(calls: int, step: int, *values: int, after: bool = False, **more) -> Sample:
    gradients = () if after else more.pop("gradients", (0,) * len(values))
    return Sample(calls, 0, after, step, float(calls), LINE, values, gradients, **more)


def replica(*samples: Sample, names=("a", "b"), **more) -> Replica:
    given = {
        "ranks": (0, 1, 2),
        "number": 0,
        "title": "DDP(Net)",
        "machine": "here",
        "optimizer": "SGD",
        "names": names,
        "shapes": ((2, 2),) * len(names),
        "order": names,
    }
    return Replica(**{**given, **more}, samples=samples)


def journal(*replicas: Replica, calls=()) -> Journal:
    rings = [Ring(64) for _ in replicas]
    for rank, each in enumerate(replicas):
        rings[rank].add(Noted(0.0, rank, 0, None, KIND, tuple(each)))
    for call in calls:
        rings[call.rank].calls.append(call)
    return Journal(rings, {})


def headline(*replicas: Replica, calls=()) -> str | None:
    found = list(find_replica_drift(journal(*replicas, calls=calls), None))
    assert len(found) < 2
    return found[0].headline if found else None


def test_equal_replicas() -> None:
    one = replica(sample(1, 1, 5, 6), sample(1, 1, 7, 8, after=True))
    assert headline(one, one, one) is None


def test_the_odd_one_is_named() -> None:
    most, odd = replica(sample(1, 1, 5, 6)), replica(sample(1, 1, 5, 9))
    assert headline(most, odd, most) == (
        'replicas of DDP(Net) differ: rank 1 has another "b" than ranks 0, 2 before the first '
        "step of SGD"
    )


def test_two_against_two_and_all_against_all_have_no_odd_one() -> None:
    one, other, third = (replica(sample(1, 1, 5, value)) for value in (6, 7, 8))
    (found,) = find_replica_drift(journal(one, other, other, one), None)
    assert found.ranks == ()
    assert 'ranks 0, 3 have one value, ranks 1, 2 another of "b"' in found.headline
    assert 'ranks 0-2 have 3 different values of "b"' in (headline(one, other, third) or "")


def test_other_moments_are_not_compared() -> None:
    assert headline(replica(sample(1, 1, 5, 6)), replica(sample(2, 1, 7, 8))) is None


def test_another_number_of_steps_at_the_same_moment_is_fine() -> None:
    one, other = replica(sample(9, 4, 5, 6)), replica(sample(9, 7, 5, 6))
    assert headline(one, other) is None


def test_another_machine_model_or_shape_is_not_compared() -> None:
    one = replica(sample(1, 1, 5, 6))
    for more in (
        {"machine": "there"},
        {"number": 1},
        {"ranks": (0, 2)},
        {"shapes": ((2, 2), (3,))},
        {"names": ("a", "c")},
    ):
        assert headline(one, replica(sample(1, 1, 7, 8), **more)) is None


def test_equal_again_before_a_later_step_is_averaging() -> None:
    def one(value: int) -> Replica:
        after = sample(1, 1, value, 6, after=True)
        return replica(sample(1, 1, 5, 6), after, sample(4, 2, 9, 6))

    assert headline(one(1), one(2), one(3)) is None


def test_equal_again_after_a_step_is_no_averaging() -> None:
    """Zeroed by a clamp, say: what counts is what the next step begins with."""
    one = replica(sample(1, 1, 5, 6), sample(1, 1, 0, 0, after=True))
    other = replica(sample(1, 1, 5, 7), sample(1, 1, 0, 0, after=True))
    assert headline(one, other) is not None


def test_only_those_that_differed_count_for_equal_again() -> None:
    most = replica(sample(1, 1, 5, 6), sample(4, 2, 9, 6))
    odd = replica(sample(1, 1, 5, 7))
    assert headline(most, most, odd) is not None


def test_gradients_settings_and_steps_explain() -> None:
    after = sample(2, 1, 7, 8, after=True), sample(2, 1, 7, 9, after=True)
    one = replica(sample(2, 1, 5, 6, gradients=(1, 2)), after[0])
    other = replica(sample(2, 1, 5, 6, gradients=(1, 3)), after[1])
    assert (headline(one, one, other) or "").startswith(
        "step 1 of SGD used gradients that were"
    )
    slow, fast = (("lr", "0.1"), ("nesterov", "False")), (("lr", "0.01"), ("nesterov", "False"))
    one = replica(sample(2, 1, 5, 6, settings=slow), after[0])
    other = replica(sample(2, 1, 5, 6, settings=fast), after[1])
    assert headline(one, one, other) == (
        "SGD steps with lr=0.1 on ranks 0, 1, lr=0.01 on rank 2: replicas of DDP(Net) differ "
        'in "b" since'
    )
    equal = replica(sample(2, 1, 5, 6), after[0]), replica(sample(2, 1, 5, 6), after[1])
    (found,) = find_replica_drift(journal(*equal), None)
    assert found.hint is not None and found.hint.startswith("so the optimizers differ")


def test_a_setting_that_differs_in_its_last_digits_is_shown_whole() -> None:
    def one(rate: str, value: int) -> Replica:
        settings = (("lr", rate),)
        first = sample(2, 1, 5, 6, settings=settings)
        return replica(first, sample(2, 1, 7, value, after=True))

    assert "lr=0.1 on rank 0, lr=0.10000000000000002 on rank 1" in (
        headline(one("0.1", 1), one("0.10000000000000002", 2)) or ""
    )


def test_a_step_left_out() -> None:
    def one(last: int) -> Replica:
        return replica(
            sample(1, 1, 5, 6),
            sample(1, 1, 6, 7, after=True),
            sample(2, 2, 6, 7),
            sample(2, 2, 7, 8, after=True),
            sample(3, last, 7, 8),
        )

    odd = replica(sample(1, 1, 5, 6), sample(1, 1, 6, 7, after=True), sample(3, 2, 6, 7))
    (found,) = find_replica_drift(journal(one(3), odd, one(3)), None)
    assert found.ranks == (1,)
    assert found.headline.startswith("rank 1 did not make step 2 of SGD, which ranks 0, 2 made")


def test_a_moment_that_a_rank_did_not_look_at_is_no_step_left_out() -> None:
    def one(*between: Sample, value: int = 7) -> Replica:
        return replica(sample(1, 1, 5, 6), *between, sample(3, 3, 7, value))

    told = headline(one(sample(2, 2, 6, 7)), one(value=8)) or ""
    assert "did not make" not in told and "replicas of DDP(Net) differ" in told


def test_steps_that_nobody_looked_at_are_counted() -> None:
    one = replica(sample(1, 1, 5, 6), sample(64, 40, 8, 8))
    other = replica(sample(1, 1, 5, 6), sample(64, 39, 9, 9))
    told = headline(one, one, other) or ""
    assert told.startswith("ranks 0, 1 made 39, rank 2 made 38 steps of SGD: replicas")


def call(name: str, shape: tuple[int, ...], time: float = 2.0, **more) -> Posted:
    world = GroupRecord(0, "world", (0, 1))
    signature = (name, 0, ("float32", shape, True))
    return Posted(time, 1, 0, LINE, world, name, 0, 1, signature=signature, **more)


def test_parameters_that_the_program_exchanges_itself() -> None:
    one, other = replica(sample(1, 1, 5, 6)), replica(sample(1, 1, 5, 7))
    assert headline(one, other, calls=[call("all_reduce", (2, 2))]) is None
    assert headline(one, other, calls=[call("send", (2, 2), peer=0)]) is None
    assert headline(one, other, calls=[call("send", (8,), peer=0)]) is None
    assert headline(one, other, calls=[call("all_reduce", (8,))]) is not None  # DDP's bucket
    assert headline(one, other, calls=[call("all_reduce", (2, 2), time=0.5)]) is not None
    assert headline(one, other, calls=[call("all_reduce", (3, 3))]) is not None


def test_a_gather_at_the_end_only_looks() -> None:
    one, other = replica(sample(1, 1, 5, 6)), replica(sample(1, 1, 5, 7))
    gather, bucket = call("all_gather", (2, 2)), call("all_reduce", (8,), time=3.0)
    assert headline(one, other, calls=[gather]) is not None
    assert headline(one, other, calls=[gather, bucket]) is None  # it trains on
    assert headline(one, other, calls=[call("send", (1,), peer=0)]) is not None


def test_the_same_parameters_in_another_order() -> None:
    one = replica(sample(1, 1, 5, 6), order=("a", "b"))
    other = replica(sample(1, 1, 5, 6), order=("b", "a"))
    found = find_other_order({0: one, 1: other, 2: one})
    assert found is not None and found.ranks == (1,)
    assert found.headline == (
        "rank 1 gave SGD the parameters of DDP(Net) in another order than ranks 0, 2: "
        'parameter 0 is "b", not "a"'
    )
    assert find_other_order({0: one, 1: one}) is None
    assert headline(one, other, one) == found.headline


def test_drift_comes_before_order_and_is_told_once() -> None:
    one, other = replica(sample(1, 1, 5, 6)), replica(sample(1, 1, 5, 7), order=("b", "a"))
    assert "differ:" in (headline(one, other, one) or "")
    assert find_drift({0: one, 1: one}) is None


def sampler(rank: int, **more) -> SamplerFacts:
    given = {"shuffle": True, "seed": 0, "epoch": 0, "drop_last": False, "total_size": 12}
    return SamplerFacts("loader", rank, 2, **{**given, **more})


def looping(rank: int, *facts: dict) -> Replica:
    samples = (
        sample(number, number, 5, 6, samplers=(sampler(rank, **each),))
        for number, each in enumerate(facts, 1)
    )
    return replica(*samples, ranks=(0, 1))


def test_samplers_of_datasets_of_another_length() -> None:
    one, other = looping(0, {"length": 12}), looping(1, {"length": 11})
    assert headline(one, other) == (
        "the dataset of loader has 12 samples on rank 0 and 11 on rank 1"
    )
    assert headline(one, looping(1, {"length": 12})) is None
    assert headline(one, looping(1, {"length": None})) is None
    kept = {"shuffle": False}
    one, other = looping(0, {"length": 12, **kept}), looping(1, {"length": 11, **kept})
    assert headline(one, other) is None


def test_samplers_of_another_seed_length_or_order() -> None:
    assert headline(looping(0, {}), looping(1, {})) is None
    for name, value in (("seed", 3), ("drop_last", True), ("total_size", 11)):
        told = headline(looping(0, {}), looping(1, {name: value})) or ""
        assert told.startswith("loader has ") and f"{name}={value} on rank 1" in told
    still = {"shuffle": False}
    assert headline(looping(0, still), looping(1, {**still, "seed": 1})) is None


def test_an_epoch_that_a_rank_is_ahead_in_for_a_moment() -> None:
    first, second = {"epoch": 0}, {"epoch": 1}
    ahead = looping(0, first, second, second)
    assert headline(ahead, looping(1, first, first, second)) is None
    assert headline(looping(0, first, second), looping(1, first, first)) is None
    assert "epoch=0 on rank 1" in (headline(ahead, looping(1, first, first, first)) or "")


def test_samplers_for_another_number_of_replicas_are_left_alone() -> None:
    one, other = looping(0, {}), looping(0, {"seed": 5})
    wider = [each._replace(ranks=(0, 1, 2)) for each in (one, other, one)]
    assert headline(*wider) is None
    assert "read the same part" in (headline(one, other) or "")


# -- whose fault it is ------------------------------------------------------------------------


def test_the_rank_that_wrote_since_the_model_was_wrapped() -> None:
    still = replica(sample(1, 1, 5, 6), wrapped=(5, 6), ranks=(0, 1))
    wrote = replica(sample(1, 1, 5, 9), wrapped=(5, 6), ranks=(0, 1))
    (found,) = find_replica_drift(journal(wrote, still), None)
    assert found.ranks == (0,)
    assert found.headline.startswith('rank 0 changed "b" after DDP had wrapped the model')
    assert ("agreed", "all of them when DDP had wrapped the model") in found.facts
    both = replica(sample(1, 1, 5, 7), wrapped=(5, 6), ranks=(0, 1))
    (found,) = find_replica_drift(journal(wrote, both), None)
    assert found.ranks == ()
    unlike = still._replace(wrapped=(5, 7))
    (found,) = find_replica_drift(journal(wrote, unlike), None)
    assert found.ranks == (), "they were never equal"


def test_the_rank_that_wrote_between_two_steps() -> None:
    def one(value: int, step: int = 2) -> Replica:
        return replica(
            sample(1, 1, 5, 6),
            sample(1, 1, 7, 8, after=True),
            sample(2, step, 7, value),
            ranks=(0, 1),
        )

    (found,) = find_replica_drift(journal(one(8), one(3)), None)
    assert found.ranks == (1,)
    assert found.headline.startswith('rank 1 changed "b" after step 1 of SGD and rank 0 did')
    (found,) = find_replica_drift(journal(one(8, 3), one(3, 3)), None)
    assert found.ranks == (), "a step that nobody looked at came between"


def test_most_ranks_are_right_about_who_wrote() -> None:
    wrote = replica(sample(1, 1, 5, 9), wrapped=(5, 6))
    still = replica(sample(1, 1, 5, 6), wrapped=(5, 6))
    (found,) = find_replica_drift(journal(wrote, wrote, still), None)
    assert found.ranks == (2,)
    assert 'rank 2 has another "b" than ranks 0, 1' in found.headline


def test_the_rank_whose_last_backward_averaged_nothing() -> None:
    def one(gradient: int, value: int, synced: bool) -> Replica:
        first = sample(2, 1, 5, 6, gradients=(1, gradient), synced=synced)
        return replica(first, sample(2, 1, 7, value, after=True), ranks=(0, 1))

    (found,) = find_replica_drift(journal(one(2, 8, True), one(3, 9, False)), None)
    assert found.ranks == (1,)
    assert "its last backward was in no_sync()" in found.headline
    (found,) = find_replica_drift(journal(one(2, 8, False), one(3, 9, False)), None)
    assert found.ranks == () and found.headline.startswith("all ranks made step 1")


def test_the_order_of_the_model_says_who_has_another_one() -> None:
    def one(value: int, *order: str) -> Replica:
        after = sample(2, 1, 7, value, after=True)
        return replica(sample(2, 1, 5, 6), after, ranks=(0, 1), order=order)

    (found,) = find_replica_drift(journal(one(8, "b", "a"), one(9, "a", "b")), None)
    assert found.ranks == (0,)
    assert found.headline.startswith("rank 0 gave SGD the parameters of DDP(Net) in another")
    assert found.facts[0] == ("differs", '"b", after step 1 of SGD')


def test_the_line_that_makes_a_sampler(tmp_path) -> None:
    path = tmp_path / "train.py"
    path.write_text("s = DistributedSampler(d, seed=rank)\nopt.step()\n", encoding="ascii")
    here = Site(str(path), 2, "<module>", "opt.step()")

    def one(rank: int) -> Replica:
        made = looping(rank, {"seed": rank})
        return made._replace(samples=tuple(s._replace(mark=here) for s in made.samples))

    (found,) = find_replica_drift(journal(one(0), one(1)), None)
    made, step = found.blocks
    assert (made.op.site.line, made.ranks) == (1, (0, 1)) and step.op.site == here

"""How ranks find each other: `env://`, `tcp://`, `file://`, a store; and what each rank sees in
its environment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from tests.support import assert_silent


def own_rank() -> int:
    return int(os.environ["RANK"])


def by_environment(folder: Path) -> None:
    dist.init_process_group("gloo")


def by_environment_url(folder: Path) -> None:
    dist.init_process_group("gloo", init_method="env://")


def by_tcp(folder: Path) -> None:
    dist.init_process_group(
        "gloo", init_method="tcp://127.0.0.1:29511", rank=own_rank(), world_size=3
    )


def by_tcp_query(folder: Path) -> None:
    url = f"tcp://127.0.0.1:29511?rank={own_rank()}&world_size=3"
    dist.init_process_group("gloo", init_method=url)


def by_file(folder: Path) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=own_rank(), world_size=3
    )


def by_file_store(folder: Path) -> None:
    store = dist.FileStore(str(folder / "store"), 3)
    dist.init_process_group("gloo", store=store, rank=own_rank(), world_size=3)


def by_any_backend(folder: Path) -> None:
    dist.init_process_group(backend="cpu:gloo,cuda:nccl")


WAYS = [
    by_environment,
    by_environment_url,
    by_tcp,
    by_tcp_query,
    by_file,
    by_file_store,
    by_any_backend,
]


def total() -> float:
    tensor = torch.tensor(10.0 ** dist.get_rank())
    dist.all_reduce(tensor)
    return tensor.item()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_to_initialise_twice_over(
    way: Callable[[Path], None], tmp_path: Path
) -> None:
    """The second time must not find the keys of the first."""

    def program() -> list[Any]:
        found: list[Any] = []
        for turn in ("first", "second"):
            (tmp_path / turn).mkdir(exist_ok=True)
            way(tmp_path / turn)
            store = dist.distributed_c10d._get_default_store()
            left_over = store.check([f"mark {dist.get_rank()}"])
            store.set(f"mark {dist.get_rank()}", "here")
            found += [dist.get_rank(), dist.get_world_size(), total(), left_over]
            dist.destroy_process_group()
        return found

    expected = [[rank, 3, 111.0, False] * 2 for rank in range(3)]
    assert phalanx.run(program, ranks=3, init=False) == expected


def test_a_store_that_ranks_share() -> None:
    store = dist.HashStore()

    def program() -> float:
        dist.init_process_group("gloo", store=store, rank=own_rank(), world_size=2)
        return total()

    assert phalanx.run(program, ranks=2, init=False) == [11.0, 11.0]


def test_some_ranks_may_make_a_world_of_their_own() -> None:
    def program() -> Any:
        if own_rank() == 1:
            return None
        place = {0: 0, 2: 1}[own_rank()]
        dist.init_process_group("gloo", init_method="tcp://a:1", rank=place, world_size=2)
        return dist.get_rank(), total()

    assert phalanx.run(program, ranks=3, init=False) == [(0, 11.0), None, (1, 11.0)]


def test_two_addresses_are_two_worlds() -> None:
    def program() -> float:
        pair, place = divmod(own_rank(), 2)
        dist.init_process_group(
            "gloo", init_method=f"tcp://host:{1 + pair}", rank=place, world_size=2
        )
        tensor = torch.tensor(10.0 ** own_rank())
        dist.all_reduce(tensor)
        return tensor.item()

    assert phalanx.run(program, ranks=4, init=False) == [11.0, 11.0, 1100.0, 1100.0]


def initialise(url: str = "env://", **kwargs: Any) -> Callable[[], None]:
    return lambda: dist.init_process_group("gloo", init_method=url, **kwargs)


def forget(name: str) -> Callable[[], None]:
    def call() -> None:
        del os.environ[name]
        dist.init_process_group("gloo")

    return call


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "more ranks than the run has": (
        initialise(rank=0, world_size=5),
        ValueError,
        r"world_size=5\) in a run of 2 ranks .*: start 5 ranks, or leave world_size out",
    ),
    "more ranks, by a store": (
        lambda: dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=5),
        ValueError,
        r"world_size=5\) in a run of 2 ranks",
    ),
    "a rank outside": (
        initialise("tcp://h:1", rank=7, world_size=2),
        ValueError,
        r"rank 7 is not in 0\.\.1 \(world_size=2\)",
    ),
    "tcp without a rank": (
        initialise("tcp://h:1", world_size=2),
        ValueError,
        "using tcp://: no rank= given",
    ),
    "file without a size": (
        initialise("file:///tmp/x", rank=0),
        ValueError,
        "using file://: no world_size= given",
    ),
    "no RANK": (forget("RANK"), ValueError, "using env://: no environment variable RANK"),
    "no WORLD_SIZE": (
        forget("WORLD_SIZE"),
        ValueError,
        "using env://: no environment variable WORLD_SIZE",
    ),
    "an unknown scheme": (
        initialise("http://h:1"),
        RuntimeError,
        "no rendezvous for 'http://'; write env://, tcp://host:port or file:///path",
    ),
    "no scheme": (initialise("nonsense"), RuntimeError, "init_method='nonsense'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_wrong_arguments_are_refused_at_the_caller(what: str) -> None:
    call, error, text = REFUSED[what]

    def program() -> bool:
        with pytest.raises(error, match=text):
            call()
        return dist.is_initialized()

    assert phalanx.run(program, ranks=2, init=False) == [False, False]


def test_initialising_twice_without_destroying() -> None:
    def program() -> None:
        with pytest.raises(ValueError, match="twice"):
            dist.init_process_group("gloo")

    phalanx.run(program, ranks=2)


def test_a_rank_that_does_not_come_is_named() -> None:
    def program() -> None:
        if own_rank() == 0:
            dist.init_process_group("gloo")
            total()

    with pytest.raises(phalanx.DeadlockError) as caught:
        phalanx.run(program, ranks=2, init=False)
    assert caught.value.verdict is not None
    assert caught.value.verdict.cause == "finished-peer"


def meet_at(address: str | None, size: int, number: int) -> float:
    store = None if address else dist.HashStore()
    dist.init_process_group(
        "gloo", init_method=address, store=store, rank=number, world_size=size
    )
    found = total()
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("places", "headline"),
    [
        (["tcp://h:1", "tcp://h:2"], "rank 0 waits in {} at tcp://h:1, rank 1 at tcp://h:2"),
        (
            ["tcp://h:2", "tcp://h:1", "tcp://h:1"],
            "ranks 1, 2 wait in {} at tcp://h:1, rank 0 at tcp://h:2",
        ),
        (
            ["file:///tmp/a", "file:///tmp/b"],
            "rank 0 waits in {} at file:///tmp/a, rank 1 at file:///tmp/b",
        ),
        (
            [None, None],
            "rank 0 waits in {} at store=HashStore() of rank 0, "
            "rank 1 at store=HashStore() of rank 1",
        ),
    ],
)
def test_ranks_that_meet_nobody_are_told_where_each_of_them_waits(
    places: list[str | None], headline: str, seed: int
) -> None:
    size = len(places)
    with pytest.raises(phalanx.CollectiveMismatchError) as caught:
        phalanx.run(
            lambda: meet_at(places[own_rank()], size, own_rank()),
            ranks=size,
            init=False,
            seed=seed,
        )
    first, *_ = str(caught.value).splitlines()
    assert first == headline.format("init_process_group")


def test_sizes_that_differ_at_one_address_are_told() -> None:
    sizes, numbers = [2, 3, 3], [0, 0, 1]
    with pytest.raises(phalanx.CollectiveMismatchError) as caught:
        phalanx.run(
            lambda: meet_at("tcp://h:1", sizes[own_rank()], numbers[own_rank()]),
            ranks=3,
            init=False,
        )
    first, *_ = str(caught.value).splitlines()
    assert first == (
        "ranks 1, 2 wait in init_process_group at tcp://h:1, world_size=3, "
        "rank 0 at tcp://h:1, world_size=2"
    )
    assert caught.value.verdict is not None and caught.value.verdict.ranks == (0,)


def test_the_error_is_raised_where_ranks_wait() -> None:
    found: list[str] = []

    def program() -> None:
        try:
            meet_at(f"tcp://h:{own_rank()}", 2, own_rank())
        except phalanx.CollectiveMismatchError as error:
            found.append(str(error).partition("\n")[0])
            raise

    with pytest.raises(phalanx.CollectiveMismatchError) as caught:
        phalanx.run(program, ranks=2, init=False)
    assert found == [str(caught.value).partition("\n")[0]] * 2


@pytest.mark.parametrize("seed", [0, 1])
def test_nobody_leaves_init_before_all_have_come(seed: int) -> None:
    come: list[int] = []

    def program() -> int:
        come.append(own_rank())
        dist.init_process_group("gloo")
        return len(come)

    assert phalanx.run(program, ranks=3, init=False, seed=seed) == [3, 3, 3]


def test_a_group_of_nccl_over_the_store_of_torchrun_waits_for_nobody() -> None:
    come: list[int] = []

    def program() -> int:
        dist.init_process_group("nccl")
        come.append(own_rank())
        seen = len(come)
        dist.destroy_process_group()
        return seen

    assert phalanx.run(program, ranks=2, init=False) == [1, 2]


def test_a_world_made_again_elsewhere_by_all_and_worlds_beside_each_other_are_right() -> None:
    def program() -> list[float]:
        pair, place = divmod(own_rank(), 2)
        return [
            meet_at("tcp://h:1", 4, own_rank()),
            meet_at(f"tcp://h:{2 + pair}", 2, place),
            meet_at("tcp://h:1", 4, own_rank()),
            meet_at(f"tcp://h:{4 + own_rank()}", 1, 0),
        ]

    assert_silent(program, ranks=4, init=False)


def test_an_init_that_times_out_is_over() -> None:
    def program() -> bool:
        if own_rank() == 1:
            time.sleep(0.5)
            return False
        try:
            dist.init_process_group("gloo", timeout=timedelta(seconds=0.1))
        except dist.DistStoreError as error:
            return "1 of 2 ranks came to tcp://127.0.0.1:29500" in str(error)
        return False

    assert phalanx.run(program, ranks=2, init=False) == [True, False]


VARIABLES = {
    "RANK": "{rank}",
    "LOCAL_RANK": "{rank}",
    "WORLD_SIZE": "3",
    "LOCAL_WORLD_SIZE": "3",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "ROLE_RANK": "{rank}",
    "ROLE_WORLD_SIZE": "3",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RUN_ID": "phalanx",
}


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("bare_environment")
def test_each_rank_has_the_variables_of_torchrun() -> None:
    results = phalanx.run(lambda: {name: os.environ[name] for name in VARIABLES}, ranks=3)
    for rank, result in enumerate(results):
        assert result == {name: text.format(rank=rank) for name, text in VARIABLES.items()}
    assert not any(name in os.environ for name in VARIABLES)


def test_what_torch_reads_from_the_environment() -> None:
    def program() -> Any:
        return dist.get_node_local_rank(), dist.is_torchelastic_launched()

    assert phalanx.run(program, ranks=2) == [(0, True), (1, True)]


def test_a_master_address_of_the_caller_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("RANK", "77")
    assert phalanx.run(lambda: (os.environ["MASTER_ADDR"], own_rank()), ranks=1) == [
        ("10.0.0.1", 0)
    ]
    assert os.environ["RANK"] == "77"


WRITES: dict[str, Callable[[str], Any]] = {
    "item": lambda value: os.environ.__setitem__("PHALANX_TEST", value),
    "update": lambda value: os.environ.update(PHALANX_TEST=value),
    "setdefault": lambda value: os.environ.setdefault("PHALANX_TEST", value),
}


@pytest.mark.parametrize("write", WRITES)
def test_writes_to_the_environment_stay_in_their_rank(write: str) -> None:
    def program() -> list[Any]:
        before = os.environ.get("PHALANX_TEST")
        dist.barrier()
        if dist.get_rank() < 2:
            WRITES[write](f"of rank {dist.get_rank()}")
        dist.barrier()
        return [before, os.environ.get("PHALANX_TEST"), "PHALANX_TEST" in dict(os.environ)]

    expected = [[None, "of rank 0", True], [None, "of rank 1", True], [None, None, False]]
    assert phalanx.run(program, ranks=3) == expected
    assert "PHALANX_TEST" not in os.environ


def test_deletes_stay_in_their_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_TEST", "outer")

    def program() -> str | None:
        if dist.get_rank() == 0:
            del os.environ["PHALANX_TEST"]
        dist.barrier()
        return os.environ.pop("PHALANX_TEST", None)

    assert phalanx.run(program, ranks=2) == [None, "outer"]
    assert os.environ["PHALANX_TEST"] == "outer"


def test_the_environment_lasts_as_long_as_the_world() -> None:
    def write() -> None:
        os.environ["PHALANX_TEST"] = str(dist.get_rank())

    with phalanx.World(ranks=2) as world:
        world.run(write)
        assert world.run(lambda: os.environ.get("PHALANX_TEST")) == ["0", "1"]
    assert phalanx.run(lambda: os.environ.get("PHALANX_TEST"), ranks=2) == [None, None]

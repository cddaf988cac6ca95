"""Replicas that drift, and programs that look alike and are right."""

from __future__ import annotations

import contextlib
import copy
import warnings
import weakref
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler

import phalanx
from tests.support import assert_silent

KIND = "replica-drift"
DDP = nn.parallel.DistributedDataParallel


def findings(program, ranks: int = 3, **options):
    with phalanx.World(ranks=ranks, **options) as world:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", phalanx.PhalanxWarning)
            world.run(program)
        return [each for each in world.findings if each.kind == KIND]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def data(step: int, rows: int = 3) -> Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(step * 64 + me()))


def me() -> int:
    return dist.get_rank()


def train(model, optimizer, steps: int = 4) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(data(step)).square().sum().backward()
        optimizer.step()


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


# -- wrong ------------------------------------------------------------------------------------


def initialised_again() -> None:
    model = DDP(net())
    if me() == 1:
        nn.init.normal_(model.module[2].weight)
    train(model, sgd(model))


def initialised_by_own_seed() -> None:
    model = DDP(net())
    torch.manual_seed(me())
    for each in model.module.parameters():
        nn.init.normal_(each)
    train(model, sgd(model))


def loaded_on_one_rank_while_training() -> None:
    model = DDP(net())
    optimizer = sgd(model)
    saved = copy.deepcopy(model.state_dict())
    train(model, optimizer, 2)
    if me() == 0:
        model.load_state_dict(saved)
    train(model, optimizer, 2)


def no_sync_off_by_one() -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for step in range(8):
        syncs = step % 4 == 0
        with contextlib.nullcontext() if syncs else model.no_sync():
            model(data(step)).square().sum().backward()
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def no_sync_on_one_rank() -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for step in range(4):
        optimizer.zero_grad()
        for micro in range(2):
            with contextlib.nullcontext() if (micro == 1) != (me() == 1) else model.no_sync():
                model(data(step + micro)).square().sum().backward()
        optimizer.step()


def last_batches_in_no_sync() -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for step in range(7):
        syncs = step % 3 == 2
        with contextlib.nullcontext() if syncs else model.no_sync():
            model(data(step)).square().sum().backward()
        if syncs or step == 6:
            optimizer.step()
            optimizer.zero_grad()


def the_model_inside() -> None:
    model = DDP(net())
    train(model.module, sgd(model))


def a_step_left_out() -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for step in range(5):
        optimizer.zero_grad()
        model(data(step)).square().sum().backward()
        if (me(), step) != (2, 2):
            optimizer.step()


def another_learning_rate() -> None:
    model = DDP(net())
    train(model, sgd(model, lr=0.2 if me() == 1 else 0.1))


def state_loaded_on_rank_0_only() -> None:
    model = DDP(net())
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, 1)
    if me() == 0:
        for state in optimizer.state.values():
            state["exp_avg"].zero_()
    train(model, optimizer, 2)


def clipped_on_one_rank() -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for step in range(3):
        optimizer.zero_grad()
        model(data(step)).square().sum().backward()
        if me() == 1:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


def a_random_step() -> None:
    model = DDP(net())

    class Noisy(torch.optim.SGD):
        def step(self, closure=None):
            super().step()
            with torch.no_grad():
                for each in self.param_groups[0]["params"]:
                    each += torch.randn(each.shape)

    torch.manual_seed(me())
    train(model, Noisy(model.parameters(), lr=0.1))


def a_compressing_hook() -> None:
    model = DDP(net())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    nn.init.constant_(model.module[0].bias, float(me() == 2))
    train(model, sgd(model))


WRONG = {
    a_compressing_hook: ((2,), "before the first step of SGD", "before the model is"),
    initialised_again: ((1,), "before the first step of SGD", "before the model is"),
    initialised_by_own_seed: (
        (),
        "before the first step of SGD",
        "before the model is",
    ),
    loaded_on_one_rank_while_training: ((0,), "before step 3 of SGD", "something else"),
    no_sync_off_by_one: ((), "all ranks made step 1 of SGD with their own", "no_sync()"),
    last_batches_in_no_sync: ((), "all ranks made step 3 of SGD with their own", "no_sync()"),
    no_sync_on_one_rank: (
        (1,),
        "rank 1 made step 2 of SGD with its own gradient, because its last backward was in "
        "no_sync()",
        "in the same micro batch on all ranks",
    ),
    the_model_inside: ((), "step 1 of SGD used gradients that were not", "inside DDP"),
    a_step_left_out: ((2,), "rank 2 did not make step 3 of SGD, which ranks 0, 1 made", "same"),
    another_learning_rate: ((1,), "lr=0.1 on ranks 0, 2, lr=0.2 on rank 1", "set it alike"),
    state_loaded_on_rank_0_only: ((0,), "after step 2 of Adam", "state"),
    clipped_on_one_rank: ((1,), "step 1 of SGD used gradients", "changed them on some ranks"),
    a_random_step: ((), "after step 1 of Noisy", "by chance"),
}


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_replicas_that_differ_are_found_with_the_reason(program) -> None:
    (found,) = findings(program)
    ranks, headline, hint = WRONG[program]
    assert found.severity == "warning"
    assert found.ranks == ranks
    assert headline in found.headline and "DDP(Sequential)" in found.headline
    assert hint in found.hint
    assert found.blocks[0].op.site.file.endswith("test_replica_drift_in_ranks.py")


def test_the_first_parameter_and_all_that_differ_are_named() -> None:
    (found,) = findings(initialised_again)
    assert found.headline == (
        'rank 1 changed "2.weight" after DDP had wrapped the model and ranks 0, 2 did not: '
        "replicas of DDP(Sequential) differ before the first step of SGD"
    )
    assert ("differs", '"2.weight" (1 of 4 parameters)') in found.facts


@pytest.mark.programs
@pytest.mark.parametrize("program", [initialised_again, no_sync_off_by_one, a_step_left_out])
def test_processes_find_the_same(program) -> None:
    (found,) = findings(program, engine="processes")
    (on_threads,) = findings(program)
    assert found == on_threads


def test_a_drift_late_in_a_long_run_is_found_at_the_next_look() -> None:
    def program() -> None:
        model = DDP(nn.Linear(4, 1))
        optimizer = sgd(model, lr=1e-3)
        for step in range(150):
            optimizer.zero_grad()
            model(data(step)).square().sum().backward()
            if (me(), step) != (1, 100):
                optimizer.step()

    (found,) = findings(program)
    assert found.ranks == () or found.ranks == (1,)
    assert "replicas of DDP(Linear) differ" in found.headline
    assert "rank 1 made" in found.headline or "rank 1 did not make" in found.headline


# -- right ------------------------------------------------------------------------------------


def plain() -> None:
    for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop):
        model = DDP(net())
        train(model, make(model.parameters(), lr=1e-2), 20)


def accumulated() -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for step in range(12):
        syncs = step % 4 == 3
        with contextlib.nullcontext() if syncs else model.no_sync():
            model(data(step)).square().sum().backward()
        if syncs:
            optimizer.step()
            optimizer.zero_grad()


def batch_norm(**options) -> None:
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)), **options)
    train(model, sgd(model), 6)


class RunningMean(nn.Module):
    """Assigns a new tensor to its buffer: DDP collects buffers anew before each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        means = [torch.empty(4) for _ in range(dist.get_world_size())]
        dist.all_gather(means, self.mean)
        assert all(torch.equal(each, self.mean) for each in means)
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        result: Tensor = self.layer(x - self.mean)
        return result


def a_buffer_assigned_anew() -> None:
    torch.manual_seed(0)
    model = DDP(RunningMean())
    train(model, sgd(model))


def own_batch_statistics() -> None:
    batch_norm(broadcast_buffers=False)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 1)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen * 0.9 + x.mean().detach()
        result: Tensor = self.line(x)
        return result


def a_buffer_reassigned() -> None:
    model = DDP(Counting())
    train(model, sgd(model))


def uneven_inputs_twice() -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for _ in range(2):
        with model.join():
            train(model, optimizer, 2 + me())
        dist.barrier()


def local_sgd() -> None:
    """Replicas drift between averages, and the run ends before the next."""
    model = DDP(net())
    optimizer = sgd(model)
    for step in range(10):
        optimizer.zero_grad()
        with model.no_sync():
            model(data(step)).square().sum().backward()
        optimizer.step()
        if step % 4 == 3:
            for each in model.parameters():
                dist.all_reduce(each.data)
                each.data /= dist.get_world_size()


def uneven_local_steps() -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for _ in range(3):
        for step in range(1 + me()):
            optimizer.zero_grad()
            with model.no_sync():
                model(data(step)).square().sum().backward()
            optimizer.step()
        for each in model.parameters():
            dist.all_reduce(each.data, op=dist.ReduceOp.AVG)


def elastic_averaging() -> None:
    """Replicas are drawn to their mean and never equal."""
    model = DDP(net())
    optimizer = sgd(model)
    for step in range(6):
        optimizer.zero_grad()
        with model.no_sync():
            model(data(step)).square().sum().backward()
        optimizer.step()
        for each in model.parameters():
            mean = each.data.clone()
            dist.all_reduce(mean)
            each.data.lerp_(mean / dist.get_world_size(), 0.5)


def gossip() -> None:
    model = DDP(net())
    optimizer = sgd(model)
    size = dist.get_world_size()
    for step in range(4):
        optimizer.zero_grad()
        with model.no_sync():
            model(data(step)).square().sum().backward()
        optimizer.step()
        for each in model.parameters():
            theirs = torch.empty_like(each.data)
            ops = [
                dist.P2POp(dist.isend, each.data, (me() + 1) % size),
                dist.P2POp(dist.irecv, theirs, (me() - 1) % size),
            ]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            each.data.lerp_(theirs, 0.5)


def compressed() -> None:
    model = DDP(net())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(model, sgd(model))


def a_hook_of_its_own() -> None:
    def keep(state, bucket):
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    model = DDP(net())
    model.register_comm_hook(None, keep)
    train(model, sgd(model))


def two_optimizers() -> None:
    """A generator and a discriminator that trains every other step."""
    generator, judge = DDP(net()), DDP(nn.Linear(2, 1))
    ours, theirs = sgd(generator), sgd(judge)
    for step in range(6):
        judge.zero_grad()
        generator.zero_grad()
        judge(generator(data(step))).sum().backward()
        if step % 2:
            theirs.step()
        ours.step()


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.expert = nn.Linear(4, 4), nn.Linear(4, 1)
        self._ddp_params_and_buffers_to_ignore = ["expert.weight", "expert.bias"]

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.expert(self.shared(x))
        return result


def experts() -> None:
    torch.manual_seed(0)
    model = Experts()
    nn.init.constant_(model.expert.weight, me() + 1.0)
    model = DDP(model)
    train(model, sgd(model))


def frozen() -> None:
    model = net()
    model[0].requires_grad_(False)
    model = DDP(model)
    nn.init.constant_(model.module[0].bias, me())
    some = [each for each in model.parameters() if each.requires_grad]
    train(model, torch.optim.SGD(some, lr=0.1))


def an_average_beside() -> None:
    model = DDP(net())
    optimizer = sgd(model)
    average = copy.deepcopy(model.module)
    for step in range(3):
        train(model, optimizer, 1)
        if me() == 0:
            with torch.no_grad():
                for kept, each in zip(average.parameters(), model.parameters(), strict=True):
                    kept.lerp_(each, 0.1 * step)


def rank_0_tests_with_the_best() -> None:
    """The last evaluation loads other weights on one rank; nobody trains on."""
    model = DDP(net())
    train(model, sgd(model))
    if me() == 0:
        for each in model.parameters():
            nn.init.zeros_(each)
        model.module(data(0))


def loaded_before_wrapping() -> None:
    model = net()
    if me() == 0:
        for each in model.parameters():
            nn.init.constant_(each, 0.5)
    model = DDP(model)
    train(model, sgd(model))


def loaded_and_broadcast() -> None:
    model = DDP(net())
    if me() == 0:
        nn.init.constant_(model.module[0].weight, 0.5)
    for each in model.parameters():
        dist.broadcast(each.data, src=0)
    train(model, sgd(model))


def a_model_for_each_half() -> None:
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    torch.manual_seed(me() // 2)
    model = DDP(nn.Linear(4, 2), process_group=halves[me() // 2])
    train(model, sgd(model, lr=0.1 * (1 + me() // 2)))


def a_model_of_its_own() -> None:
    torch.manual_seed(me())
    model = nn.Linear(4, 2)
    train(model, sgd(model))


def zero() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DDP(net())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-2
    )
    train(model, optimizer)


def skipped_by_all() -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for step in range(6):
        optimizer.zero_grad()
        model(data(step)).square().sum().backward()
        bad = torch.tensor(float((me(), step) == (1, 3)))
        dist.all_reduce(bad)
        if not bad:
            optimizer.step()


def grows() -> None:
    model = DDP(net())
    optimizer = torch.optim.SGD(model.module[2].parameters(), lr=0.1)
    train(model, optimizer, 2)
    optimizer.add_param_group({"params": list(model.module[0].parameters())})
    train(model, optimizer, 2)


def wrapped_late() -> None:
    model = net()
    optimizer = sgd(model)
    torch.manual_seed(me())
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    train(DDP(model), optimizer, 3)


def a_scheduler() -> None:
    model = DDP(net())
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        train(model, optimizer, 2)
        scheduler.step()


def with_a_closure() -> None:
    model = DDP(net())
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    for step in range(2):

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss = model(data(step)).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)


def not_finite() -> None:
    model = DDP(net())
    train(model, sgd(model, lr=float("inf")), 4)


RIGHT = [
    plain,
    accumulated,
    batch_norm,
    own_batch_statistics,
    a_buffer_reassigned,
    uneven_inputs_twice,
    local_sgd,
    uneven_local_steps,
    elastic_averaging,
    gossip,
    compressed,
    a_hook_of_its_own,
    two_optimizers,
    experts,
    frozen,
    an_average_beside,
    rank_0_tests_with_the_best,
    loaded_before_wrapping,
    loaded_and_broadcast,
    a_model_for_each_half,
    a_model_of_its_own,
    zero,
    skipped_by_all,
    grows,
    wrapped_late,
    a_scheduler,
    with_a_closure,
    not_finite,
    a_buffer_assigned_anew,
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_right_programs_are_silent(program) -> None:
    assert_silent(program, ranks=4, kind=KIND)


@pytest.mark.programs
def test_right_programs_are_silent_on_processes() -> None:
    with phalanx.World(ranks=4, engine="processes") as world:
        for program in (
            accumulated,
            batch_norm,
            uneven_inputs_twice,
            local_sgd,
            two_optimizers,
        ):
            assert_silent(program, world=world, kind=KIND)


# -- meshes -----------------------------------------------------------------------------------


def replicated_shards(odd: int | None = None) -> None:
    """FSDP2 on two times two ranks."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = net()
    fully_shard(model, mesh=mesh)
    if me() == odd:
        with torch.no_grad():
            model[2].weight.to_local().add_(1.0)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    train(model, optimizer)


def tensor_parallel(odd: int | None = None) -> None:
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    torch.manual_seed(0)
    layers = nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)
    model = parallelize_module(nn.Sequential(*layers), mesh, plan)
    if me() == odd:
        with torch.no_grad():
            model[2].bias.to_local().add_(1.0)
    optimizer = torch.optim.Adam(model.named_parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        model(torch.full((3, 4), step + 1.0)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("program", [replicated_shards, tensor_parallel])
def test_meshes_are_silent(program) -> None:
    assert_silent(program, ranks=4, kind=KIND)


def test_a_replicated_shard_that_differs() -> None:
    (found,) = findings(partial(replicated_shards, 3), ranks=4)
    assert found.headline == (
        'replicas of mesh dimension "replicate" differ: rank 1 has one value, rank 3 another '
        'of "2.weight" before the first step of SGD'
    )


def test_a_replicated_parameter_that_differs() -> None:
    (found,) = findings(partial(tensor_parallel, 2), ranks=4)
    assert found.ranks == (2,)
    assert 'rank 2 has another "2.bias" than ranks 0, 1, 3' in found.headline


# -- samplers ---------------------------------------------------------------------------------

ROWS = torch.arange(48.0).view(12, 4) / 48


def epochs(loader: DataLoader, sampler: DistributedSampler, *, sets: bool = True) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for epoch in range(3):
        if sets:
            sampler.set_epoch(epoch)
        for rows in loader:
            optimizer.zero_grad()
            model(rows).square().sum().backward()
            optimizer.step()


def sampled(*, sets: bool = True, **options) -> None:
    sampler = DistributedSampler(ROWS, **options)
    epochs(DataLoader(ROWS, batch_size=2, sampler=sampler), sampler, sets=sets)


def seeded_by_rank() -> None:
    sampled(seed=me())


def set_epoch_on_rank_0() -> None:
    sampled(sets=me() == 0)


def the_same_part() -> None:
    sampled(rank=0, num_replicas=dist.get_world_size())


def shuffled_on_one() -> None:
    sampled(shuffle=me() == 1)


def of_length(length: int, **options) -> None:
    rows = ROWS[:length]
    sampler = DistributedSampler(rows, **options)
    epochs(DataLoader(rows, batch_size=2, sampler=sampler), sampler)


def a_sample_dropped_on_one() -> None:
    of_length(11 if me() == 1 else 12)


class Rows(torch.utils.data.Dataset):
    """Has as many rows as it was given, in a loader that alone has the sampler."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        return ROWS[index]


def in_a_loader_only() -> None:
    def loader() -> DataLoader:
        rows = Rows(10 + me())
        return DataLoader(rows, batch_size=4, sampler=DistributedSampler(rows))

    model, batches = DDP(net()), loader()
    optimizer = sgd(model)
    for rows in batches:
        optimizer.zero_grad()
        model(rows).square().sum().backward()
        optimizer.step()


class Trainer:
    def __init__(self) -> None:
        self.sampler = DistributedSampler(ROWS, seed=me() // 2)
        batches = BatchSampler(self.sampler, 2, drop_last=False)
        self.loader = DataLoader(ROWS, batch_sampler=batches)
        self.model = DDP(net())
        self.optimizer = sgd(self.model)

    def fit(self) -> None:
        for rows in self.loader:
            self.step(rows)

    def step(self, rows: Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(rows).square().sum().backward()
        self.optimizer.step()


def in_a_trainer() -> None:
    Trainer().fit()


@pytest.mark.parametrize(
    ("program", "headline"),
    [
        (seeded_by_rank, "has seed=0 on rank 0, seed=1 on rank 1, seed=2 on rank 2: ranks sh"),
        (set_epoch_on_rank_0, "has epoch=0 on ranks 1, 2, epoch=1 on rank 0: ranks shuffle"),
        (the_same_part, "ranks 0-2 read the same part of the data: "),
        (shuffled_on_one, "has shuffle=False on ranks 0, 2, shuffle=True on rank 1: "),
        (in_a_trainer, "has seed=0 on ranks 0, 1, seed=1 on rank 2: "),
        (a_sample_dropped_on_one, "has 12 samples on ranks 0, 2 and 11 on rank 1"),
        (in_a_loader_only, "has 10 samples on rank 0 and 11 on rank 1, 12 on rank 2"),
    ],
)
def test_samplers_that_do_not_divide_the_data(program, headline: str) -> None:
    (found,) = findings(program)
    assert headline in found.headline
    assert found.blocks[0].op.site.file.endswith("test_replica_drift_in_ranks.py")


class EpochTrainer(Trainer):
    def __init__(self) -> None:
        super().__init__()
        self.sampler = DistributedSampler(ROWS)
        self.loader = DataLoader(ROWS, batch_size=2, sampler=self.sampler)

    def fit(self) -> None:
        for epoch in range(3):
            if me() == 0:
                self.sampler.set_epoch(epoch)  # on one
            for rows in self.loader:
                self.optimizer.zero_grad()
                self.model(rows).square().sum().backward()
                self.optimizer.step()


def test_ranks_whose_epoch_never_changes_are_at_fault() -> None:
    (found,) = findings(lambda: EpochTrainer().fit())
    assert found.ranks == (1, 2)
    setting = found.blocks[0]
    assert setting.ranks == (0,) and setting.op.name == "self.sampler.set_epoch"
    assert setting.op.site.source.endswith("# on one")
    assert found.hint.endswith("on ranks 1, 2 the epoch never changed")


def shuffled_alike() -> None:
    sampled()


def not_shuffled_with_seeds() -> None:
    sampled(shuffle=False, seed=me())


def never_set() -> None:
    sampled(sets=False)


def one_replica_each() -> None:
    sampled(num_replicas=1, rank=0, seed=me())


def two_parts_for_four_ranks() -> None:
    sampled(num_replicas=2, rank=me() // 2, seed=me() // 2)


def as_long_everywhere() -> None:
    of_length(11)


def an_end_that_is_never_read() -> None:
    """Nothing is shuffled, and what does not fill all parts is dropped."""
    of_length(9 + me() % 2, shuffle=False, drop_last=True)


def the_end_differs() -> None:
    of_length(12 - me() % 2, shuffle=False)


def grows_meanwhile() -> None:
    """As a buffer of experiences: the sampler is made anew, or stays as it was."""
    rows = list(ROWS[:8])
    sampler = DistributedSampler(rows)
    model = DDP(net())
    optimizer = sgd(model)
    for step in range(3):
        rows += list(ROWS)[: me() * 4 + step]
        train(model, optimizer, 1)
    assert len(sampler) == 2


def without_a_length() -> None:
    class Strange(list):
        def __len__(self) -> int:
            if self.is_made:
                raise TypeError("not now")
            return 12 - me() % 2

    Strange.is_made = False
    rows = Strange(ROWS)
    sampler = DistributedSampler(rows)
    Strange.is_made = True
    model = DDP(net())
    train(model, sgd(model), 2)
    assert sampler.total_size == 12


@pytest.mark.parametrize(
    "program",
    [
        as_long_everywhere,
        an_end_that_is_never_read,
        the_end_differs,
        grows_meanwhile,
        without_a_length,
        shuffled_alike,
        not_shuffled_with_seeds,
        never_set,
        one_replica_each,
        two_parts_for_four_ranks,
    ],
)
def test_samplers_that_are_right(program) -> None:
    assert_silent(program, ranks=4, kind=KIND)


def test_nothing_that_a_loop_drops_is_kept_alive() -> None:
    def program() -> bool:
        thing = torch.nn.Linear(2, 2)
        known = weakref.ref(thing)
        model = DDP(net())
        train(model, sgd(model), 1)
        del thing
        return known() is None

    assert all(phalanx.run(program, ranks=2))


# -- manners ----------------------------------------------------------------------------------


def test_a_comment_silences_it() -> None:
    def program() -> None:
        model = DDP(net())
        nn.init.constant_(model.module[0].bias, me())
        optimizer = sgd(model)
        model(data(0)).sum().backward()
        optimizer.step()  # phalanx: ignore[replica-drift] an ensemble

    assert not findings(program)


def test_it_can_be_left_out() -> None:
    assert not findings(initialised_again, checks="all,-replica-drift")


def test_it_is_an_error_if_the_run_is_strict() -> None:
    with pytest.raises(phalanx.HazardError, match="replica-drift"):
        phalanx.run(initialised_again, ranks=3, strict=True)


def test_hooks_are_gone_after_the_run() -> None:
    from torch.optim import optimizer

    tables = (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)
    before = [dict(each) for each in tables]
    phalanx.run(plain, ranks=2)
    assert [dict(each) for each in tables] == before


def test_hooks_of_a_rank_stay_its_own_and_ours_go() -> None:
    from torch.optim import optimizer

    def program() -> int:
        seen: list[int] = []
        if me() == 0:
            optimizer.register_optimizer_step_post_hook(lambda *_: seen.append(1))
        model = DDP(net())
        train(model, sgd(model), 3)
        return len(seen)

    tables = (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)
    before = [dict(each) for each in tables]
    assert phalanx.run(program, ranks=2) == [3, 0]
    assert [dict(each) for each in tables] == before


def test_a_world_that_runs_again_begins_anew() -> None:
    with phalanx.World(ranks=3) as world:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", phalanx.PhalanxWarning)
            world.run(initialised_again)
        assert_silent(plain, world=world, kind=KIND)
        assert len([each for each in world.findings if each.kind == KIND]) == 1


def test_a_parameter_that_cannot_be_read_ends_the_look_and_nothing_else() -> None:
    class Odd(Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func.__name__ in ("crc", "data_ptr", "to_local"):
                raise RuntimeError("not this one")
            return super().__torch_function__(func, types, args, kwargs or {})

    def program() -> None:
        model = DDP(net())
        odd = nn.Parameter(torch.zeros(2).as_subclass(Odd))
        optimizer = torch.optim.SGD([*model.parameters(), odd], lr=0.1)
        train(model, optimizer)

    assert_silent(program, ranks=2, kind=KIND)

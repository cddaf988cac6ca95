"""Which suites are run, how, and which tests are known to end differently and why."""

from __future__ import annotations

from dataclasses import dataclass

# The ways a suite is run. The first of each pair is real processes, the second is Phalanx.
ALONE = ("pytest", "phalanx")
LAUNCHED = ("torchrun", "phalanx -n")


@dataclass(frozen=True)
class Suite:
    """Tests of a project, as they are: paths below the folder that its sources are in."""

    name: str
    folder: str  # a pattern; the newest that fits is taken
    paths: tuple[str, ...]
    ranks: int = 0  # 0: the suite starts its ranks itself
    arguments: tuple[str, ...] = ()  # for pytest
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def ways(self) -> tuple[str, str]:
        return LAUNCHED if self.ranks else ALONE

    def command(self, way: str) -> list[str]:
        """What is typed, without the program that is Python's."""
        starts = {
            "pytest": ["python", "-m", "pytest"],
            "phalanx": ["phalanx", "run", "-m", "pytest"],
            "torchrun": ["torchrun", "--nproc-per-node", str(self.ranks), "-m", "pytest"],
            "phalanx -n": ["phalanx", "run", "-n", str(self.ranks), "-m", "pytest"],
        }
        return [*starts[way], *self.arguments, *self.paths]


@dataclass(frozen=True)
class Difference:
    """Tests of a suite, as patterns, that may end differently, and why."""

    suite: str
    tests: str
    reason: str


IGNITE = "pytorch_ignite-*"
# It starts two programs as two machines, which did not end within minutes on either side.
MULTI_NODE = (
    "tests/ignite/distributed/test_launcher.py"
    "::test_smoke_test_check_idist_parallel_spawn_multinode_n_procs_gloo"
)
# They form no group, and start hundreds of processes that load data: minutes, on both sides.
LOADERS = "not resume_random and not gradients_on_resume"
DISTRIBUTED = ("-m", "distributed")


def _tests(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/test_{name}.py" for name in names.split())


METRICS = (
    *_tests("tests/ignite/metrics", "accumulation accuracy epoch_metric loss metric"),
    *_tests("tests/ignite/metrics", "precision running_average confusion_matrix"),
)
HANDLERS = (
    *_tests("tests/ignite/handlers", "base_logger checkpoint early_stopping ema_handler"),
    *_tests("tests/ignite/handlers", "handlers lr_finder param_scheduler stores"),
    *_tests(
        "tests/ignite/handlers", "state_param_scheduler terminate_on_nan time_limit timing"
    ),
)

SUITES = (
    Suite(
        "ignite distributed",
        IGNITE,
        ("tests/ignite/distributed",),
        arguments=("--deselect", MULTI_NODE),
    ),
    Suite(
        "ignite distributed, 2 ranks",
        IGNITE,
        ("tests/ignite/distributed",),
        ranks=2,
        arguments=DISTRIBUTED,
    ),
    Suite(
        "ignite engine",
        IGNITE,
        ("tests/ignite/engine", "tests/ignite/base"),
        arguments=("-k", LOADERS),
    ),
    Suite(
        "ignite engine, 2 ranks",
        IGNITE,
        ("tests/ignite/engine",),
        ranks=2,
        arguments=DISTRIBUTED,
    ),
    Suite("ignite handlers", IGNITE, HANDLERS),
    Suite("ignite handlers, 2 ranks", IGNITE, HANDLERS, ranks=2, arguments=DISTRIBUTED),
    Suite("ignite metrics", IGNITE, METRICS),
    Suite("ignite metrics, 2 ranks", IGNITE, METRICS, ranks=2, arguments=DISTRIBUTED),
    Suite(
        "accelerate",
        "accelerate-*",
        _tests("tests", "cpu grad_sync scheduler optimizer accelerator data_loader utils")
        + _tests("tests", "kwargs_handlers state_checkpointing logging memory_utils hooks"),
    ),
    Suite("fairscale, parts", "fairscale-*", ("tests/optim", "tests/data_parallel")),
    Suite(
        "torchtitan experiments",
        "torchtitan-*",
        (
            "torchtitan/experiments/torchft/tests",
            *_tests(
                "torchtitan/experiments/graph_trainer/tests",
                "chunked_loss cpu_offload custom_codegen performance_passes",
            ),
        ),
    ),
    Suite(
        "torchmetrics test_ddp",
        "torchmetrics-*-ddp",
        ("unittests/bases/test_ddp.py",),
        environment=(("USE_PYTEST_POOL", "1"),),
    ),
)

DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "fairscale, parts",
        "::test_inputs[cpu-gloo-*]",
        "a real process aborts at its end now and then (2 of 10 runs)",
    ),
    Difference(
        "accelerate",
        "::test_free_memory_dereferences_prepared_components",
        "it compares the free memory of the whole machine, which other programs use",
    ),
)

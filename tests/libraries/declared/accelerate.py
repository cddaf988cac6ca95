"""Programs that use accelerate, and its own test scripts.

Its scripts find two processes on a CPU only when told so by `ACCELERATE_USE_CPU`, as
`accelerate launch --cpu` does; otherwise each process is alone and most assertions are skipped.
"""

from __future__ import annotations

from tests.libraries.model import Program


def script(name: str, ranks: int = 2, *, fails: str = "", fails_here: str = "") -> Program:
    return Program(
        "accelerate",
        f"accelerate.test_utils.scripts.{name}",
        ranks=ranks,
        module=True,
        compare="status",
        environment={"ACCELERATE_USE_CPU": "true"},
        fails_with_torchrun=fails,
        fails_here=fails_here,
        limit=180.0,
    )


PROGRAMS: tuple[Program, ...] = (
    Program("accelerate", "accelerate_training.py", ranks=2),
    Program("accelerate", "accelerate_training.py", ranks=4),
    Program("accelerate", "accelerate_operations.py", ranks=4),
    Program("accelerate", "accelerate_launcher.py", starts_ranks=True),
    script("test_script"),
    script("test_ops"),
    Program("accelerate", "accelerate_test_ops.py", ranks=2),
    Program("accelerate", "accelerate_test_ops.py", ranks=4),
    script("test_sync"),
    script("test_cli", fails_here="it forms no group, and that is an error here"),
    script("external_deps.test_pippy"),
)

"""Programs that use transformers: its Trainer, on models with random weights."""

from __future__ import annotations

from tests.libraries.model import Program

PROGRAMS: tuple[Program, ...] = (
    Program("transformers", "transformers_trainer.py", ranks=2, compare="results", limit=240.0),
    Program(
        "transformers",
        "transformers_trainer.py",
        ranks=4,
        args=("llama",),
        compare="results",
        limit=240.0,
    ),
    Program(
        "transformers", "transformers_classifier.py", ranks=2, compare="results", limit=240.0
    ),
)

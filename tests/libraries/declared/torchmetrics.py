"""Programs that use torchmetrics."""

from __future__ import annotations

from tests.libraries.model import Program

PROGRAMS: tuple[Program, ...] = (
    Program("torchmetrics", "torchmetrics_sync.py", ranks=2, quick=True),
    Program("torchmetrics", "torchmetrics_sync.py", ranks=4),
    Program("torchmetrics", "torchmetrics_custom.py", ranks=2),
    Program("torchmetrics", "torchmetrics_custom.py", ranks=4),
)

"""The pytest plugin: `@pytest.mark.ranks(4)` runs a test on ranks."""

from __future__ import annotations

"""Fixtures of the backend's tests."""

from __future__ import annotations

import pytest

from phalanx.backend.profiles import admission


@pytest.fixture
def no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend without a profile: everything that a collective can mean is allowed."""
    monkeypatch.setattr(admission, "profile_of", lambda backend: None)

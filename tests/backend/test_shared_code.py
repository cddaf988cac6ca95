"""A torch that keeps one compiled version of a function for all ranks: told, not hidden."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import phalanx
from phalanx.backend.torch_private import private_modes


@pytest.mark.parametrize("regions", [True, False])
def test_a_torch_without_regions_is_warned_of_once(
    regions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    private_modes._warn_of_shared_code.cache_clear()
    module = SimpleNamespace(set_eval_frame=lambda callback: callback)
    if regions:
        module.set_eval_frame_isolate_recompiles_id = lambda number: number
    for owner, name, replacement in private_modes.prepare_eval_frame(module):
        monkeypatch.setattr(owner, name, replacement)

    def program() -> None:
        for callback in (None, lambda: None, lambda: None):
            assert module.set_eval_frame(callback) is callback

    if regions:
        phalanx.run(program, ranks=2)
    else:
        with pytest.warns(phalanx.PhalanxWarning, match="once for all ranks") as seen:
            phalanx.run(program, ranks=2)
        assert len(seen) == 1
    private_modes._warn_of_shared_code.cache_clear()

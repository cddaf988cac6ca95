"""Tests marked with `@pytest.mark.ranks`: what the pytest plugin does with them.

`marker` says how a test is to run, `items` leads it through the phases of pytest, `part` is
what each rank does. Imported by `phalanx.testing.plugin` only.
"""

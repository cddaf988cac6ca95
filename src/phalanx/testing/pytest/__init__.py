"""Tests marked with `@pytest.mark.ranks`: what pytest does with them.

`rank_hooks` is the plugin, `items` leads a test through the phases of pytest, `part` is what
each rank does. `phalanx.testing.plugin` imports this when it collects the first such test.
"""

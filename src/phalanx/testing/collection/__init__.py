"""How tests on ranks are found and planned: markers, options, and how each item runs."""

"""The cases, one module per family: `cases(ranks)` and the `PROGRAMS` that run them."""

"""Functions of the standard library that a rank must not call as they are."""

"""Functions of the standard library that a rank must not call as they are: waits, signals,
thread pools, processes that it starts."""

"""A rank in a process of its own: watch its calls, announce them, wait for the answer."""

"""Running programs on ranks: `run`, `World`, the engines, and what each rank has of its own.

Used by the doors. Knows nothing of a particular collective.
"""

"""A module of the program: its globals are each process's own."""

steps = 1
seen: list[int] = []

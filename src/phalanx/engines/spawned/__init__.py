"""Scripts that start their ranks themselves, as real processes: `--engine processes` without a
number of ranks. The script runs in a process of its own, the processes that it starts are those
of plain Python, and whichever of them makes a group is watched as a rank."""

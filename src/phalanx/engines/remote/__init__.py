"""A rank in a process of its own, for the processes engine and for torchrun.

`rank_main` runs it, `watcher` sees its calls on real process groups, `link` announces them to
the referee and waits for the answer. The other end of the wire is `engines/referee/`.
"""

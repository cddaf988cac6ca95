"""Ranks in processes of their own, for the processes engine and for torchrun.

In the rank: `rank_main` runs it, `watcher` sees its calls, `link` announces them and waits for
the answer. At the other end of the wire: `codec` and `referee_server` feed
`remote_referee`, which asks the one referee of `matching/` and writes the journal.
"""

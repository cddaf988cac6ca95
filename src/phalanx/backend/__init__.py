"""The process group, its collectives, work, stores and the per-rank state of torch.

Used by the running layer. It asks the core's baton whenever it must wait and never blocks
by itself.
"""

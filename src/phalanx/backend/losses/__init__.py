"""What ranks see when another rank, a connection, a store or data is lost or damaged.

The functions are called by whatever makes the faults of a plan happen, while it holds the baton
(or from an action of the clock): `begin_losses` once, before the first of them and before ranks
run; then `lose_rank`, `partition` and `heal`, `lose_store` and `restore_store`, `corrupt_call`,
and `end_rank` when a program has ended. What happens in the injured rank is the caller's.
Who sees what follows real Gloo: see docs/faults.md. Runs without faults never come here.
"""

from phalanx.backend.losses.corruption import corrupt_call
from phalanx.backend.losses.lost_ranks import end_rank, heal, lose_rank, partition
from phalanx.backend.losses.lost_stores import lose_store, restore_store
from phalanx.backend.losses.run_losses import begin_losses

__all__ = [
    "begin_losses",
    "corrupt_call",
    "end_rank",
    "heal",
    "lose_rank",
    "lose_store",
    "partition",
    "restore_store",
]

"""What operations cost on a virtual clock: networks, and how long a collective takes on them.

Plain values and pure functions, without torch. `network=` of `phalanx.run` takes a network;
`backend/work/operation_times.py` asks it. `network.py` says what a network can be asked; one
module for each kind of network, and the tables that it goes by.

>>> from phalanx.costs import alpha_beta, cluster
>>> flat = alpha_beta(latency=20e-6, bandwidth=1e9)
>>> round(flat.collective("all_reduce", 100_000_000, (0, 1, 2, 3)), 3)
0.15
"""

from phalanx.costs.cluster_network import Cluster, cluster, dgx_a100, dgx_h100
from phalanx.costs.flat_network import AlphaBeta, alpha_beta
from phalanx.costs.network import Network
from phalanx.costs.network_text import parse_network

__all__ = [
    "AlphaBeta",
    "Cluster",
    "Network",
    "alpha_beta",
    "cluster",
    "dgx_a100",
    "dgx_h100",
    "parse_network",
]

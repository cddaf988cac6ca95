"""Find a shortest cycle among ranks that wait for each other.

Used by `waitgraph`. Ranks with the same needs have the same edges, so they are one node here:
a collective of a thousand ranks is one node, and a shortest cycle never passes a node twice.
Must never know why a rank waits; it sees numbers only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Needs = tuple[int, ...]


class _Graph:
    """Nodes are numbered in order of their lowest rank."""

    def __init__(self, needs: Mapping[int, Needs]) -> None:
        numbers: dict[Needs, int] = {}
        self.node_of = {
            rank: numbers.setdefault(needs[rank], len(numbers)) for rank in sorted(needs)
        }
        self.needs = list(numbers)
        self._successors: dict[int, tuple[int, ...]] = {}

    def successors(self, node: int) -> tuple[int, ...]:
        known = self._successors.get(node)
        if known is None:
            node_of = self.node_of
            known = tuple(sorted({node_of[r] for r in self.needs[node] if r in node_of}))
            self._successors[node] = known
        return known

    def rank_in(self, node: int, needs: Needs) -> int:
        """The lowest rank of a node among those that `needs` names."""
        return min(rank for rank in needs if self.node_of.get(rank) == node)


def find_cycle(needs: Mapping[int, Needs]) -> tuple[int, ...]:
    """A shortest cycle, its lowest rank first; empty if there is none.

    >>> find_cycle({0: (1,), 1: (2,), 2: (1,)})
    (1, 2)
    """
    itself = min((rank for rank, needed in needs.items() if rank in needed), default=None)
    if itself is not None:
        return (itself,)
    graph = _Graph(needs)
    path = _find_pair(graph) or _find_shortest(graph)
    ranks = (
        [
            graph.rank_in(node, graph.needs[before])
            for before, node in zip([path[-1], *path], path, strict=False)
        ]
        if path
        else []
    )
    start = ranks.index(min(ranks)) if ranks else 0
    return tuple(ranks[start:] + ranks[:start])


def _find_pair(graph: _Graph) -> list[int]:
    """A cycle of two nodes. Looked for first and without building the whole graph,
    since it is the commonest cycle and a thousand receives from anyone have a million edges."""
    for node in range(len(graph.needs)):
        for other in graph.successors(node):
            if node in graph.successors(other):
                return [node, other]
    return []


def _find_shortest(graph: _Graph) -> list[int]:
    following = {node: set(graph.successors(node)) for node in range(len(graph.needs))}
    leading: dict[int, set[int]] = {node: set() for node in following}
    for node, others in following.items():
        for other in others:
            leading[other].add(node)
    _trim(following, leading, list(following))
    best: list[int] = []
    for node in range(len(graph.needs)):
        if node not in following:
            continue
        path = _find_through(node, following, limit=len(best) or len(following) + 1)
        best = path or best
        # Every cycle through this node has been considered. Without it most rings fall apart,
        # which keeps the search linear for them.
        _trim(following, leading, _drop(node, following, leading))
    return best


def _find_through(node: int, following: Mapping[int, set[int]], *, limit: int) -> list[int]:
    """A shortest cycle through a node with fewer nodes than `limit`."""
    came_from = {node: node}
    level, length = [node], 1
    while level and length < limit:
        nearer = []
        for at in level:
            for other in sorted(following[at]):
                if other == node:
                    return _walk_back(at, came_from)
                if other not in came_from:
                    came_from[other] = at
                    nearer.append(other)
        level, length = nearer, length + 1
    return []


def _walk_back(at: int, came_from: Mapping[int, int]) -> list[int]:
    path = [at]
    while came_from[at] != at:
        at = came_from[at]
        path.append(at)
    return path[::-1]


def _drop(
    node: int, following: dict[int, set[int]], leading: dict[int, set[int]]
) -> Iterable[int]:
    """Remove a node; the nodes next to it may have become ends."""
    after, before = following.pop(node), leading.pop(node)
    for other in after - {node}:
        leading[other].discard(node)
    for other in before - {node}:
        following[other].discard(node)
    return after | before


def _trim(
    following: dict[int, set[int]], leading: dict[int, set[int]], doubtful: Iterable[int]
) -> None:
    """Remove nodes that nothing leads to, or that lead nowhere, until none is left."""
    stack = list(doubtful)
    while stack:
        node = stack.pop()
        if node in following and not (following[node] and leading[node]):
            stack.extend(_drop(node, following, leading))

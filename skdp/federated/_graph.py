"""Who masks with whom: a circulant graph on a public random order of the clients."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np


class Graph:
    """Neighbours of each client, and the position of each neighbour's share (1..degree)."""

    __slots__ = ("neighbours", "slots")

    def __init__(self, neighbours: list[tuple[int, ...]]) -> None:
        self.neighbours = neighbours
        self.slots = [{j: slot for slot, j in enumerate(row, 1)} for row in neighbours]


@lru_cache(maxsize=8)
def circulant(n_clients: int, degree: int, run_id: bytes) -> Graph:
    """Link each client with the `degree`/2 next and previous ones on a circle.

    Such a graph stays connected when any degree - 1 clients are taken out (Harary 1962). The
    order is drawn from the run's name: nobody chooses who sits next to whom. With degree
    n_clients - 1 everybody is linked with everybody.
    """
    stream = hashlib.shake_256(b"skdp.federated.graph/1" + run_id).digest(8 * n_clients)
    order = np.argsort(np.frombuffer(stream, dtype="<u8"), kind="stable").tolist()
    half = degree // 2
    steps = range(1, n_clients) if degree == n_clients - 1 else [*range(1, half + 1)]
    offsets = [*steps] if degree == n_clients - 1 else [*steps, *(-step for step in steps)]
    neighbours: list[tuple[int, ...]] = [()] * n_clients
    for place, client in enumerate(order):
        neighbours[client] = tuple(order[(place + offset) % n_clients] for offset in offsets)
    return Graph(neighbours)

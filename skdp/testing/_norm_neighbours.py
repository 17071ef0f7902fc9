"""Neighbours whose difference is a matrix of bounded norm."""

import numpy as np

from skdp.testing._neighbours import Neighbours, register_neighbours, unit_vector


@register_neighbours("frobenius")
class FrobeniusNeighbours(Neighbours):
    """A change of Frobenius norm `scale`. theta = (change,)."""

    def _size(self, change):
        return float(np.linalg.norm(change))

    def _changes(self, rng):
        n, d = self.base.shape
        yield "random", rng.standard_normal((n, d))
        yield "one entry", np.eye(n, 1) * np.eye(1, d)
        yield "like the data", self.base
        yield "orthogonal", np.eye(n, d)
        for i, v in enumerate(self.directions):
            if v.shape == (d,):
                yield f"public direction {i}, right", np.outer(rng.standard_normal(n), v)
            if v.shape == (n,):
                yield f"public direction {i}, left", np.outer(v, rng.standard_normal(d))
        left = [v for v in self.directions if v.shape == (n,)]
        right = [v for v in self.directions if v.shape == (d,)]
        for u in left:
            for v in right:
                yield "public directions", np.outer(u, v)

    def starts(self, rng):
        """Yield changes of the largest norm: random, rank one, along public directions."""
        for name, change in self._changes(rng):
            for sign in (1, -1):
                yield name, (sign * self._scaled(change),)

    def _scaled(self, change):
        size = self._size(change)
        return change * (self.scale * (1 - 1e-12) / size) if size > 0 else change

    def pair(self, theta):
        """Return the matrix without and with the change."""
        return self.base, self.base + theta[0]

    def perturb(self, theta, rng, size):
        """Move the change and bring it back to its norm."""
        (change,) = theta
        moved = change + size * self.scale * unit_vector(rng.standard_normal(change.shape))
        return (self._scaled(moved),)


@register_neighbours("spectral")
class SpectralNeighbours(FrobeniusNeighbours):
    """A change of spectral norm `scale`."""

    def _size(self, change):
        return float(np.linalg.norm(change, 2)) if change.size else 0.0


@register_neighbours("entry_change")
class EntryChangeNeighbours(FrobeniusNeighbours):
    """A change of one entry by `scale`."""

    def _place(self, i, j):
        change = np.zeros(self.base.shape)
        change[i, j] = 1.0
        return change

    def _changes(self, rng):
        n, d = self.base.shape
        for j in range(d):
            i = int(rng.integers(n))
            yield f"entry ({i}, {j})", self._place(i, j)
        for i in range(n):
            j = int(rng.integers(d))
            yield f"entry ({i}, {j})", self._place(i, j)

    def _size(self, change):
        return float(np.abs(change).max())

    def perturb(self, theta, rng, size):
        """Move the change to another place."""
        n, d = self.base.shape
        return (self._scaled(self._place(int(rng.integers(n)), int(rng.integers(d)))),)


@register_neighbours("edge_change")
class EdgeChangeNeighbours(EntryChangeNeighbours):
    """A change of one symmetric pair of entries by `scale`."""

    def _place(self, i, j):
        change = super()._place(i, j)
        return np.maximum(change, change.T)


@register_neighbours("mixed")
class MixedNeighbours(FrobeniusNeighbours):
    """A symmetric change whose rows' sums of absolute values have the norm `scale`."""

    def _changes(self, rng):
        n = len(self.base)
        for i in range(n):
            j = int(rng.integers(n))
            yield f"entry ({i}, {i})", np.outer(np.eye(n)[i], np.eye(n)[i])
            yield f"pair ({i}, {j})", np.outer(np.eye(n)[i], np.eye(n)[j])
        yield "random", rng.standard_normal((n, n))
        yield "one row", np.eye(n, 1) @ rng.standard_normal((1, n))

    def _size(self, change):
        return float(np.linalg.norm(np.abs(change).sum(axis=1)))

    def _scaled(self, change):
        return super()._scaled(change + change.T)

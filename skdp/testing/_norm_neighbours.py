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

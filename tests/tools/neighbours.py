"""Neighbours of a data set, of entries and interactions: hostile starts, and small moves.

Queries of groups, edges and norms are tried on all of their pairs in `tests/queries`.
"""

import numpy as np

from skdp.testing.sensitivity import Neighbours, register_neighbours

# Neighbours of a data set, per privacy unit: adversarial starts, and small moves to climb by.
#
# A *theta* is a small tuple of arrays that says how the two data sets differ; `pair` turns it into
# two matrices, `starts` yields hostile ones, `perturb` moves one a little.


@register_neighbours("entry")
class EntryNeighbours(Neighbours):
    """One entry against zero (add_remove), or any value against any other (replace).

    theta = (row, column, old value, new value, contents of that row or None).
    """

    def _values(self):
        low, high = self.bounds
        if self.replace:
            return [(low, high), (-1e12, 1e12), (np.nan, high), (0.0, high), (low, 0.0)]
        return [(0.0, v) for v in (low, high, -1e12, 1e12, np.nan, high / 2, 1e-300)]

    def _contents(self, rng):
        d = self.base.shape[1]
        low, high = self.bounds
        yield "as it is", None
        yield "zero", np.zeros(d)
        yield "at the bound", np.full(d, high)
        yield "huge", 1e9 * rng.standard_normal(d)
        yield "with NaN", np.where(rng.random(d) < 0.5, np.nan, low)
        for v in self.directions:
            if v.shape == (d,):
                yield "along a public direction", high * np.sign(v)

    def starts(self, rng):
        """Yield extreme values at every column and in rows of every kind."""
        n, d = self.base.shape
        for name, row in self._contents(rng):
            for j in range(d):
                for old, new in self._values():
                    i = int(rng.integers(n))
                    yield f"{old!r} -> {new!r} at ({i}, {j}), row {name}", (i, j, old, new, row)

    def pair(self, theta):
        """Return the two matrices."""
        i, j, old, new, row = theta
        X = self.base.copy()
        if row is not None:
            X[i] = row
        Y = X.copy()
        X[i, j], Y[i, j] = old, new
        return X, Y

    def perturb(self, theta, rng, size):
        """Move the row's contents and the values; now and then the place."""
        i, j, old, new, row = theta
        n, d = self.base.shape
        if rng.random() < 0.2:
            i, j = int(rng.integers(n)), int(rng.integers(d))
        low, high = self.bounds
        row = self.base[i] if row is None else np.where(np.isfinite(row), row, 0.0)
        row = np.clip(row, low, high) + size * high * rng.standard_normal(d)
        old = old if not self.replace else old + size * float(rng.standard_normal())
        return i, j, old, new + size * float(rng.standard_normal()), row


@register_neighbours("interaction")
class InteractionNeighbours(Neighbours):
    """One 1 of a binary matrix appears (add_remove), or moves inside its row (replace: swap).

    theta = (row, column, other column, contents of that row).
    """

    def starts(self, rng):
        """Yield rows of every degree, in several arrangements."""
        n, d = self.base.shape
        for degree in range(d):
            for _ in range(4):
                order = rng.permutation(d)
                yield f"degree {degree}", self._theta(int(rng.integers(n)), order, degree)
            for v in self.directions:
                if v.shape == (d,):
                    for sign in (1, -1):
                        theta = self._theta(0, np.argsort(sign * v), degree)
                        yield f"degree {degree} along a public direction", theta

    def _theta(self, i, order, degree):
        """Put `degree` ones first in the order, and change the two columns that follow them."""
        row = np.zeros(self.base.shape[1])
        row[order[:degree]] = 1.0
        j, k = int(order[degree]), int(order[(degree + 1) % len(order)])
        return i, j, k, row

    def pair(self, theta):
        """Return the matrix without and with the 1, or with the 1 here and there."""
        i, j, k, row = theta
        X, Y = self.base.copy(), self.base.copy()
        X[i], Y[i] = row, row
        if self.replace:
            X[i, [j, k]], Y[i, [j, k]] = [1.0, 0.0], [0.0, 1.0]
        else:
            X[i, j], Y[i, j] = 0.0, 1.0
        return X, Y

    def perturb(self, theta, rng, size):
        """Flip another entry of the row, or take other columns."""
        i, j, k, row = theta
        d = len(row)
        row = row.copy()
        flip = int(rng.integers(d))
        row[flip] = 1.0 - row[flip]
        if rng.random() < 0.3:
            j = int(rng.integers(d))
            k = (j + 1 + int(rng.integers(d - 1))) % d if d > 1 else j
        return i, j, k, row

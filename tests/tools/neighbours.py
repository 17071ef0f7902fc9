"""Neighbours of a data set in other units than the row: hostile starts, and small moves."""

import numpy as np

from skdp.testing.sensitivity import (
    _DECADES,
    Neighbours,
    _times,
    mixed_sizes,
    register_neighbours,
    unit_vector,
)

# Neighbours of a data set, per privacy unit: adversarial starts, and small moves to climb by.
#
# A *theta* is a small tuple of arrays that says how the two data sets differ; `pair` turns it into
# two matrices, `starts` yields hostile ones, `perturb` moves one a little.


@register_neighbours("group")
class GroupNeighbours(Neighbours):
    """All rows of one user: `pair` returns ((X, groups), (X', groups')); the user is the last."""

    n_groups = 3

    def _groups(self):
        return np.arange(len(self.base)) % self.n_groups

    def starts(self, rng):
        """Yield users with one row, many equal, orthogonal or antipodal rows, or a NaN row."""
        d, c = self.base.shape[1], self.scale
        spike = np.eye(d)[:1]
        users = {
            "one spike": spike,
            "many equal rows": np.repeat(spike, 30, axis=0),
            "orthogonal rows": np.eye(d),
            "antipodal rows": np.vstack([spike, -spike]),
            "random rows": rng.standard_normal((2 * d, d)),
            "zero rows": np.zeros((3, d)),
        }
        for name, rows in users.items():
            for s in _DECADES:
                yield from self._named(f"{name} x {s:g}", _times(s * c, rows), rng)
        for v in self.directions:
            if v.shape == (d,):
                yield from self._named("public direction", c * unit_vector(v)[None, :], rng)
        yield from self._named("mixed sizes", mixed_sizes(3, d), rng)
        yield from self._named("more mixed sizes", mixed_sizes(9, d)[3:], rng)
        yield from self._named("a NaN row", np.vstack([spike, np.full((1, d), np.nan)]), rng)

    def _named(self, name, rows, rng):
        if not self.replace:
            yield name, (rows,)
            return
        finite = np.where(np.isfinite(rows), rows, 0.0)
        yield f"{name} against antipodal", (rows, -finite)
        yield f"{name} against rotated", (rows, np.roll(finite, 1, axis=1))
        yield f"{name} against nothing", (rows, np.zeros_like(rows[:1]))

    def pair(self, theta):
        """Return the users without and with one more, or with one and with another."""
        groups = self._groups()
        sets = [
            (np.vstack([self.base, rows]), np.append(groups, np.full(len(rows), self.n_groups)))
            for rows in theta
        ]
        return ((self.base, groups), sets[0]) if len(sets) == 1 else (sets[0], sets[1])

    def perturb(self, theta, rng, size):
        """Move all rows of the user."""
        out = []
        for rows in theta:
            rows = np.clip(np.where(np.isfinite(rows), rows, 0.0), -1e150, 1e150)
            length = float(np.linalg.norm(rows)) or self.scale
            out.append(rows + size * length * unit_vector(rng.standard_normal(rows.shape)))
        return tuple(out)


@register_neighbours("entry")
class EntryNeighbours(Neighbours):
    """One entry against zero (add_remove), or any value against any other (replace).

    theta = (row, column, old value, new value, contents of that row or None).
    """

    def _values(self):
        low, high = self.bounds
        if self.replace:
            ends = [(low, high), (-1e12, 1e12), (np.nan, high), (0.0, high), (low, 0.0)]
            return ends
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

    def _set(self, X, i, j, value):
        X[i, j] = value

    def pair(self, theta):
        """Return the two matrices."""
        i, j, old, new, row = theta
        X = self.base.copy()
        if row is not None:
            X[i] = row
        Y = X.copy()
        self._set(X, i, j, old)
        self._set(Y, i, j, new)
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


@register_neighbours("edge")
class EdgeNeighbours(EntryNeighbours):
    """One symmetric pair of a square matrix (loops included: an estimator may drop them)."""

    def _contents(self, rng):
        yield "as it is", None

    def starts(self, rng):
        """Yield extreme values at every place of the upper triangle."""
        n = len(self.base)
        for i in range(n):
            for j in range(i, n):
                for old, new in self._values():
                    yield f"{old!r} -> {new!r} at ({i}, {j})", (i, j, old, new, None)

    def _set(self, X, i, j, value):
        X[i, j] = X[j, i] = value

    def perturb(self, theta, rng, size):
        """Move the values, or the place."""
        n = len(self.base)
        _, _, old, new, _ = theta
        i, j = int(rng.integers(n)), int(rng.integers(n))
        return i, j, old, new + size * float(rng.standard_normal()), None


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
                        order = np.argsort(sign * v)
                        yield (
                            f"degree {degree} along a public direction",
                            self._theta(0, order, degree),
                        )

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


# Neighbours whose difference is a matrix of bounded norm.


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
        yield "mixed sizes", np.clip(mixed_sizes(n, d), -1.0, 1.0)
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

"""Neighbours of a data set, per privacy unit: adversarial starts, and small moves to climb by.

A *theta* is a small tuple of arrays that says how the two data sets differ; `pair` turns it into
two matrices, `starts` yields hostile ones, `perturb` moves one a little.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator

import numpy as np

_DECADES = np.concatenate([10.0 ** np.arange(-7, 8), [1e-300, 1e200, 1.7e308]])


def unit_vector(x):
    """Return x over its norm (zero stays zero)."""
    size = float(np.linalg.norm(x))
    return x / size if size > 0 else x


def _times(size, x):
    with np.errstate(over="ignore"):
        return np.clip(size * x, -1.7e308, 1.7e308)


class Neighbours(ABC):
    """Base of the neighbour generators.

    Parameters
    ----------
    base : ndarray
        Data that both neighbours share.
    adjacency : {"add_remove", "replace"}
        What they differ in.
    scale : float
        The public bound on a contribution: the interesting size.
    directions : iterable of ndarray
        Directions that matter: singular vectors of a public matrix, for instance.
    bounds : tuple of float
        Bounds of an entry (entry and edge units).
    """

    def __init__(
        self,
        base: np.ndarray,
        adjacency: str,
        *,
        scale: float = 1.0,
        directions: Iterable[np.ndarray] = (),
        bounds: tuple[float, float] = (-1.0, 1.0),
    ) -> None:
        self.base = np.asarray(base, np.float64)
        self.replace = adjacency == "replace"
        self.scale = scale
        self.directions = [np.asarray(v, np.float64) for v in directions]
        self.bounds = bounds

    @abstractmethod
    def starts(self, rng) -> Iterator[tuple[str, tuple]]:
        """Yield (name, theta) of hostile neighbours."""

    @abstractmethod
    def pair(self, theta) -> tuple:
        """Return the two data sets."""

    @abstractmethod
    def perturb(self, theta, rng, size: float):
        """Return a theta near this one."""


NEIGHBOURS: dict[str, Callable[..., Neighbours]] = {}


def register_neighbours(unit: str):
    """Decorate a class of neighbours as those of a privacy unit."""

    def register(cls):
        NEIGHBOURS[unit] = cls
        return cls

    return register


@register_neighbours("row")
class RowNeighbours(Neighbours):
    """A row comes or goes (appended last), or the last row is another one."""

    def _lines(self, rng):
        d = self.base.shape[1]
        spike, flat = np.eye(d)[0], np.ones(d) / math.sqrt(d)
        yield "spike", spike
        yield "flat", flat
        yield "random", unit_vector(rng.standard_normal(d))
        if len(self.base):
            yield "like the first row", unit_vector(self.base[0])
        for i, v in enumerate(self.directions):
            if v.shape == (d,):
                yield f"public direction {i}", unit_vector(v)

    def _rows(self, rng):
        c = self.scale
        for name, v in self._lines(rng):
            for s in _DECADES:
                yield f"{name} x {s:g}", _times(s * c, v)
            for s in (1.0, 1 - 1e-15, 1 + 1e-15, 1 - 1e-6, 1 + 1e-6, 0.5):
                yield f"{name} at {s!r} of the bound", s * c * v
        d = self.base.shape[1]
        for name, value in (("zero", 0.0), ("NaN", np.nan), ("infinite", np.inf)):
            yield f"{name} row", np.full(d, value)
        mixed = np.ones(d)
        mixed[-1] = np.nan
        yield "row with one NaN", mixed

    def _partners(self, x, rng):
        """Rows to replace x by: antipodal, orthogonal, at obtuse angles, nothing, tiny."""
        finite = np.where(np.isfinite(x), x, 0.0)
        size = float(np.linalg.norm(np.clip(finite, -1e150, 1e150))) or self.scale
        u = unit_vector(np.clip(finite, -1e150, 1e150))
        w = rng.standard_normal(len(x))
        w = unit_vector(w - (w @ u) * u)
        yield "antipodal", -finite
        yield "orthogonal", size * w
        yield "obtuse", size * (-0.25 * u + math.sqrt(1 - 0.0625) * w)
        yield "absent", np.zeros_like(x)

    def starts(self, rng):
        """Yield rows over 14 decades of size, at the bound, along hostile directions."""
        for name, x in self._rows(rng):
            if not self.replace:
                yield name, (x,)
                continue
            for partner, y in self._partners(x, rng):
                yield f"{name} against {partner}", (x, y)

    def pair(self, theta):
        """Return the base without and with the row, or with one and the other."""
        sets = [np.vstack([self.base, row[None, :]]) for row in theta]
        return (self.base, sets[0]) if len(sets) == 1 else (sets[0], sets[1])

    def perturb(self, theta, rng, size):
        """Move the rows relative to their size, now and then rescale them."""
        return tuple(self._moved(row, rng, size) for row in theta)

    def _moved(self, row, rng, size):
        row = np.where(np.isfinite(row), row, 0.0)
        row = np.clip(row, -1e140, 1e140)
        length = float(np.linalg.norm(row)) or self.scale
        noise = unit_vector(rng.standard_normal(row.shape))
        return (row + size * length * noise) * math.exp(size * float(rng.standard_normal()))


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

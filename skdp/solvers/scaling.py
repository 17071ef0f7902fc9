"""How users scale their columns: public centres and scales; far entries are folded inwards."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdp._limits import FloatArray
from skdp.data.factorisations import exponents, largest_entries, times_powers
from skdp.solvers.local_fits import Arrays, centred, own_means

_LARGEST = float(np.finfo(np.float64).max)


def digest(array: FloatArray | None) -> Hashable:
    """Return a public array as part of a key."""
    if array is None:
        return None
    return array.shape, blake2b(array.tobytes(), digest_size=16).digest()


class Scaling(NamedTuple):
    """How columns are scaled: public centres and scales; far entries are folded inwards.

    An entry at r > 1 times its limit becomes 1/r times the limit, because far entries are often
    codes.

    Attributes
    ----------
    center, scale : array of shape (d,)
        What is subtracted, and what the rest is divided by.
    limit : array of shape (d,)
        In scales; inf for a column whose scale was not found.
    """

    center: FloatArray
    scale: FloatArray
    limit: FloatArray

    def __call__(self, X: FloatArray, once: Callable[..., Arrays]) -> tuple[FloatArray, FloatArray]:
        """Return rows (..., d) as they are seen, in the array that is given, and largest entries.

        ``once(make)`` is what `make` returns, or returned in another pass over these rows.
        """
        if self.center.any():
            X -= self.center
        X /= self.scale
        (largest,) = once(lambda: (largest_entries(X),))
        if not largest.max(initial=0.0) <= min(self.limit.min(), _LARGEST):
            np.clip(X, -_LARGEST, _LARGEST, out=X)
            entries, beyond = X.reshape(-1), np.flatnonzero(np.abs(X) > self.limit)
            limit = self.limit[beyond % len(self.limit)]
            entries[beyond] = limit * (limit / entries[beyond])
            largest = largest_entries(X)
        return X, largest

    def of_scaled(self, coef: FloatArray, intercept: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return coefficients (..., d, p) and intercepts for rows as they are seen."""
        return coef * self.scale[:, None], intercept + np.matmul(self.center, coef)

    def of_raw(self, coef: FloatArray, intercept: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return coefficients (..., d, p) and intercepts for rows as they come, but folded."""
        coef = coef / self.scale[:, None]
        return coef, intercept - np.matmul(self.center, coef)

    @property
    def bounds(self) -> FloatArray:
        """The lowest and the highest entry of each column (2, d) that is not folded."""
        radius = self.limit * self.scale
        return np.stack([self.center - radius, self.center + radius])


class ScaledUsers(NamedTuple):
    """A batch whose rows are scaled by public centres and scales, which `name` identifies."""

    X: FloatArray
    Y: FloatArray
    x_exponent: NDArray[np.intc]
    y_exponent: NDArray[np.intc]
    whole: Any
    name: Hashable

    @classmethod
    def of(cls, batch: Any, scaling: Scaling) -> ScaledUsers:
        """Return the users of a batch, each with its own power of two taken off."""

        def made() -> Arrays:
            rows, largest = scaling(batch.true_rows, partial(batch.keep, (name, "largest")))
            return times_powers(rows, -(taken := exponents(largest)), out=rows), taken

        name = ("seen", *map(digest, scaling))
        X, x_exponent = batch.keep(name, made, large=True)
        return cls(X, batch.Y, x_exponent, batch.y_exponent, batch, name)

    def in_own_units(self, centre: bool) -> tuple[ScaledUsers, FloatArray, FloatArray]:
        """Return rows about own means in own deviations, and both (n, 1, d): private to each.

        Without `centre` they are about 0. Constant columns have the unit 1.
        """
        rows, means = (centred if centre else np.asarray)(self.X), own_means(self.X) * centre
        size = np.sqrt(own_means(np.square(rows)))
        size[size == 0] = 1.0
        none, name = np.zeros_like(self.x_exponent), ("own units", centre, self.name)
        seen = self._replace(X=rows / size, x_exponent=none, name=name)
        return seen, times_powers(means, self.x_exponent), times_powers(size, self.x_exponent)

    def keep(self, key: Hashable, make: Callable[[], Arrays]) -> Arrays:
        """Keep it next to what belongs to the rows as they are."""
        kept: Arrays = self.whole.keep((self.name, key), make)
        return kept

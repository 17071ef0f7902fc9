"""How users see their columns: from public centres, in public scales, far entries folded."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdp.data.factorisations import exponents, times_powers

FloatArray = NDArray[np.float64]
_LARGEST = float(np.finfo(np.float64).max)


def digest(array: FloatArray | None) -> Hashable:
    """Return a public array as part of a key."""
    if array is None:
        return None
    return array.shape, blake2b(array.tobytes(), digest_size=16).digest()


class Scaling(NamedTuple):
    """How columns are seen: from public centres, in public scales, far entries folded.

    An entry beyond its limit, r times as far, counts as 1/r times as far: a little beyond, it is a
    large number, and far beyond it is a code.

    Attributes
    ----------
    center, scale : array of shape (d,)
        What is taken off, and what the rest is divided by.
    limit : array of shape (d,)
        In scales; inf for a column that has not shown its scale.
    """

    center: FloatArray
    scale: FloatArray
    limit: FloatArray

    def __call__(self, X: FloatArray) -> FloatArray:
        """Return rows (..., d) as they are seen, in the array that is given."""
        X -= self.center
        X /= self.scale
        least = min(self.limit.min(), _LARGEST)
        if not (X.max(initial=0.0) <= least and X.min(initial=0.0) >= -least):
            np.clip(X, -_LARGEST, _LARGEST, out=X)
            entries, beyond = X.reshape(-1), np.flatnonzero(np.abs(X) > self.limit)
            limit = self.limit[beyond % len(self.limit)]
            entries[beyond] = limit * (limit / entries[beyond])
        return X

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
    """A batch whose rows are seen from public centres in public scales, as `name` names them."""

    X: FloatArray
    Y: FloatArray
    x_exponent: NDArray[np.intc]
    y_exponent: NDArray[np.intc]
    whole: Any
    name: Hashable

    @classmethod
    def of(cls, batch: Any, scaling: Scaling) -> ScaledUsers:
        """Return the users of a batch, each with its own power of two taken off."""

        def made() -> tuple[NDArray[Any], ...]:
            rows = scaling(batch.true_rows)
            taken = exponents(rows)
            return times_powers(rows, -taken, out=rows), taken

        name = ("seen", *map(digest, scaling))
        X, x_exponent = batch.keep(name, made, large=True)
        return cls(X, batch.Y, x_exponent, batch.y_exponent, batch, name)

    def keep(
        self, key: Hashable, make: Callable[[], tuple[NDArray[Any], ...]]
    ) -> tuple[NDArray[Any], ...]:
        """Keep it next to what belongs to the rows as they are."""
        kept: tuple[NDArray[Any], ...] = self.whole.keep((self.name, key), make)
        return kept

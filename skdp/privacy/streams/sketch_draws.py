"""Random sketches with small integer entries, drawn from the gate's random words.

Gaussian entries. F = round(K / divisor), K a discrete Gaussian of standard deviation 300 with the
law of the noise table. The accounting of `skdp.privacy.accounting.sketch_laws` asks that F be
smaller in convex order than N(0, s^2) for the s that `gaussian_scale` returns,
s^2 = (300/divisor)^2 + 1/5.
Both laws are symmetric, so that is E(|F| - a)+ <= E(|N| - a)+ for every a >= 0. The left side is
linear between integers and F has finitely many values, so it is checked cell by cell, in sixty
digits, by tests/privacy/accounting/test_sketch_laws.py (1/6 is nearly the limit: rounding twice
adds 1/12 twice). Convex order passes to products with public matrices, since a norm is convex in
each entry.
The table's distance from the discrete Gaussian is charged to delta as noise draws are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.exceptions import PrivacyError
from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.noise import integers as noise
from skdp.privacy.noise.words import NoiseSource, SeededSource, Words

IntArray = NDArray[np.int64]
FINE, COARSE = 15, 75  # divisors: standard deviations 20 and 4; odd, so that there are no ties
_EXCESS = 0.2


def gaussian_scale(divisor: int) -> float:
    """Return the standard deviation of normal entries that dominate the integer ones."""
    return math.sqrt((noise.sigma_int(1) / divisor) ** 2 + _EXCESS)


class SketchSource:
    """Draws sketches. They count as noise: their draws are charged, a seed makes them public."""

    def __init__(self, session: PrivacySession, source: NoiseSource) -> None:
        self._session = session
        self._source = source
        self._charged = False
        self.most_rows = session.most_rows

    @classmethod
    def of(cls, session: PrivacySession, seed: int | None = None) -> SketchSource:
        """Return a session's source of random sketches: secret ones, or with a `seed` public."""
        if seed is not None:
            return cls(session, SeededSource(seed, "skdp.sketch"))
        if isinstance(session.source, SeededSource):
            return cls(session, session.source.derive("sketch"))
        words = session.source.words("sketch")(4)
        return cls(session, SeededSource(words.tobytes(), "sketch"))

    def shared_with(self, session: PrivacySession) -> SketchSource:
        """Return a source of the same sketches for another session, whose noise is its own."""
        return SketchSource(session, self._source)

    def secret(self) -> str:
        """Return the key of the sketches, for the checkpoint of a stream: as secret as the data."""
        if not isinstance(self._source, SeededSource):
            raise PrivacyError("these sketches have no key")
        return self._source.secret()

    @classmethod
    def from_secret(cls, session: PrivacySession, key: str, *, seeded: bool) -> SketchSource:
        """Return the source of a key, for the same sketches: they were charged when first drawn."""
        again = cls(session, SeededSource.from_secret(key, seeded=seeded))
        again._charged = True
        return again

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be pickled: the sketch may be secret."""
        raise PrivacyError("the source of a secret sketch cannot be copied or pickled.")

    def gaussian(
        self, name: str, shape: tuple[int, int], *, coarse: bool = False
    ) -> tuple[IntArray, float]:
        """Return an integer Gaussian matrix, and the deviation of the normal that dominates it."""
        divisor = COARSE if coarse else FINE
        if not self._charged:
            self._session.charge_draws(math.prod(shape))
        words = self._source.words(name, "gaussian", divisor)
        drawn = noise.integer_gaussian(words, shape, levels=1)
        return np.asarray(np.rint(drawn / divisor), dtype=np.int64), gaussian_scale(divisor)

    def sparse(self, name: str, n: int, size: int, each: int) -> tuple[IntArray, IntArray]:
        """Return `each` distinct positions below `size` and signs for each of n rows.

        Without replacement (Floyd): a position that is taken gives way to the last one allowed.
        """
        words = self._source.words(name, "sparse")
        positions = np.empty((n, each), np.int64)
        for i in range(each):
            last = size - each + i
            drawn = (words(n) % np.uint64(last + 1)).astype(np.int64)
            taken = (positions[:, :i] == drawn[:, None]).any(axis=1)
            positions[:, i] = np.where(taken, last, drawn)
        return positions, _signs(words, (n, each))

    def hadamard(self, name: str, n: int, size: int) -> IntArray:
        """Return random signs times `size` distinct columns of a Hadamard matrix, n x size."""
        words = self._source.words(name, "srht")
        length = 1 << max(0, (max(n, size) - 1).bit_length())
        signs = _signs(words, (n, 1))
        columns = np.argsort(words(length), kind="stable")[:size]
        both = np.arange(n)[:, None] & columns[None, :]
        return np.asarray(signs * np.where(np.bitwise_count(both) & 1, -1, 1), dtype=np.int64)


def _signs(words: Words, shape: tuple[int, int]) -> IntArray:
    bits = words(math.prod(shape)).reshape(shape) & np.uint64(1)
    return np.asarray(np.where(bits, 1, -1), dtype=np.int64)

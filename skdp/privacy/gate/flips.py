"""Permission to see a binary array through flips of its cells."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.answer import Answer
from skdp.privacy.gate.bounds import Bound
from skdp.privacy.gate.grants import Grant, Reader
from skdp.privacy.noise.flips import (
    MAX_FLIPS,
    draw_flips,
    flip_deviation,
    flip_probability,
    flip_rate,
    flipped,
)


class FlipGrant(Grant):
    """A grant whose noise is not added: each cell of a binary array is flipped by itself.

    The answer is the sparse array of the cells that are ones then. With p the probability of a
    flip (y - p)/(1 - 2p) is unbiased for a cell; its deviation is the noise scale of the answer.
    """

    def __init__(self, session: Reader, bound: Bound, epsilon: float) -> None:
        self._rate = 0 if epsilon == math.inf else flip_rate(epsilon / bound.cells)
        probability = flip_probability(self._rate)
        if probability * bound.size > MAX_FLIPS:
            raise ValueError(
                f"{bound.name!r} would flip {probability * bound.size:.2g} of {bound.size} cells, "
                f"more than {MAX_FLIPS:.0e}. Use a larger 'epsilon' or another 'algorithm'."
            )
        mechanism = "randomised response" if self._rate else "none (epsilon is infinite)"
        scale = flip_deviation(probability)
        super().__init__(session, bound, mechanism, scale, scale)

    def nothing(self) -> NDArray[Any]:
        """Return the answer of no data: there are no ones."""
        return np.zeros(0, np.int64)

    def fits(self, answer: NDArray[Any]) -> bool:
        """Whether an answer is a sorted list of places in the array."""
        if answer.ndim != 1 or answer.dtype != np.int64:
            return False
        inside = bool(((answer >= 0) & (answer < self.bound.size)).all())
        return inside and bool((np.diff(answer) > 0).all())

    def draw(self, *index: int) -> NDArray[np.int64]:
        """Draw the places of the flipped cells."""
        if not self._rate:
            return self.nothing()
        words = self._session.source.words(self.serial, self.bound.name, self.noise_scale, *index)
        return draw_flips(words, self.bound.size, self._rate)

    def finish(self, total: NDArray[Any]) -> Answer:
        """Return the places of ones as a sparse array."""
        rows, columns = np.divmod(total, self.bound.shape[1])
        cells = (np.ones(len(total), np.float64), (rows, columns))
        return Answer(sp.csr_array(cells, shape=self.bound.shape), self.noise_scale)

    def joined(self, exact: NDArray[Any], drawn: NDArray[Any]) -> NDArray[Any]:
        """Flip cells: those that are in one of two sorted lists of places."""
        return flipped(exact, drawn)

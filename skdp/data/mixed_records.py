"""Dense records whose contributions are A x for a public matrix A, and whose residuals are of x.

Notation and exactness as in `skdp.data.record_forms`. With A in proportion to the inverse of a
known covariance of x, contributions e A x point to the error of M whatever that covariance is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skdp.data.exact import exact_map, off_grid, on_grid, reduced
from skdp.data.record_forms import (
    LOOSE,
    DenseRecords,
    Frame,
    Pair,
    tangent_sizes,
)
from skdp.data.zipped import Zipped

FloatArray = NDArray[np.float64]
MOST = 2**12  # entries of a record: exact products with the public matrix


@dataclass(frozen=True)
class MixedRecords(DenseRecords):
    """Records x in dense rows of d1 d2 numbers that contribute A x, A symmetric of norm below 1.

    Like whitening, A is never applied to the records of a sum: it maps the exact sum.
    """

    mix: FloatArray | None = None  # A, on its grid

    @classmethod
    def of(cls, form: object, A: FloatArray) -> MixedRecords:
        """Return the form that mixes records which were not whitened."""
        if not isinstance(form, DenseRecords) or form.outer is not None:
            raise ValueError("a full 'design' needs measurement matrices in dense rows")
        return cls(form.shape, None, on_grid(A))

    def _mixed(self, Z: FloatArray) -> FloatArray:
        """Return A Z in integers: half a step away from it."""
        assert self.mix is not None
        return reduced(Z @ self.mix)

    def mapped(self, flat: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return floor(A K) of an exact sum K."""
        assert self.mix is not None
        return exact_map(self.mix, flat)

    def mapped_float(self, flat: FloatArray) -> FloatArray:
        """Return A K of a sum of floats."""
        assert self.mix is not None
        return np.asarray(off_grid(self.mix) @ flat)

    def survey(self, block: Zipped) -> Pair:
        """Return units and upper bounds of the norms of A x; 0 for what adds nothing."""
        size = math.prod(self.shape)
        units, Z = self.integers(block)
        Y = self._mixed(Z)
        norms = units * (np.sqrt(np.einsum("ij,ij->i", Y, Y)) * LOOSE + math.sqrt(size))
        return units, np.where(units > 0, norms, 0.0)

    def tangent(self, block: Zipped, frame: Frame) -> Pair:
        """Return an upper bound of ||P_T A x|| and <x, M> of each record.

        A column `kept` receives Y V and U'Y of Y = A Z, rounded to integers below 2**24.
        """
        (d1, d2), r, m = self.shape, frame.basis.shape[1], len(block.rows)
        units, kept = block.columns["units"], block.columns.get("kept")
        Z = self.counted(block)
        Y = self._mixed(Z)
        right = reduced((Y.reshape(-1, d2) @ frame.right).reshape(m, d1, r))
        left = reduced(self._left(frame.left, Y))
        core = reduced((left.reshape(-1, d2) @ frame.basis).reshape(m, r * r))
        right, left = right.reshape(m, -1), left.reshape(m, -1)
        if kept is not None:
            kept[:, : r * d1], kept[:, r * d1 :] = right, left
        squares = tuple(np.einsum("ij,ij->i", part, part) for part in (right, left, core))
        margin = math.sqrt(d1 * d2) + 2 * math.sqrt(r) * (math.sqrt(d1) + math.sqrt(d2)) + r
        return tangent_sizes(squares, units, margin), self.inner(Z, units, frame)

"""CSR records of a single entry, by its row or its column; and public means beside records.

A record x e_a e_b' becomes x e_b, what it says of the mean of a column, or x e_a. Records of more
entries say nothing of means, and contribute nothing: their entries may move together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.record_forms import Frame, Pair
from skdp.data.sparse_records import SparseRecords
from skdp.data.zipped import Zipped

FloatArray = NDArray[np.float64]


def of_means(block: Zipped, rows: FloatArray, columns: FloatArray) -> FloatArray:
    """Return <X, a 1' + 1 b'> of each record, for public a and b; NaN where it is not finite."""
    X = block.rows
    a, b = np.divmod(X.indices.astype(np.int64), len(columns))
    record = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
    with np.errstate(all="ignore"):
        terms = X.data * (rows[a] + columns[b])
        return np.asarray(np.bincount(record, terms, X.shape[0]), np.float64)


@dataclass(frozen=True)
class SingleEntries(SparseRecords):
    """Records of one entry as x e_b of `shape` (1, d2), or x e_a of `shape` (d1, 1)."""

    width: int = 1  # d2 of the records

    @classmethod
    def of(cls, form: object, *, by_column: bool) -> SingleEntries:
        """Return the form of records that were not whitened."""
        if type(form) is not SparseRecords or form.scales is not None:
            raise ValueError("sums by rows or columns of a matrix need X in CSR rows")
        d1, d2 = form.shape
        return cls((1, d2) if by_column else (d1, 1), None, d2)

    @property
    def total_name(self) -> str:
        """Say what a sum of contributions is."""
        return "column_sums" if self.shape[0] == 1 else "row_sums"

    def _singled(self, block: Zipped) -> Zipped:
        X = block.rows
        m, stored = X.shape[0], X.data != 0
        record = np.repeat(np.arange(m), np.diff(X.indptr))
        single = np.bincount(record[stored], minlength=m) == 1
        kept = stored & single[record]
        index = (
            X.indices[kept] % self.width if self.shape[0] == 1 else X.indices[kept] // self.width
        )
        indptr = np.concatenate([[0], np.cumsum(single)])
        return Zipped(
            sp.csr_array((X.data[kept], index, indptr), (m, max(self.shape))), block.columns
        )

    def survey(self, block: Zipped) -> Pair:
        """Return units and upper bounds of the norms."""
        return super().survey(self._singled(block))

    def tangent(self, block: Zipped, frame: Frame) -> Pair:
        """Return an upper bound of ||P_T X|| and <X, M> of each record."""
        return super().tangent(self._singled(block), frame)

    def sides(self, block: Zipped, frame: Frame, beside: FloatArray) -> Pair:
        """Return X V and U'X beside of each record, as floats."""
        return super().sides(self._singled(block), frame, beside)

    def weighted(self, block: Zipped) -> FloatArray:
        """Return the sum of weights Z, flat."""
        return super().weighted(self._singled(block))

    def moment_sizes(self, block: Zipped) -> FloatArray:
        """Return an upper bound of the norm of the row (or column) sums of squares."""
        return super().moment_sizes(self._singled(block))

    def moments(self, block: Zipped) -> FloatArray:
        """Return row sums and column sums of trunc((scale X)^2)."""
        return super().moments(self._singled(block))

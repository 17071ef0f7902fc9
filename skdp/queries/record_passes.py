"""Passes over the records of a trace regression, and numbers of single records kept between them.

Notation: a record is (X_i, y_i), X_i of shape d1 x d2. All of it runs inside the gate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.blocks import DenseRows, SparseRows, sum_rows
from skdp.data.exact import limbs_of
from skdp.data.zipped import Zipped, ZippedRows
from skdp.privacy.gate.bounds import Bounded
from skdp.queries.record_forms import DenseRecords, Pair
from skdp.queries.sparse_records import FactoredRecords, SparseRecords
from skdp.queries.sums import SumQuery

__all__ = ["RecordPasses"]

FloatArray = NDArray[np.float64]
Form = DenseRecords | SparseRecords | FactoredRecords
# A public contract: with more, sums that a public map is applied to could wrap, and the map is not
# a function of a wrapped sum.
_MOST_RECORDS = 2**25
_LARGEST_TARGET = 2.0**200
_UNITS = (("row", "add_remove"), ("row", "replace"), ("label", "replace"))


@dataclass(frozen=True)
class _Numbers:
    """Numbers of the records, computed when they are first asked for and kept by their query."""

    compute: Callable[[], FloatArray]

    def sum(self, work: Callable[[FloatArray], NDArray[Any]], shape: tuple[int, ...]) -> Any:
        return work(self.compute())


class RecordPasses(SumQuery):
    """Private records, as `RecordQuery` takes them, and what is computed of them."""

    units = "records"

    def __init__(
        self,
        X: Any,
        y: NDArray[Any],
        shape: tuple[int, int],
        *,
        adjacency: str,
        privacy_unit: str = "row",
        n_jobs: int | None = None,
    ) -> None:
        if (privacy_unit, adjacency) not in _UNITS:
            raise ValueError(f"unit {privacy_unit!r} has no adjacency {adjacency!r}")
        if len(y) > _MOST_RECORDS:
            raise ValueError(f"at most {_MOST_RECORDS} records are supported. Got {len(y)}.")
        source, self.form = _in_form(X, shape)
        super().__init__(source, adjacency=adjacency, n_jobs=n_jobs)
        self._y = y
        self._survey: Pair | None = None
        self._moment_sizes: FloatArray | None = None
        self.shape = shape
        self.privacy_unit = privacy_unit
        self.corner = 0.0  # the constant that joins each record, for an intercept

    def _sum(
        self, term: Callable[[Any], Any], shape: tuple[int, ...], step: float, **beside: Any
    ) -> NDArray[Any]:
        """Add ``term(block)`` over blocks that hold numbers of each record as columns."""
        source = ZippedRows(self._source, beside, at_once=self.form.at_once)
        return sum_rows(source, term, shape, exact=step != 0.0, n_jobs=self.n_jobs)

    def collect(self, compute: Callable[[Zipped], Any], n: int = 1, **beside: Any) -> FloatArray:
        """Return n numbers of each record, of that record alone."""
        found, nothing = np.zeros((n, self._source.n_rows())), np.zeros((), np.int64)

        def term(block: Zipped) -> NDArray[np.int64]:
            block.columns["found"][:] = np.reshape(compute(block), (n, block.shape[0])).T
            return nothing

        self._sum(term, (), 1.0, found=found.T, **beside)
        return found

    def survey(self) -> Pair:
        """Return units and norms of all records, kept for the later passes."""
        if self._survey is None:
            units, norms = self.collect(self.form.survey, 2)
            good = np.abs(np.nan_to_num(self._y, nan=np.inf)) < _LARGEST_TARGET
            self._survey = np.where(good, units, 0.0), np.where(good, norms, 0.0)
        return self._survey

    def targets(self) -> FloatArray:
        """Return the targets, 0 for records that contribute nothing."""
        return np.where(self.survey()[0] > 0, self._y, 0.0).astype(np.float64)

    def moment_sizes(self) -> FloatArray:
        """Return the sizes ||X_i X_i'||_F, kept."""
        if self._moment_sizes is None:
            self._moment_sizes = self.sizes_of_moments(self.survey()[0])
        return self._moment_sizes

    def sizes_of_moments(self, units: FloatArray) -> FloatArray:
        """Return ||X_i X_i'||_F for given units, 0 where they are 0."""
        sizes = self.collect(self.form.moment_sizes, units=units)[0]
        return np.where(units > 0, sizes, 0.0)

    def sum_weighted(self, weights: FloatArray, step: float) -> NDArray[Any]:
        """Return the sum of weights Z (in limbs of 20 bits, but at step 0)."""

        def term(block: Zipped) -> FloatArray:
            value = self.form.weighted(block)
            return limbs_of(value) if step else value

        size = math.prod(self.shape)
        units = self.survey()[0]
        return self._sum(term, (2, size) if step else (size,), step, units=units, weights=weights)

    def rank(self, scores: Callable[[], FloatArray], threshold: float, name: str) -> Bounded:
        """Return the sum over records of (1[score <= threshold] - 1/2): negative below the median.

        Under the unit `label` a score changes with its y_i.
        """
        return self._below(_Numbers(scores), threshold, 0.5, name)

    def kept_rank(self, scores: Callable[[], FloatArray], threshold: float, name: str) -> Bounded:
        """Return the same sum over the scores that are not 0."""
        return self._kept_below(_Numbers(scores), threshold, name)


def _in_form(X: Any, shape: tuple[int, int]) -> tuple[Any, Form]:
    """Return the rows of dense records (n, d1 d2), of a CSR matrix of that shape, or of (A, B)."""
    if isinstance(X, tuple):
        A, B = X
        factors = ZippedRows(DenseRows(A), {"factors": B})
        return factors, FactoredRecords((int(A.shape[1]), int(B.shape[1])))
    if sp.issparse(X):
        return SparseRows(X), SparseRecords(shape)
    return DenseRows(X), DenseRecords(shape)

"""Queries of a trace regression: the unit is one record (X_i, y_i), or one y_i (`label`).

Notation: X_i is d1 x d2, y_i its target, e_i = <X_i, M> - y_i the residual at a public M = U S V'
of rank r, T its tangent space, P_T X the projection of X on it. A record whose contribution
e_i P_T X_i is longer than C is scaled down to it. Neighbours: `add_remove` (n is private),
`replace` (n public); under the unit `label` only a y_i is replaced, and X is public.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.blocks import sum_rows
from skdp.privacy.gate.bounds import Bound, Bounded, PrivateQuery
from skdp.queries.clipped_sums import BELOW, ClippedSum, limbs_of
from skdp.queries.records import Block, Records
from skdp.queries.sparse_records import make_records

__all__ = ["ClippedSum", "MeasurementQuery"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
# A public contract: with more, sums that a public map is applied to could wrap, and the map is not
# a function of a wrapped sum.
_MOST_RECORDS = 2**25
_PUBLIC_CLIP = 1.5  # of public second moments, in medians
_LARGEST_TARGET = 2.0**200


def _halves(below: int, n: int, step: float) -> NDArray[Any]:
    """Return below - n/2, in steps of a release whose contributions are -1/2 and 1/2."""
    if step == 0.0:
        return np.asarray(below - 0.5 * n)
    half = round(0.5 / step)
    return np.asarray(max(-(2**62), min(2**62, (2 * below - n) * half)), np.int64)


class MeasurementQuery(PrivateQuery):
    """Statistics of records (X_i, y_i), each with its bound; nothing is computed before it is paid.

    Parameters
    ----------
    X : array (n, d1 d2), CSR matrix of that shape, tuple (A, B) of arrays, or Records
        Measurement matrices; factors mean X_i = a_i b_i'.
    y : array of shape (n,)
        Targets.
    shape : tuple of int
        (d1, d2).
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    privacy_unit : {"row", "label"}
        A record, or its target alone (adjacency "replace").
    n_jobs : int or None
        Threads; they never change a result.
    """

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
        if (privacy_unit, adjacency) not in (
            ("row", "add_remove"),
            ("row", "replace"),
            ("label", "replace"),
        ):
            raise ValueError(f"unit {privacy_unit!r} has no adjacency {adjacency!r}")
        if len(y) > _MOST_RECORDS:
            raise ValueError(f"at most {_MOST_RECORDS} records are supported. Got {len(y)}.")
        self._records: Records = X if hasattr(X, "survey") else make_records(X, shape)
        self._y = y
        self._survey: tuple[FloatArray, FloatArray] | None = None
        self._moment_sizes: FloatArray | None = None
        self.shape = shape
        self.adjacency = adjacency
        self.privacy_unit = privacy_unit
        self.n_jobs = n_jobs
        self.corner = 0.0  # the constant that joins each record, for an intercept

    def _like(self, records: Any, y: NDArray[Any], corner: float) -> MeasurementQuery:
        other = MeasurementQuery(
            records,
            y,
            self.shape,
            adjacency=self.adjacency,
            privacy_unit=self.privacy_unit,
            n_jobs=self.n_jobs,
        )
        other.corner = corner
        if records is self._records:
            other._survey = self._survey
        return other

    # -- narrowed queries (public arguments) -----------------------------------------------

    def whitened(self, W1: FloatArray, W2: FloatArray) -> MeasurementQuery:
        """Return the records W1 X W2 for public symmetric W of norm at most 1 (CSR: diagonal)."""
        return self._like(self._records.whitened(W1, W2), self._y, self.corner)

    def augmented(self, center: float, corner: float) -> MeasurementQuery:
        """Return the records (X, corner), y - center: their last coefficient is an intercept."""
        return self._like(self._records, self._y - center, corner)

    def products(self) -> ClippedSum:
        """Return the query of the contributions y X: its `total` is a first estimate of M."""
        return ClippedSum(self, None, 0.0)

    def tangent(
        self, U: FloatArray, S: FloatArray, V: FloatArray, intercept: float = 0.0
    ) -> ClippedSum:
        """Return the query of the contributions e P_T X at the public M = U S V'."""
        return ClippedSum(self, (U, S, V), intercept)

    # -- what is public ---------------------------------------------------------------------

    @property
    def records_changed(self) -> float:
        """How many contributions differ: one comes or goes, or one goes and one comes."""
        return 1.0 if self.adjacency == "add_remove" else 2.0

    @property
    def n_rows(self) -> int:
        """Number of records, public under adjacency="replace" only."""
        if self.adjacency != "replace":
            raise ValueError("the number of records is private under adjacency='add_remove'")
        return self._records.n_rows()

    def public_moments(self) -> FloatArray:
        """Return second moments of X, clipped as `moments`; public under the unit "label" only."""
        if self.privacy_unit != "label":
            raise ValueError("X is private unless privacy_unit='label'")
        units = self.collect(self._records.survey)[0]  # of X alone: y stays private
        sizes = self._sizes_of_moments(units)
        level = _PUBLIC_CLIP * float(np.median(sizes)) if sizes.size else 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            shrink = np.sqrt(np.minimum(1.0, level / sizes))
        unit = max(math.sqrt(level), 1e-300) * 2.0**-16
        return self._moments(units, np.where(units > 0, shrink / unit, 0.0), exact=False) * unit**2

    # -- passes over the records, run inside the gate ------------------------------------------

    def collect(self, compute: Callable[[Block], tuple[FloatArray, ...]]) -> tuple[FloatArray, ...]:
        """Return per-record numbers that depend on that record alone."""
        found: dict[int, tuple[FloatArray, ...]] = {}
        nothing = np.zeros((), np.int64)

        def term(block: Block) -> IntArray:
            found[block.start] = compute(block)
            return nothing

        sum_rows(self._records, term, (), exact=True, n_jobs=self.n_jobs)
        if not found:
            return (np.zeros(0), np.zeros(0))
        return tuple(
            np.concatenate(p) for p in zip(*(found[i] for i in sorted(found)), strict=True)
        )

    def survey(self) -> tuple[FloatArray, FloatArray]:
        """Return units and norms of all records, kept for the later passes."""
        if self._survey is None:
            units, norms = self.collect(self._records.survey)
            good = np.abs(np.nan_to_num(self._y, nan=np.inf)) < _LARGEST_TARGET
            self._survey = np.where(good, units, 0.0), np.where(good, norms, 0.0)
        return self._survey

    def targets(self) -> FloatArray:
        """Return the targets, 0 for records that contribute nothing."""
        return np.where(self.survey()[0] > 0, self._y, 0.0).astype(np.float64)

    def sum_weighted(self, units: FloatArray, weights: FloatArray, *, exact: bool) -> NDArray[Any]:
        """Return the sum of weights Z (in limbs of 20 bits if exact)."""

        def term(block: Block) -> FloatArray:
            here = slice(block.start, block.stop)
            value = self._records.weighted(block, units[here], weights[here])
            if not exact:
                return value
            return limbs_of(value)

        size = math.prod(self.shape)
        shape: tuple[int, ...] = (2, size) if exact else (size,)
        return sum_rows(self._records, term, shape, exact=exact, n_jobs=self.n_jobs)

    # -- counts and ranks ---------------------------------------------------------------------

    def count(self) -> Bounded:
        """Return the number of records. One record changes it by 1."""
        if self.adjacency == "replace":
            raise ValueError("the number of records is public under adjacency='replace': `n_rows`")

        def answer(step: float) -> NDArray[Any]:
            n = self._records.n_rows()
            return (
                np.asarray(float(n)) if step == 0.0 else np.asarray(n * round(1 / step), np.int64)
            )

        return Bounded(Bound("count", (), 1.0, slack=0.5, l1=1.0, l1_slack=0.5), answer)

    def rank(self, scores: Callable[[], FloatArray], threshold: float, name: str) -> Bounded:
        """Return the sum over records of (1[score <= threshold] - 1/2).

        One record adds -1/2 or 1/2: 1/2; replace (and label): 1. Negative below the median.
        """

        def answer(step: float) -> NDArray[Any]:
            values = scores()
            return _halves(int(np.count_nonzero(values <= threshold)), len(values), step)

        size, rounding = self.records_changed / 2, self.records_changed / 2
        return Bounded(Bound(name, (), size, slack=rounding, l1=size, l1_slack=rounding), answer)

    def targets_below(self, threshold: float) -> Bounded:
        """Return the rank of a threshold among the y_i."""
        return self.rank(self.targets, threshold, "target_median")

    def squares_below(self, threshold: float) -> Bounded:
        """Return the rank of a threshold among the mean squared entries ||X_i||^2 / (d1 d2)."""
        size = math.prod(self.shape)
        return self.rank(lambda: self.survey()[1] ** 2 / size, threshold, "square_median")

    def moment_sizes_below(self, threshold: float) -> Bounded:
        """Return the rank of a threshold among the sizes ||X_i X_i'||_F."""
        return self.rank(self._all_moment_sizes, threshold, "moment_median")

    # -- second moments of the design --------------------------------------------------------

    def _all_moment_sizes(self) -> FloatArray:
        if self._moment_sizes is None:
            self._moment_sizes = self._sizes_of_moments(self.survey()[0])
        return self._moment_sizes

    def _sizes_of_moments(self, units: FloatArray) -> FloatArray:
        def sizes(block: Block) -> tuple[FloatArray, ...]:
            here = units[block.start : block.stop]
            return (np.where(here > 0, self._records.moment_sizes(block, here), 0.0),)

        return self.collect(sizes)[0]

    def _moments(self, units: FloatArray, scales: FloatArray, *, exact: bool) -> NDArray[Any]:
        def term(block: Block) -> FloatArray:
            here = slice(block.start, block.stop)
            return self._records.moments(block, units[here], scales[here])

        shape = (self._moments_size(),)
        return sum_rows(self._records, term, shape, exact=exact, n_jobs=self.n_jobs)

    def _moments_size(self) -> int:
        d1, d2 = self.shape
        return d1 + d2 if self._diagonal else d1 * d1 + d2 * d2

    @property
    def _diagonal(self) -> bool:
        return self._records.moment_slack() == (0.0, 0.0)

    def moments(self, clip_level: float) -> Bounded:
        """Return the sums of X X' and X'X (CSR: of their diagonals), ||X X'||_F clipped to C; flat.

        Both have the same norm: sqrt(2) C together; replace: the changes are PSD (or
        non-negative), so <P, Q> >= 0 and it is sqrt(2) larger, not 2. Integers: a record is scaled
        to rint(X / sqrt(step)), which adds at most a sqrt(C) + b (`Records.moment_slack`).
        """
        C, psd = float(clip_level), math.sqrt(self.records_changed)
        a, b = self._records.moment_slack()

        def answer(step: float) -> NDArray[Any]:
            sizes, units = self._all_moment_sizes(), self.survey()[0]
            with np.errstate(divide="ignore", invalid="ignore"):
                shrink = np.sqrt(np.minimum(1.0, C / sizes)) * BELOW
            exact = step != 0.0
            unit = math.sqrt(step) if exact else math.sqrt(C) * 2.0**-16
            total = self._moments(units, np.where(units > 0, shrink / unit, 0.0), exact=exact)
            return total if exact else total * unit**2

        both = math.sqrt(2.0) * psd
        bound = Bound(
            "design_moments", (self._moments_size(),), both * C, slack=both * b,
            cross=both * a * math.sqrt(C),
        )  # fmt: skip
        return Bounded(bound, answer)

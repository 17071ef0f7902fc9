"""Queries of a trace regression: the unit is one record (X_i, y_i), or one y_i (`label`).

Notation: X_i is d1 x d2, y_i its target, e_i = <X_i, M> - y_i the residual at a public M = U S V'
of rank r, T its tangent space, P_T X the projection of X on it. A record whose contribution
e_i P_T X_i is longer than C is scaled down to it. Neighbours: `add_remove` (n is private),
`replace` (n public); under the unit `label` only a y_i is replaced, and X is public.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.exact import limbs_of
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.queries.clipped_sums import BELOW, ClippedSum
from skdp.queries.records import Block, Records
from skdp.queries.sparse_records import make_records
from skdp.queries.sums import SumQuery

__all__ = ["ClippedSum", "MeasurementQuery"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
# A public contract: with more, sums that a public map is applied to could wrap, and the map is not
# a function of a wrapped sum.
_MOST_RECORDS = 2**25
_PUBLIC_CLIP = 1.5  # of public second moments, in medians
_LARGEST_TARGET = 2.0**200


@dataclass(frozen=True)
class _Numbers:
    """Numbers of the records, computed when they are first asked for and kept by their query."""

    compute: Callable[[], FloatArray]

    def sum(self, work: Callable[[FloatArray], NDArray[Any]], shape: tuple[int, ...]) -> Any:
        return work(self.compute())


class MeasurementQuery(SumQuery):
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
        if (privacy_unit, adjacency) not in (
            ("row", "add_remove"),
            ("row", "replace"),
            ("label", "replace"),
        ):
            raise ValueError(f"unit {privacy_unit!r} has no adjacency {adjacency!r}")
        if len(y) > _MOST_RECORDS:
            raise ValueError(f"at most {_MOST_RECORDS} records are supported. Got {len(y)}.")
        records: Records = X if hasattr(X, "survey") else make_records(X, shape)
        super().__init__(records, adjacency=adjacency, n_jobs=n_jobs)
        self._records = records
        self._y = y
        self._survey: tuple[FloatArray, FloatArray] | None = None
        self._moment_sizes: FloatArray | None = None
        self.shape = shape
        self.privacy_unit = privacy_unit
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
        return self._moments(units, np.where(units > 0, shrink / unit, 0.0), 0.0) * unit**2

    # -- passes over the records, run inside the gate ------------------------------------------

    def collect(self, compute: Callable[[Block], tuple[FloatArray, ...]]) -> tuple[FloatArray, ...]:
        """Return per-record numbers that depend on that record alone."""
        found: dict[int, tuple[FloatArray, ...]] = {}
        nothing = np.zeros((), np.int64)

        def term(block: Block) -> IntArray:
            found[block.start] = compute(block)
            return nothing

        self._sum(term, (), 1.0)
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

    def sum_weighted(self, units: FloatArray, weights: FloatArray, step: float) -> NDArray[Any]:
        """Return the sum of weights Z (in limbs of 20 bits, but at step 0)."""

        def term(block: Block) -> FloatArray:
            here = slice(block.start, block.stop)
            value = self._records.weighted(block, units[here], weights[here])
            return limbs_of(value) if step else value

        size = math.prod(self.shape)
        return self._sum(term, (2, size) if step else (size,), step)

    # -- ranks -------------------------------------------------------------------------------

    def rank(self, scores: Callable[[], FloatArray], threshold: float, name: str) -> Bounded:
        """Return the sum over records of (1[score <= threshold] - 1/2): negative below the median.

        Under the unit `label` a score changes with its y_i.
        """
        return self._below(_Numbers(scores), threshold, 0.5, name)

    def kept_below(self, threshold: float) -> Bounded:
        """Return how many |y_i| are at most the threshold, minus half of those that are not 0."""
        numbers = _Numbers(lambda: np.abs(self.targets()))
        return self._kept_below(numbers, threshold, "target_scale")

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

    def _moments(self, units: FloatArray, scales: FloatArray, step: float) -> NDArray[Any]:
        def term(block: Block) -> FloatArray:
            here = slice(block.start, block.stop)
            return self._records.moments(block, units[here], scales[here])

        return self._sum(term, (self._moments_size(),), step)

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
        C = float(clip_level)
        a, b = self._records.moment_slack()

        def answer(step: float) -> NDArray[Any]:
            sizes, units = self._all_moment_sizes(), self.survey()[0]
            with np.errstate(divide="ignore", invalid="ignore"):
                shrink = np.sqrt(np.minimum(1.0, C / sizes)) * BELOW
            unit = math.sqrt(step) if step else math.sqrt(C) * 2.0**-16
            total = self._moments(units, np.where(units > 0, shrink / unit, 0.0), step)
            return total if step else total * unit**2

        both = self.neighbours.positive(math.sqrt(2.0))
        bound = Bound(
            "design_moments", (self._moments_size(),), both * C, slack=both * b,
            cross=both * a * math.sqrt(C),
        )  # fmt: skip
        return Bounded(bound, answer)

"""Queries of a trace regression: the unit is one record (X_i, y_i), or one y_i (`label`).

Notation: X_i is d1 x d2, y_i its target, e_i = <X_i, M> - y_i the residual at a public M = U S V'
of rank r, T its tangent space, P_T X the projection of X on it. A record whose contribution
e_i P_T X_i is longer than C is scaled down to it. Neighbours: `add_remove` (n is private),
`replace` (n public); under the unit `label` only a y_i is replaced, and X is public.

Numbers of single records (units, norms, residuals) stay where the records are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.blocks import AnyRows, RowSource, sum_rows
from skdp.data.places import Placed
from skdp.data.remote import RowColumns
from skdp.data.zipped import Zipped, ZippedRows
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.queries.clipped_sums import BELOW, ClippedSum, centred
from skdp.queries.records import Records
from skdp.queries.sparse_records import records_like
from skdp.queries.sums import SumQuery

__all__ = ["ClippedSum", "MeasurementQuery"]

FloatArray = NDArray[np.float64]
Columns = Mapping[str, NDArray[Any]]
# A public contract: with more, sums that a public map is applied to could wrap, and the map is not
# a function of a wrapped sum.
_MOST_RECORDS = 2**25
_PUBLIC_CLIP = 1.5  # of public second moments, in medians
_LARGEST_TARGET = 2.0**200


# -- what is computed where the records are: public values alone, so that it can travel ------------


def _records_of(rows: RowSource, y: Any, at_once: int, **factors: Any) -> RowSource:
    return ZippedRows(rows, {"y": np.asarray(y, np.float64), **factors}, at_once=at_once)


def _survey(block: Zipped, records: Records) -> tuple[FloatArray, ...]:
    """Return unit, norm and target of each record: 0 for records that contribute nothing."""
    units, norms = records.survey(block)
    y = block.columns["y"]
    good = np.abs(np.nan_to_num(y, nan=np.inf)) < _LARGEST_TARGET
    units = np.where(good, units, 0.0)
    return units, np.where(good, norms, 0.0), np.where(units > 0, y, 0.0)


def _moment_sizes(block: Zipped, records: Records) -> tuple[FloatArray]:
    units = block.columns["units"]
    return (np.where(units > 0, records.moment_sizes(block, units), 0.0),)


def _public_sizes(block: Zipped, records: Records) -> tuple[FloatArray, FloatArray]:
    """Return units and sizes of X alone: y stays private."""
    units = records.survey(block).units
    return units, np.where(units > 0, records.moment_sizes(block, units), 0.0)


def _mean_squares(columns: Columns, size: int) -> FloatArray:
    return np.asarray(columns["norms"] ** 2 / size)


def _sizes(columns: Columns) -> FloatArray:
    return columns["moment_sizes"]


def _target_sizes(columns: Columns, center: float) -> FloatArray:
    return np.abs(centred(columns, center))


def _number(columns: Columns) -> NDArray[np.int64]:
    return np.asarray(len(columns["units"]), np.int64)


@dataclass(frozen=True)
class _Moments:
    """Second moments of the records of a block, in units of `unit`, sizes clipped to `level`."""

    records: Records
    level: float
    unit: float
    below: float = 1.0

    def __call__(self, block: Zipped) -> FloatArray:
        units, sizes = block.columns["units"], block.columns["moment_sizes"]
        with np.errstate(divide="ignore", invalid="ignore"):
            shrink = np.sqrt(np.minimum(1.0, self.level / sizes)) * self.below
        return self.records.moments(block, units, np.where(units > 0, shrink / self.unit, 0.0))


class MeasurementQuery(SumQuery):
    """Statistics of records (X_i, y_i), each with its bound; nothing is computed before it is paid.

    Parameters
    ----------
    placed : Placed
        Measurement matrices as rows of d1 d2 numbers, with the column `y` of targets; or rows a_i
        of d1 numbers, with the column `right` of rows b_i besides, for X_i = a_i b_i'.
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
        placed: Placed,
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
        super().__init__(placed.rows, adjacency=adjacency, n_jobs=n_jobs)
        self._n_known = placed.known_rows()  # NaN: counted when sums are read
        self._check_number(self._n_known)
        self.records = records_like(placed, shape)
        self._zipped = placed.joined(partial(_records_of, at_once=self.records.at_once))
        self.shape = shape
        self.privacy_unit = privacy_unit
        self.center = 0.0  # public: taken off each target
        self.corner = 0.0  # the constant that joins each record, for an intercept
        self.survey = self._columns(_survey, "units", "norms", "targets")

    @staticmethod
    def _check_number(n: float) -> None:
        if n > _MOST_RECORDS:
            raise ValueError(f"at most {_MOST_RECORDS} records are supported. Got more.")

    def check_number(self) -> None:
        """Raise where the records are too many for exact sums, if that was not known before."""
        if self._n_known != self._n_known:
            self._check_number(int(self.survey.sum(_number)))

    # -- narrowed queries (public arguments) -----------------------------------------------

    def whitened(self, W1: FloatArray, W2: FloatArray) -> MeasurementQuery:
        """Return the records W1 X W2 for public symmetric W of norm at most 1 (CSR: diagonal)."""
        other = copy.copy(self)
        vars(other).pop("_moment_sizes", None)
        other.records = self.records.whitened(W1, W2)
        other.survey = other._columns(_survey, "units", "norms", "targets")
        return other

    def augmented(self, center: float, corner: float) -> MeasurementQuery:
        """Return the records (X, corner), y - center: their last coefficient is an intercept."""
        other = copy.copy(self)
        other.center, other.corner = self.center + center, corner
        return other

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
        found = self._columns(_public_sizes, "units", "moment_sizes")
        level = _PUBLIC_CLIP * found.median("moment_sizes")
        unit = max(math.sqrt(level), 1e-300) * 2.0**-16
        term = _Moments(self.records, level, unit)
        return self.sum_over(found.beside(), term, (self._moments_size(),), 0.0) * unit**2

    # -- passes over the records, run inside the gate ------------------------------------------

    def _columns(self, compute: Callable[..., Any], *names: str) -> RowColumns:
        compute = partial(compute, records=self.records)
        return RowColumns(self._zipped, compute, *names, n_jobs=self.n_jobs)

    def sum_over(
        self, source: AnyRows, term: Callable[[Zipped], Any], shape: tuple[int, ...], step: float
    ) -> NDArray[Any]:
        """Add ``term(block)`` over records with columns: exact integers, or floats at step 0."""
        return sum_rows(source, term, shape, exact=step != 0.0, n_jobs=self.n_jobs)

    # -- ranks -------------------------------------------------------------------------------

    def rank(self, numbers: Any, threshold: float, name: str) -> Bounded:
        """Return the sum over records of (1[number <= threshold] - 1/2): negative below the median.

        Under the unit `label` a number changes with its y_i.
        """
        return self._below(numbers, threshold, 0.5, name)

    def kept_below(self, threshold: float) -> Bounded:
        """Return how many |y_i| are at most the threshold, minus half of those that are not 0."""
        sizes = self.survey.numbers(partial(_target_sizes, center=self.center))
        return self._kept_below(sizes, threshold, "target_scale")

    def targets_below(self, threshold: float) -> Bounded:
        """Return the rank of a threshold among the y_i."""
        targets = self.survey.numbers(partial(centred, center=self.center))
        return self.rank(targets, threshold, "target_median")

    def squares_below(self, threshold: float) -> Bounded:
        """Return the rank of a threshold among the mean squared entries ||X_i||^2 / (d1 d2)."""
        squares = self.survey.numbers(partial(_mean_squares, size=math.prod(self.shape)))
        return self.rank(squares, threshold, "square_median")

    def moment_sizes_below(self, threshold: float) -> Bounded:
        """Return the rank of a threshold among the sizes ||X_i X_i'||_F."""
        return self.rank(self._moment_sizes.numbers(_sizes), threshold, "moment_median")

    # -- second moments of the design --------------------------------------------------------

    @cached_property
    def _moment_sizes(self) -> RowColumns:
        return self.survey.then(partial(_moment_sizes, records=self.records), "moment_sizes")

    def _moments_size(self) -> int:
        d1, d2 = self.shape
        return d1 + d2 if self._diagonal else d1 * d1 + d2 * d2

    @property
    def _diagonal(self) -> bool:
        return self.records.moment_slack() == (0.0, 0.0)

    def moments(self, clip_level: float) -> Bounded:
        """Return the sums of X X' and X'X (CSR: of their diagonals), ||X X'||_F clipped to C; flat.

        Both have the same norm: sqrt(2) C together; replace: the changes are PSD (or
        non-negative), so <P, Q> >= 0 and it is sqrt(2) larger, not 2. Integers: a record is scaled
        to rint(X / sqrt(step)), which adds at most a sqrt(C) + b (`Records.moment_slack`).
        """
        C = float(clip_level)
        a, b = self.records.moment_slack()

        def answer(step: float) -> NDArray[Any]:
            unit = math.sqrt(step) if step else math.sqrt(C) * 2.0**-16
            term = _Moments(self.records, C, unit, BELOW)
            source = self._moment_sizes.beside()
            total = self.sum_over(source, term, (self._moments_size(),), step)
            return total if step else total * unit**2

        both = self.neighbours.positive(math.sqrt(2.0))
        bound = Bound(
            "design_moments", (self._moments_size(),), both * C, slack=both * b,
            cross=both * a * math.sqrt(C),
        )  # fmt: skip
        return Bounded(bound, answer)

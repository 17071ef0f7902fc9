"""Queries of a trace regression: the unit is one record (X_i, y_i), or one y_i (`label`).

Notation: X_i is d1 x d2, y_i its target, e_i = <X_i, M> - y_i the residual at a public M = U S V'
of rank r, T its tangent space, P_T X the projection of X on it. A record whose contribution
e_i P_T X_i is longer than C is scaled down to it. Neighbours: `add_remove` (n is private),
`replace` (n public). Under the unit `label` X and n are public, and neighbours differ in one y_i:
`add_remove` withholds it, so that its record adds nothing, `replace` has another.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.known_records import KnownRecords, read_covariances
from skdp.data.mixed_records import MixedRecords
from skdp.data.remote import RowColumns
from skdp.data.single_entries import SingleEntries
from skdp.data.sparse_records import SparseRecords
from skdp.data.zipped import Zipped
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.queries.record_passes import Columns, Form, RecordPasses, centred
from skdp.queries.record_sums import BELOW, ClippedSum

FloatArray = NDArray[np.float64]
_PUBLIC_CLIP = 1.5  # of public second moments, in medians


def _target_sizes(columns: Columns, center: float) -> FloatArray:
    return np.abs(centred(columns, center))


def _moment_sizes(columns: Columns) -> FloatArray:
    return columns["moment_sizes"]


def _precision(columns: Columns) -> FloatArray:
    return columns["precision"]


def _spread(columns: Columns) -> FloatArray:
    return columns["spread"]


def _precisions(block: Zipped, form: Form) -> tuple[FloatArray, FloatArray]:
    known = read_covariances(block.columns, form.shape)
    return known.precision, known.spread


def _gained(block: Zipped, gain: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    columns = block.columns
    return columns["units"] * gain, columns["norms"] * gain, columns["targets"]


@dataclass(frozen=True)
class _Moments:
    """Second moments of a block in units of `unit`, records scaled down to sizes of `level`."""

    form: Form
    level: float
    unit: float
    below: float

    def __call__(self, block: Zipped) -> FloatArray:
        units, sizes = block.columns["units"], block.columns["moment_sizes"]
        with np.errstate(divide="ignore", invalid="ignore"):
            shrink = np.sqrt(np.minimum(1.0, self.level / sizes)) * self.below
        return self.form.moments(block.beside(scales=np.where(units > 0, shrink / self.unit, 0.0)))


class RecordQuery(RecordPasses):
    """Statistics of records (X_i, y_i), each with its bound; nothing is computed before it is paid.

    Parameters
    ----------
    placed : Placed
        Measurement matrices as rows of d1 d2 numbers, with the column `y` of targets; or rows a_i
        of d1 numbers, with a column `factors` of rows b_i besides, for X_i = a_i b_i'. A column
        `covariance`, or columns `row_covariance` and `column_covariance`, hold a covariance L_i of
        each record, which is part of it: the record contributes e_i L_i^-1 X_i.
    shape : tuple of int
        (d1, d2).
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    privacy_unit : {"row", "label"}
        A record, or its target alone.
    n_jobs : int or None
        Threads; they never change a result.
    """

    # -- narrowed queries (public arguments) -----------------------------------------------

    def whitened(self, W1: FloatArray, W2: FloatArray) -> RecordQuery:
        """Return the records W1 X W2 for public symmetric W of norm at most 1 (CSR: diagonal)."""
        other = copy.copy(self)
        other.form = self.form.whitened(W1, W2)
        other._keep()
        return other

    def mixed(self, A: FloatArray) -> RecordQuery:
        """Return records that contribute A vec(X), for public symmetric A of norm below 1."""
        other = copy.copy(self)
        other.form = MixedRecords.of(self.form, A)
        other._keep()
        return other

    def gained(self, gain: float) -> RecordQuery:
        """Return records with covariances whose contributions are `gain` times as large.

        `gain` is a power of two, so that integers of records stay what they are.
        """
        if not isinstance(self.form, KnownRecords):
            raise ValueError("only records with covariances of their own have a gain")
        other = copy.copy(self)
        other.form = replace(self.form, gain=self.form.gain * gain)
        other.survey = self.survey.then(partial(_gained, gain=gain), "units", "norms", "targets")
        return other

    def augmented(self, center: float, corner: float) -> RecordQuery:
        """Return the records (X, corner), y - center: their last coefficient is an intercept."""
        other = copy.copy(self)
        other.center, other.corner = self.center + center, corner
        return other

    def beside_means(self, rows: FloatArray, columns: FloatArray) -> RecordQuery:
        """Return the records with <X, a 1' + 1 b'> taken off their targets, for public a and b."""
        if type(self.form) is not SparseRecords or self.form.scales is not None:
            raise ValueError("means of rows and columns need X in CSR rows")
        other = copy.copy(self)
        other.means = rows, columns
        other._keep()
        return other

    def single_entries(self, by_column: bool) -> RecordQuery:
        """Return the records (CSR rows) of one entry, by its column or its row; others are zero.

        The `products` of these are the sums that tell of means. A map of each record alone: bounds
        are those of the records that it makes.
        """
        other = copy.copy(self)
        other.form = SingleEntries.of(self.form, by_column=by_column)
        other.shape = other.form.shape
        other._keep()
        return other

    def products(self) -> ClippedSum:
        """Return the query of the contributions y X: its `total` is a first estimate of M."""
        return ClippedSum(self, None, 0.0)

    def tangent(
        self, U: FloatArray, S: FloatArray, V: FloatArray, intercept: float = 0.0
    ) -> ClippedSum:
        """Return the query of the contributions e P_T X at the public M = U S V'."""
        return ClippedSum(self, (U, S, V), intercept)

    # -- ranks -------------------------------------------------------------------------------

    def kept_below(self, threshold: float) -> Bounded:
        """Return the rank of a threshold among the |y_i| that are not 0."""
        sizes = self.survey.numbers(partial(_target_sizes, center=self.center))
        return self._below(sizes, threshold, "target_scale", kept_only=True)

    def moment_sizes_below(self, threshold: float) -> Bounded:
        """Return the rank of a threshold among the sizes ||X_i X_i'||_F."""
        return self._below(self.moment_sizes.numbers(_moment_sizes), threshold, "moment_median")

    def precisions_below(self, threshold: float) -> Bounded:
        """Return the rank of a threshold among the mean precisions tr(L_i^-1) / (d1 d2)."""
        return self._below(self.survey.numbers(_precision), threshold, "precision_median")

    def spreads_below(self, threshold: float) -> Bounded:
        """Return the rank of a threshold among mean precisions times mean variances."""
        return self._below(self.survey.numbers(_spread), threshold, "spread_median")

    def public_precision(self) -> tuple[float, float]:
        """Return the medians of both; covariances are public under the unit "label" only."""
        if self.privacy_unit != "label":
            raise ValueError("covariances are private unless privacy_unit='label'")
        found = self._made(_precisions, "precision", "spread")
        return found.median("precision"), found.median("spread")

    # -- second moments of the design --------------------------------------------------------

    def public_moments(self) -> FloatArray:
        """Return second moments of X, clipped as `moments`; public under the unit "label" only."""
        if self.privacy_unit != "label":
            raise ValueError("X is private unless privacy_unit='label'")
        found = self.of_rows_alone()
        return self._moments(found, _PUBLIC_CLIP * found.median("moment_sizes"), 0.0, 1.0)

    def _moments(
        self, columns: RowColumns, level: float, step: float, below: float
    ) -> NDArray[Any]:
        """Return the sums over records that are scaled down to sizes of `level`."""
        unit = math.sqrt(step) if step else max(math.sqrt(level), 1e-300) * 2.0**-16
        term = _Moments(self.form, level, unit, below)
        total = self.sum_over(columns, term, (self._moments_size(),), step)
        return total if step else total * unit**2

    def _moments_size(self) -> int:
        d1, d2 = self.shape
        diagonal = self.form.moment_slack() == (0.0, 0.0)
        return d1 + d2 if diagonal else d1 * d1 + d2 * d2

    def design_moments(self, clip_level: float) -> Bounded:
        """Return the sums of X X' and X'X (CSR: of their diagonals), ||X X'||_F clipped to C; flat.

        Both have the same norm: sqrt(2) C together; replace: the changes are PSD (or
        non-negative), so <P, Q> >= 0 and it is sqrt(2) larger, not 2. Integers: a record is scaled
        to rint(X / sqrt(step)), which adds at most a sqrt(C) + b (`moment_slack` of the form).
        """
        C = float(clip_level)
        a, b = self.form.moment_slack()

        def answer(step: float) -> NDArray[Any]:
            return self._moments(self.moment_sizes, C, step, BELOW)

        both = self.neighbours.positive(math.sqrt(2.0))
        bound = Bound(
            "design_moments", (self._moments_size(),), both * C, slack=both * b,
            cross=both * a * math.sqrt(C),
        )  # fmt: skip
        return Bounded(bound, answer)

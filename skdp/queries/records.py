"""Queries of a trace regression: the unit is one record (X_i, y_i), or one y_i (`label`).

Notation: X_i is d1 x d2, y_i its target, e_i = <X_i, M> - y_i the residual at a public M = U S V'
of rank r, T its tangent space, P_T X the projection of X on it. A record whose contribution
e_i P_T X_i is longer than C is scaled down to it. Neighbours: `add_remove` (n is private),
`replace` (n public); under the unit `label` only a y_i is replaced, and X is public.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.queries.record_passes import RecordPasses
from skdp.queries.record_sums import BELOW, ClippedSum

__all__ = ["RecordQuery"]

FloatArray = NDArray[np.float64]
_PUBLIC_CLIP = 1.5  # of public second moments, in medians


class RecordQuery(RecordPasses):
    """Statistics of records (X_i, y_i), each with its bound; nothing is computed before it is paid.

    Parameters
    ----------
    X : array (n, d1 d2), CSR matrix of that shape, or tuple (A, B) of arrays
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

    # -- narrowed queries (public arguments) -----------------------------------------------

    def whitened(self, W1: FloatArray, W2: FloatArray) -> RecordQuery:
        """Return the records W1 X W2 for public symmetric W of norm at most 1 (CSR: diagonal)."""
        other = copy.copy(self)
        other.form = self.form.whitened(W1, W2)
        other._survey = other._moment_sizes = None
        return other

    def augmented(self, center: float, corner: float) -> RecordQuery:
        """Return the records (X, corner), y - center: their last coefficient is an intercept."""
        other = copy.copy(self)
        other._y, other.corner = self._y - center, corner
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

    def targets_below(self, threshold: float) -> Bounded:
        """Return the rank of a threshold among the y_i."""
        return self.rank(self.targets, threshold, "target_median")

    def kept_below(self, threshold: float) -> Bounded:
        """Return the rank of a threshold among the |y_i| that are not 0."""
        return self.kept_rank(lambda: np.abs(self.targets()), threshold, "target_scale")

    def squares_below(self, threshold: float) -> Bounded:
        """Return the rank of a threshold among the mean squared entries ||X_i||^2 / (d1 d2)."""
        size = math.prod(self.shape)
        return self.rank(lambda: self.survey()[1] ** 2 / size, threshold, "square_median")

    def moment_sizes_below(self, threshold: float) -> Bounded:
        """Return the rank of a threshold among the sizes ||X_i X_i'||_F."""
        return self.rank(self.moment_sizes, threshold, "moment_median")

    # -- second moments of the design --------------------------------------------------------

    def public_moments(self) -> FloatArray:
        """Return second moments of X, clipped as `moments`; public under the unit "label" only."""
        if self.privacy_unit != "label":
            raise ValueError("X is private unless privacy_unit='label'")
        units = self.collect(self.form.survey, 2)[0]  # of X alone: y stays private
        sizes = self.sizes_of_moments(units)
        level = _PUBLIC_CLIP * float(np.median(sizes)) if sizes.size else 0.0
        return self._moments(units, sizes, level, 0.0, 1.0)

    def _moments(
        self, units: FloatArray, sizes: FloatArray, level: float, step: float, below: float
    ) -> NDArray[Any]:
        """Return the sums over records that are scaled down to sizes of `level`."""
        with np.errstate(divide="ignore", invalid="ignore"):
            shrink = np.sqrt(np.minimum(1.0, level / sizes)) * below
        unit = math.sqrt(step) if step else max(math.sqrt(level), 1e-300) * 2.0**-16
        scales = np.where(units > 0, shrink / unit, 0.0)
        shape = (self._moments_size(),)
        total = self._sum(self.form.moments, shape, step, units=units, scales=scales)
        return total if step else total * unit**2

    def _moments_size(self) -> int:
        d1, d2 = self.shape
        diagonal = self.form.moment_slack() == (0.0, 0.0)
        return d1 + d2 if diagonal else d1 * d1 + d2 * d2

    def moments(self, clip_level: float) -> Bounded:
        """Return the sums of X X' and X'X (CSR: of their diagonals), ||X X'||_F clipped to C; flat.

        Both have the same norm: sqrt(2) C together; replace: the changes are PSD (or
        non-negative), so <P, Q> >= 0 and it is sqrt(2) larger, not 2. Integers: a record is scaled
        to rint(X / sqrt(step)), which adds at most a sqrt(C) + b (`moment_slack` of the form).
        """
        C = float(clip_level)
        a, b = self.form.moment_slack()

        def answer(step: float) -> NDArray[Any]:
            return self._moments(self.survey()[0], self.moment_sizes(), C, step, BELOW)

        both = self.neighbours.positive(math.sqrt(2.0))
        bound = Bound(
            "design_moments", (self._moments_size(),), both * C, slack=both * b,
            cross=both * a * math.sqrt(C),
        )  # fmt: skip
        return Bounded(bound, answer)

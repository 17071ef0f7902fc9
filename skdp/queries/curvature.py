"""The derivative (curvature matrix) of sums of clipped gradients with respect to M, for public X.

Under the unit "label" X is public, so the curvature, which depends on X alone, is public too:
nothing here reads a target.
Notation of `skdp.queries.records`: z_i are the coordinates of P_T X_i (and of the bias column of an
intercept), p_i is its norm, p the median norm. A contribution is clipped where the residual exceeds
radius p/p_i standard deviations, and then does not change with M. Normal residuals stay below that
with probability b_i = P(|g| <= radius p/p_i), g standard normal. So a small change m of M changes
the sum by about the sum of b_i z_i z_i'm.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from skdp._limits import BLOCK, EXACT, MEMORY, FloatArray
from skdp.data.factorisations import row_squares
from skdp.data.integers import off_grid
from skdp.data.records import MAX_ROWS, Frame, MixedRecords
from skdp.data.views import Columns, Zipped
from skdp.queries.records import ClippedSum, Form

_GRID = 2.0**10  # integer steps in a direction of median norm; integer sums do not depend on order
_MOST_WORK = 2**31  # largest number of multiplications for one curvature matrix


def _directions(
    block: Zipped, form: Form, frame: Frame, complement: FloatArray, bias: float
) -> tuple[FloatArray, NDArray[np.float32]]:
    """Return the norm and the unit direction of z_i for each record."""
    right, left = form.sides(block, frame, complement)
    m = len(right)
    last = [np.full((m, 1), bias)] if bias else []
    found = np.hstack([right.reshape(m, -1), left.reshape(m, -1), *last])
    found = np.where((block.columns["units"] > 0)[:, None], found, 0.0)
    lengths = np.sqrt(row_squares(found))
    return lengths, (found / np.maximum(lengths, 1e-300)[:, None]).astype(np.float32)


def _curvature(columns: Columns, radius: float, unit: float, longest: float) -> NDArray[np.int64]:
    """Return the sum of b z z' in integer units; z is rounded, and a very large norm clipped."""
    lengths, directions = columns["lengths"], columns["directions"]
    total = np.zeros((directions.shape[1],) * 2)
    for i in range(0, len(lengths), MAX_ROWS):
        p = lengths[i : i + MAX_ROWS]
        kept = erf(radius / np.maximum(p, 1e-300) / math.sqrt(2.0))
        roots = np.minimum(np.sqrt(kept) * p / unit, longest)
        Z = np.rint(directions[i : i + MAX_ROWS] * roots[:, None])
        total += Z.T @ Z
    return total.astype(np.int64)


def public_curvature(sums: ClippedSum, radius: float) -> tuple[FloatArray, float] | None:
    """Return the sum of b z z' and the median norm p, in the coordinates of `ClippedSum.total`.

    It is defined for the unit "label" only. Return None if contributions are mixed by a full
    covariance (`MixedRecords`), or if the matrix would take much more time than the sums.
    """
    query = sums.query
    query.check_public_rows()
    size, n = sums.n_coordinates, query.n_rows
    skewed = isinstance(query.form, MixedRecords)
    if skewed or size**2 > BLOCK or 4 * n * size > MEMORY or n * size**2 > _MOST_WORK:
        return None
    form, bias, whole = query.form, query.bias, off_grid(sums.complement())
    make = partial(_directions, form=form, frame=sums.frame(), complement=whole, bias=bias)
    columns = query.units_alone.then(make, "lengths", "directions")
    typical = columns.median("lengths")
    if typical <= 0:
        return None
    unit = math.sqrt(erf(radius / math.sqrt(2.0))) * typical / _GRID
    clip_radius, longest = radius * typical, math.sqrt(EXACT / n)
    term = partial(_curvature, radius=clip_radius, unit=unit, longest=longest)
    return columns.sum(term, (size, size)) * unit**2, typical

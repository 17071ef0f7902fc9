"""Classes in a released read-out: totals, means, other weights. All of it is post-processing.

Notation: K classes with public codes (K x q), which are the targets of a read-out with a corner.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdp.solvers.postprocess import inside_ball
from skdp.solvers.readout import Readout

FloatArray = NDArray[np.float64]
_FLOOR = 2.0  # deviations of its noise that a total is taken to be at least
_ABSENT = 1e-9  # share of all records below which a class has none


class ClassMoments(NamedTuple):
    """What a release says of each class.

    Attributes
    ----------
    codes : array of shape (K, q)
        Their public codes.
    totals : array of shape (K,)
        Records, at least two deviations of their noise.
    means : array of shape (K, d)
        Mean rows, inside the ball that holds all rows.
    shown : array of bool, shape (K,)
        Whether a total stands clear of its noise.
    noise : array of shape (q + 1, K)
        Deviation of an entry of the class sums, for each released number that they are made of.
    """

    codes: FloatArray
    totals: FloatArray
    means: FloatArray
    shown: NDArray[np.bool_]
    noise: FloatArray


def class_moments(released: Readout, codes: FloatArray, clip_norm: float) -> ClassMoments:
    """Read totals and means of the classes off the sums over all records and over their codes.

    A code with a one beside it is a linear function of the class, and the other way round.
    """
    decode = np.linalg.pinv(np.column_stack([codes, np.ones(len(codes))]))  # (q + 1) x K
    n, corner = released.weight, released.corner
    counts = n * np.append(released.target_mean, 1.0) @ decode
    noises = np.append(released.cross_noise, math.sqrt(2) * released.noise / corner) / corner
    floor = np.maximum(_FLOOR * np.sqrt(noises**2 @ decode**2), _ABSENT * n)
    totals = np.maximum(counts, floor)
    cross = released.cross + n * np.outer(released.row_mean, released.target_mean)
    sums = np.column_stack([cross, n * released.row_mean]) @ decode
    means = np.array([inside_ball(mean, clip_norm) for mean in (sums / totals).T])
    noise = np.append(released.cross_noise, released.noise / corner)[:, None] * decode
    return ClassMoments(codes, totals, means, counts > floor, noise)


def reweighted(
    released: Readout, classes: ClassMoments, weights: FloatArray, *, centered: bool = True
) -> Readout:
    """Return the moments as if each record of a class had its weight, for about as many records.

    Means and products with the codes are weighted exactly; the scatter is that of all records, as
    if classes had one covariance. All moments are about 0 if they are not `centered`.
    """
    n, shares = released.weight, weights * classes.totals
    shares = shares / shares.sum()
    row_mean, target_mean = shares @ classes.means, shares @ classes.codes
    scatter = released.scatter
    if not centered:
        scatter = scatter + n * np.outer(released.row_mean, released.row_mean)
        row_mean, target_mean = np.zeros_like(row_mean), np.zeros_like(target_mean)
    codes = (n * shares)[:, None] * (classes.codes - target_mean)  # K x q
    rates = classes.noise @ (codes / classes.totals[:, None])
    return released._replace(
        scatter=scatter,
        cross=classes.means.T @ codes,
        row_mean=row_mean,
        target_mean=target_mean,
        cross_noise=np.sqrt(np.sum(rates**2, axis=0)),
    )

"""A density, or an ellipse for each class, from released counts and moments. All of it is free."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

FloatArray = NDArray[np.float64]
_KERNEL = np.array([1.0, 4.0, 6.0, 4.0, 1.0]) / 16
_BLUR = float(_KERNEL @ _KERNEL)  # noise left of one cell after smoothing along both axes
_OCCUPIED = 0.35  # of a frame of three deviations: where most rows are
_CLEAR = 12.0  # deviations of the noise that an occupied cell should hold
_MOST = 48
FEWEST_CELLS = 10  # a side, for a histogram to show a shape
_THINNEST = 1e-3  # variance of a class, in squares of half a frame
_NEAR = 0.15  # of half a frame: how well the mean of a class must be known


class ClassShapes(NamedTuple):
    """Released sizes, means and covariances of classes, and which of them stand out of the noise.

    Attributes
    ----------
    counts : array of shape (n_classes,)
    means : array of shape (n_classes, 2)
    covariances : array of shape (n_classes, 2, 2)
    seen : array of bool, shape (n_classes,)
    """

    counts: FloatArray
    means: FloatArray
    covariances: FloatArray
    seen: NDArray[np.bool_]


def cells_per_side(n: float, noise_scale: float) -> int:
    """Return how many cells a side of the frame may have, so that one means something.

    Smoothed cells in which n rows crowd hold twelve deviations of their noise.
    """
    if noise_scale <= 0:
        return _MOST
    cells = max(n, 0.0) / (_OCCUPIED * _CLEAR * _BLUR * noise_scale)
    return int(min(_MOST, math.sqrt(cells)))


def cell_error(n: float, side: int, noise_scale: float) -> float:
    """Return the noise of a smoothed cell over what it holds, where n rows crowd."""
    return _OCCUPIED * side * side * _BLUR * noise_scale / n


def cell_edge(cells: int, noise_scale: float) -> float:
    """Return how large the largest of so many smoothed cells of noise is, about."""
    return math.sqrt(2 * math.log(max(2, cells))) * _BLUR * noise_scale


def least_class(noise_scale: float) -> float:
    """Return the number of rows from which the mean of a class is known well enough to show."""
    return noise_scale / _NEAR


def smoothed(counts: FloatArray, noise_scale: float) -> FloatArray:
    """Return counts smoothed over their neighbours, and 0 where noise alone would reach."""
    blurred = counts
    for axis in (-1, -2):
        blurred = np.apply_along_axis(np.convolve, axis, blurred, _KERNEL, mode="same")
    edge = cell_edge(counts.size, noise_scale)
    return np.asarray(np.where(blurred > edge, blurred, 0.0))


class ShapeWeights(NamedTuple):
    """What rows and squares are multiplied by in the sums of a class."""

    units: float
    square: float


def class_shapes(
    sums: FloatArray, noise_scale: float, weights: ShapeWeights, center: FloatArray,
    half: FloatArray,
) -> ClassShapes:  # fmt: skip
    """Read classes from sums of a, of w and of b ww', w a place in the frame.

    A class is seen where the noise of its mean is small beside the frame. Covariances are moved to
    what classes have in common, as far as they differ by no more than their noise.
    """
    table = sums.reshape(-1, 6)
    counts = table[:, 0] / weights.units
    n = np.maximum(np.maximum(counts, 1.0), 2 * noise_scale / weights.units)
    mean = np.clip(table[:, 1:3] / n[:, None], -1.0, 1.0)
    xx, yy = (table[:, 3:5] / weights.square / n[:, None]).T
    xy = table[:, 5] / math.sqrt(2) / weights.square / n
    second = np.stack([np.stack([xx, xy], -1), np.stack([xy, yy], -1)], -2)
    square = mean[:, :, None] * mean[:, None, :]
    spread = noise_scale / n
    push = np.square(spread)[:, None, None] * np.eye(2)  # of a noisy mean's square
    covariance = second - square + push
    seen = counts > least_class(noise_scale)
    expected = np.square(spread) * (
        3 / weights.square**2  # of sums of squares, of means, of counts
        + 6 * np.square(mean).sum(axis=1)
        + np.square(covariance - square).sum(axis=(1, 2)) / weights.units**2
    )
    covariance, doubt = _shrunk(covariance, expected, n * seen)
    values, vectors = np.linalg.eigh(covariance)
    values = np.clip(_positive(values, np.sqrt(doubt / 3)[:, None]), _THINNEST, 1.0)
    covariance = (vectors * values[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    size = half[:, None] * half
    return ClassShapes(counts, center + half * mean, covariance * size, np.asarray(seen))


def _shrunk(
    covariances: FloatArray, noise: FloatArray, n: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Move matrices to their weighted mean, as far as their differences are expected of noise.

    `noise` is the expected squared norm of the noise on each; twice that is room for few classes.
    That of what is returned comes with it.
    """
    if np.count_nonzero(n) < 2:
        return covariances, noise
    weights = n / n.sum()
    common = np.average(covariances, axis=0, weights=weights)
    away = covariances - common
    found = np.average(np.square(away).sum(axis=(1, 2)), weights=weights)
    expected = np.average(noise, weights=weights)
    kept = max(0.0, 1 - 2 * expected / max(found, 1e-300))
    left = kept**2 * noise + (1 - kept) ** 2 * (np.square(weights) @ noise)
    return np.asarray(common + kept * away), left


def _positive(values: FloatArray, noise_scale: FloatArray) -> FloatArray:
    """Return the mean of what numbers above zero may be, of which these noisy ones are known.

    The mean of a normal law cut at zero. A variance below its noise is drawn about as wide as the
    noise, not thin.
    """
    scale = np.maximum(noise_scale, 1e-300)
    place = np.clip(values / scale, -30.0, 30.0)
    hazard = np.exp(-0.5 * np.square(place) - log_ndtr(place)) / math.sqrt(2 * math.pi)
    return np.asarray(np.where(values > 30 * scale, values, scale * (place + hazard)))


def mass_level(density: FloatArray, share: float) -> float:
    """Return the level above which the densest cells hold a share of all that is shown."""
    ordered = np.sort(density.ravel())[::-1]
    total = np.cumsum(ordered)
    if total[-1] <= 0:
        return math.inf
    return float(ordered[min(np.searchsorted(total, share * total[-1]), ordered.size - 1)])

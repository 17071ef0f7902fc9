"""Location and scale of columns from released counts and sums. All of it is free."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdp.answer import released_count

__all__ = ["ColumnMoments", "column_moments", "column_sizes"]

FloatArray = NDArray[np.float64]
_CLEAR = 3.0  # deviations of its noise that a count must exceed to be seen


class ColumnMoments(NamedTuple):
    """Released means and variances, and the number of rows."""

    mean: FloatArray
    variance: FloatArray
    n: float


def column_sizes(counts: FloatArray, octaves: NDArray[np.int_], noise_scale: float) -> FloatArray:
    """Return a power of two for each column that few of its entries exceed.

    From the fullest octave upwards, as long as the counts stand clear of the noise; then one octave
    more, for the entries that are too few to be seen. A lone count far away is noise.
    """
    seen = counts > _CLEAR * noise_scale
    columns = np.arange(len(counts))
    top = np.argmax(counts, axis=1)
    for _ in range(len(octaves)):
        above = np.minimum(top + 1, len(octaves) - 1)
        top = np.where(seen[columns, above], above, top)
    if noise_scale == 0.0:  # nothing is protected: the largest entry counts
        top = len(octaves) - 1 - np.argmax(seen[:, ::-1], axis=1)
    return np.asarray(np.ldexp(2.0, octaves[top]))


def column_moments(
    sums: FloatArray,
    noise_scale: float,
    center: FloatArray,
    size: FloatArray,
    *,
    square_weight: float,
    count_weight: float,
    n: float | None,
) -> ColumnMoments:
    """Read means and variances from the sums of w, b (w^2 - 1/2) and c of the query.

    The number of rows is kept above two deviations of its noise, a mean in its bounds, and a
    variance above one deviation of its noise: a column that shows no spread is not blown up.
    """
    d = len(center)
    unit = np.where(np.isfinite(size), size, 1.0)
    if n is None:
        n = released_count(sums[-1] / count_weight, noise_scale / count_weight)
        n_noise = noise_scale / count_weight
    else:
        n_noise = 0.0
    w = sums[:d] / n
    if noise_scale > 0:
        w = np.clip(w, -1.0, 1.0)
    square = sums[d : 2 * d] / square_weight / n + np.where(np.isfinite(size), 0.5, 0.0)
    spread = np.hypot(noise_scale / square_weight, n_noise / 2) / n
    variance = np.maximum(square - w * w, spread)
    return ColumnMoments(center + unit * w, unit**2 * variance, n)

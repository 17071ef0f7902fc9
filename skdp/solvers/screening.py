"""Leading subspaces of wide rows: few columns are kept, and popularity is the floor.

Notation as in `skdp.solvers.spectral`. A column costs noise whether it holds anything or not, so
the number of kept columns follows the signal: n' = 2 x^(2/3) for x rows over the noise of one
entry of the moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.answer import Answer
from skdp.solvers.rungs import Bought, bought, ranked
from skdp.solvers.spectral import RowNoise, clipped_gram, refined_subspace
from skdp.solvers.thinning import Subspace, chosen_subspace

FloatArray = NDArray[np.float64]
# Shares of the sums, and how many noise scales the largest of them must reach to stop there.
_RUNGS = ((0.1, 5.0), (0.2, 3.5), (0.7, math.inf))
_SIZE, _FEWEST_KEPT, _MOST_KEPT = 2.0, 100, 4000
_ONE_MOMENT = 3  # times as many columns are best where there are no tangent rounds
_WIDER = 2  # so many times as many columns are reached by the tangent rounds
_HELD = 0.8  # of the squares of the counts, by the columns that are kept at least
_FEW = 1500  # columns whose moment is released whole where sums tell nothing
_CLEAR = 0.1  # of the rows, at the edge of its noise: then it tells something
_MOMENT = 0.6  # of what is left; the tangent rounds (or a second moment) get the rest
_MOMENT_LEVEL, _TANGENT_LEVEL = 30.0, 40.0


def bought_sums(sums: Callable[..., Answer], share: float, *, all_in: bool = True) -> Bought:
    """Buy column sums in rungs until the largest can be read.

    With `all_in` the whole share goes to sums that cannot be read.
    """
    rungs = [(part * share, level) for part, level in (_RUNGS if all_in else _RUNGS[:-1])]
    return bought(sums, rungs, lambda value, scale, level: ranked(np.abs(value)) > level * scale)


def kept_columns(signal: float, d: int, k: int) -> int:
    """Return how many columns to keep: rows over the noise of an entry, to the power 2/3."""
    size = min(_SIZE * signal ** (2 / 3), float(_MOST_KEPT))
    return int(min(max(size, _FEWEST_KEPT, 4 * k), d))


def shows_all_columns(signal: float, d: int) -> bool:
    """Whether a moment shows so much of all columns that their counts are not needed beside it."""
    return d <= _MOST_KEPT and bool(_ONE_MOMENT * _SIZE * signal ** (2 / 3) >= d)


def moment_columns(signal: float, d: int, k: int) -> int:
    """Return of how many columns one moment is best: more than where tangent rounds reach others.

    Their counts are known too: popularity is a floor.
    """
    return min(_ONE_MOMENT * kept_columns(signal, d, k), _MOST_KEPT, d)


def screened_subspace(
    ask: Any, d: int, k: int, share: float, noise: RowNoise
) -> tuple[FloatArray, FloatArray, NDArray[np.intp]]:
    """Return (V, noisy column sums, kept columns) of wide, mostly non-negative rows.

    Which columns are kept is a function of the noisy sums. The subspace of their moment is chosen
    by thinning, with the most popular columns among the candidates: where these are best a second
    moment takes the place of the tangent rounds. Few columns are all kept where sums tell nothing
    though a moment would: then entries have both signs.
    """
    clear = d <= _FEW and noise.psd * math.sqrt(2 * d / share) < _CLEAR * noise.n
    sums = bought_sums(ask.sums, share, all_in=not clear)
    order = np.argsort(-np.abs(sums.value), kind="stable")
    V = np.zeros((d, k))
    if not (sums.readable or clear):
        V[order[:k], np.arange(k)] = 1.0
        return V, sums.value, order[:k]
    rest = share - sums.spent
    first, last = _MOMENT * rest, (1 - _MOMENT) * rest
    n = kept_columns(noise.n * math.sqrt(first) / noise.psd, d, k) if sums.readable else d
    order = order[: _WIDER * n]
    sizes = np.maximum(np.abs(sums.value[order]), sums.noise_scale)
    V[order] = _moment_subspace(ask.columns(order), sizes, n, k, (first, last), noise)
    return V, sums.value, order


def screened_moment(ask: Any, d: int, k: int, share: float, signal: float) -> FloatArray:
    """Return the subspace of one moment of the columns with the largest counts.

    `signal` is rows over the noise of an entry of the moment, at the whole share. Popularity is the
    floor, as for rows.
    """
    counts = bought_sums(ask.counts, share)
    order = np.argsort(-counts.value, kind="stable")
    V = np.zeros((d, k))
    if not counts.readable:
        V[order[:k], np.arange(k)] = 1.0
        return V
    rest = share - counts.spent
    size = moment_columns(signal * math.sqrt(rest / share), d, k)
    order = order[: max(size, min(_spread(counts, order), _MOST_KEPT))]
    moment = ask.columns(order).gram(share=rest)
    options = (moment.noise_scale, k, counts.value[order])
    V[order] = chosen_subspace(moment.value, *options, sparse=True).vectors
    return V


def _spread(counts: Bought, order: NDArray[np.intp]) -> int:
    """Return how many columns hold most of the squares of the counts, by released values.

    Where columns are about alike, few of them show little of what all have in common.
    """
    squares = np.cumsum(counts.value[order] ** 2 - counts.noise_scale**2)
    return int(np.searchsorted(np.maximum.accumulate(squares), _HELD * squares.max())) + 1


def _moment_subspace(
    ask: Any, sizes: FloatArray, n: int, k: int, shares: tuple[float, float], noise: RowNoise
) -> FloatArray:
    """Return a subspace from the moment of the first n columns, and tangent rounds on all."""
    first, last = shares
    block = ask.columns(np.arange(n))
    moment, scale = clipped_gram(block, n, first, noise, level=_MOMENT_LEVEL)
    found = chosen_subspace(moment, scale, k, sizes[:n], sparse=True)
    if not found.axes:
        outside = _expected_precision(found, scale, sizes)
        rounds = (last / 2, last / 2)
        return refined_subspace(
            ask, found.moment, scale, found.vectors, rounds, noise, _TANGENT_LEVEL, outside
        )
    again, other = clipped_gram(block, n, last, noise, level=_MOMENT_LEVEL)
    a, b = scale**-2, other**-2
    moment, scale = (a * moment + b * again) / (a + b), (a + b) ** -0.5
    V = np.zeros((len(sizes), k))
    V[:n] = chosen_subspace(moment, scale, k, sizes[:n], sparse=True).vectors
    return V


def _expected_precision(found: Subspace, scale: float, sizes: FloatArray) -> FloatArray:
    """Return how small products of the columns outside a block are, seen from those inside.

    The square of a product with a direction is taken to grow like the square of the column's sum,
    at the rate of the less popular three quarters of the block, its noise taken off.
    """
    n = len(found.moment)
    rare = slice(n // 4, n)
    squares = np.sum((found.moment[rare] @ found.vectors) ** 2, axis=0)
    squares = np.maximum(squares - (n - n // 4) * scale**2 / 2, 1e-3 * squares)
    rates = squares / np.sum(sizes[rare] ** 2)
    return np.asarray(1 / np.maximum(np.outer(sizes[n:] ** 2, rates), 1e-300))

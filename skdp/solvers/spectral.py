"""Leading subspaces of a second moment X'X from row-private answers.

Notation: rows x of norm at most C, d features, V (d x k) the public subspace so far, and noise
scales per unit of sensitivity for the whole budget: `psd` for a sum of x x' (1/mu, sqrt(2)/mu under
replace), `rect` for a sum of rank-one terms (1/mu, 2/mu under replace).

Three routes for rows:

- `gram_subspace`: the symmetric moment of clipped rows, then rounds of tangent refinement: at V
  the tangent part (I - VV')X'X V needs half the noise of the whole, and less with clipping;
- `power_subspace`: power steps on the core and tangent parts in one release, no d x d array;
- `screened_subspace` (`skdp.solvers.screening`): columns chosen by their noisy sums, then the
  first route on what is kept.

Rows may be persons, whose rows are bounded together: bounds and answers are those of one row.

Clip levels aim at a number of clipped rows in proportion to the noise (`private_clip_level`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.solvers.linalg import orthonormal, top_eigenpairs
from skdp.solvers.scales import private_clip_level
from skdp.solvers.thinning import chosen_subspace

FloatArray = NDArray[np.float64]
_CLIP_SHARE = 0.03  # of each release, for its clip level
_GRAM_LEVEL, TANGENT_LEVEL = 24.0, 20.0
CORE_SCALE = 3.0
MOST_CLIPPED = 0.75  # at least a quarter of the rows keep their length
_NEGLIGIBLE_LOSS = 2e-4  # of the sum of squares: not worth two more passes over the data
_ONE_ROUND = 3e-3  # a loss that one tangent round mends as well as two
_TANGENT_SHARE = 0.2  # of a subspace, usually, for one tangent round
_PASS = 30.0  # measured: what a pass takes for an entry, over what a moment takes
_TINY = 1e-150  # stands for the noise scale where there is no noise


@dataclass(frozen=True)
class RowNoise:
    """Public facts on the noise of a fit.

    Attributes
    ----------
    psd, rect : float
        Noise scale per unit of sensitivity at the whole budget; 0 without noise.
    n : float
        Number of rows, public or released.
    clip_norm : float
        Largest norm of a row.
    """

    psd: float
    rect: float
    n: float
    clip_norm: float

    def goal(self, level: float, factor: float, width: float, share: float) -> float:
        """How many rows a clip level may shorten."""
        noise = level * factor * math.sqrt(width / share)
        return min(noise, MOST_CLIPPED * self.n)


class _Estimate:
    """A public estimate of X'X: a released block on the first columns, and low-rank corrections."""

    def __init__(self, block: FloatArray, noise_scale: float, outside: FloatArray) -> None:
        self._block = block
        self._low: list[tuple[FloatArray, FloatArray]] = []
        # Precision of what is known of each entry off the leading subspace: inside the block from
        # its release, outside of it how small products are expected to be.
        self._inside: FloatArray | float = 2 / max(noise_scale, _TINY) ** 2
        self._outside: FloatArray = outside

    def multiply(self, Y: FloatArray) -> FloatArray:
        m = len(self._block)
        Z = np.zeros_like(Y)
        Z[:m] = self._block @ Y[:m]
        for left, right in self._low:
            Z += left @ (right.T @ Y) + right @ (left.T @ Y)
        return Z

    def refine(self, V: FloatArray, tangent: FloatArray, scales: FloatArray) -> None:
        """Blend a released tangent part at V into the estimate, each entry by its precision."""
        precision = 1 / np.maximum(scales, _TINY) ** 2
        gain = np.empty_like(tangent)
        m = len(self._block)
        gain[:m] = precision / (self._inside + precision)
        gain[m:] = precision / (self._outside + precision)
        Y = self.multiply(V)
        self._low.append((gain * (tangent - (Y - V @ (V.T @ Y))), V))
        self._inside = self._inside + precision
        self._outside = self._outside + precision

    def leading(self, V: FloatArray, n_steps: int = 8) -> FloatArray:
        """Return the leading subspace by block iteration from V, rotated to its eigenvectors."""
        for _ in range(n_steps):
            V = orthonormal(self.multiply(V))
        M = V.T @ self.multiply(V)
        return np.asarray(V @ top_eigenpairs((M + M.T) / 2)[1])


def clipped_gram(
    ask: Any, d: int, share: float, noise: RowNoise, level: float = _GRAM_LEVEL
) -> tuple[FloatArray, float]:
    """Release the moment of rows clipped to a level that suits the noise: (moment, noise scale).

    A high `level` clips more: right for directions; a low one keeps the eigenvalues.
    """
    if noise.psd == 0.0:
        answer = ask.gram(share=share)
        return answer.value, 0.0
    part = min(_CLIP_SHARE, 0.1 * share)
    rest = share - part
    goal = noise.goal(level, noise.psd, 2 * d, rest)

    def count(threshold: float, *, share: float) -> Any:
        return ask.norms_above(math.sqrt(threshold), share=share)

    square = private_clip_level(count, noise.clip_norm**2, goal, part)
    answer = ask.clipped(math.sqrt(square)).gram(share=rest)
    return answer.value, answer.noise_scale


def moment_of_long_rows_pays(d: int, noise: RowNoise) -> bool:
    """Whether to take the moment of the rows beyond a tangent level off a kept moment is quick.

    It takes d^2 for each of them; another pass over all rows takes some d for each.
    """
    long_rows = noise.goal(TANGENT_LEVEL, noise.rect, d, _TANGENT_SHARE)
    return long_rows * d < _PASS * noise.n


def largest_term(clip_norm: float, scale: float = math.inf) -> float:
    """Return the largest size of one row's term, its core divided by `scale`, at any V."""
    return clip_norm**2 / (2 * math.sqrt(1 - scale**-2))


def _tangent_product(
    ask: Any,
    V: FloatArray,
    share: float,
    noise: RowNoise,
    level: float,
    *,
    scale: float = math.inf,
    weights: FloatArray | None = None,
    clip: float | None = None,
) -> tuple[FloatArray, float, float]:
    """Release the weighted product at V: (answer, noise scale, clip level).

    Its terms are clipped to a public level; None finds one that suits the noise.
    """
    query = ask.tangent(V, scale, weights)
    if noise.rect == 0.0:
        answer = query.product(math.inf, share=share)
        return answer.value, 0.0, math.inf
    if clip is None:
        goal = noise.goal(level, noise.rect, len(V), share)
        largest = largest_term(noise.clip_norm, scale)
        clip = private_clip_level(query.sizes_above, largest, goal, _CLIP_SHARE * share)
        share = (1 - _CLIP_SHARE) * share
    answer = query.product(clip, share=share)
    return answer.value, answer.noise_scale, clip


def _column_weights(values: FloatArray, edge: float) -> FloatArray:
    """Weights (lambda gap)^(-1/4) of the columns: what is near the noise needs the most care."""
    floor = max(0.5 * edge, 1e-12 * float(values[0]), 1e-300)
    gaps = np.maximum(values - edge, floor)
    weights = (np.maximum(values, floor) * gaps) ** -0.25
    return np.asarray(weights / weights.max())


def _refine_rounds(
    ask: Any,
    estimate: _Estimate,
    V: FloatArray,
    weights: FloatArray,
    shares: Sequence[float],
    noise: RowNoise,
    level: float,
) -> FloatArray:
    clip = None  # V hardly moves after the first round: its clip level serves the others
    for share in shares:
        product, scale, clip = _tangent_product(
            ask, V, share, noise, level, weights=weights, clip=clip
        )
        tangent = (product - V @ (V.T @ product)) / weights
        estimate.refine(V, tangent, scale / weights)
        V = estimate.leading(V)
    return V


def refined_subspace(
    ask: Any,
    moment: FloatArray,
    scale: float,
    V: FloatArray,
    shares: Sequence[float],
    noise: RowNoise,
    level: float = TANGENT_LEVEL,
    outside: FloatArray | None = None,
) -> FloatArray:
    """Return a subspace of a released moment after rounds of tangent refinement.

    The moment is that of the first columns. Of the others `outside` says how small their products
    with each column of V are expected to be, as precisions; the refinement reaches them too.
    """
    if outside is None:
        outside = np.zeros((0, V.shape[1]))
    values = np.sum(V * (moment @ V), axis=0)
    order = np.argsort(-values, kind="stable")
    edge = scale * math.sqrt(len(moment) / 2)
    weights = _column_weights(_shrunk(values[order], 2 * edge), edge)
    estimate = _Estimate(moment, scale, outside[:, order])
    V = np.vstack([V[:, order], np.zeros(outside.shape)])
    return _refine_rounds(ask, estimate, V, weights, shares, noise, level)


def gram_subspace(ask: Any, d: int, k: int, share: float, noise: RowNoise) -> FloatArray:
    """Return the leading k-dimensional subspace: clipped moment, then up to two tangent rounds.

    Between them the subspace of the moment is chosen by thinning, which costs nothing. How many
    rounds there are follows from released values, and all are paid.
    """
    first, rest = 0.6 * share, 0.4 * share
    block, scale = clipped_gram(ask, d, first if noise.psd else share, noise)
    values, V = top_eigenpairs(block, k)
    if noise.psd == 0.0:
        return V
    edge = scale * math.sqrt(d / 2)
    count = refining_rounds(values, edge, float(np.trace(block)), d)
    if not count:
        ask.forfeit(rest)  # decided on released values, so it is paid all the same
        return V
    rounds = [rest / count] * count
    found = chosen_subspace(block, scale, k)
    return refined_subspace(ask, found.moment, scale, found.vectors, rounds, noise)


def refining_rounds(values: FloatArray, edge: float, trace: float, d: int) -> int:
    """Return how many tangent rounds are worth their passes, by what they could mend.

    That is the share of the squares that noise of edge sigma sqrt(d) turns out of the leading
    subspace: to first order the square of each rotation is sigma^2 d / gap^2, and costs a gap; the
    gap is taken to the mean of the eigenvalues outside, from released values.
    """
    k = len(values)
    outside = max(trace - float(values.sum()), 0.0) / max(d - k, 1)
    gaps = np.maximum(values - outside, 1e-9 * edge)
    loss = float(np.sum(edge**2 / gaps)) / max(trace, 1e-300)
    return 0 if loss < _NEGLIGIBLE_LOSS else 1 if loss < _ONE_ROUND else 2


def _shrunk(values: FloatArray, edge: float) -> FloatArray:
    """Eigenvalues without the push of symmetric noise of a given spectral edge."""
    return np.asarray(np.sqrt(np.maximum(values**2 - edge**2, 0.0)) * (values > 0))


def power_subspace(
    ask: Any,
    start: FloatArray,
    k: int,
    shares: Sequence[float],
    noise: RowNoise,
) -> FloatArray:
    """Return the leading k-dimensional subspace by power steps from a public start.

    Each step releases core (divided by 3) and tangent part together; the last step stacks the last
    two products, each divided by its noise scale, and takes their leading left singular vectors.
    """
    V = orthonormal(start)
    products: list[FloatArray] = []
    for i, share in enumerate(shares):
        released, scale, _ = _tangent_product(ask, V, share, noise, TANGENT_LEVEL, scale=CORE_SCALE)
        core = CORE_SCALE * (V.T @ released)
        tangent = released - V @ (V.T @ released)
        values, Q = np.linalg.eigh((core + core.T) / 2)
        # Below the noise a direction keeps a weight, so that the product keeps its rank.
        product = (V @ Q) * np.maximum(values, scale) + tangent @ Q
        products.append(product / max(scale, _TINY) if scale else product)
        last = i >= len(shares) - 2
        stacked = products[-2:] if i == len(shares) - 1 and scale else products[-1:]
        left = np.linalg.svd(np.hstack(stacked), full_matrices=False)[0]
        V = left[:, : k if last else start.shape[1]]
    return V

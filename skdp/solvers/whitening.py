"""What a trace regression learns before it descends: whitening, means of rows and columns."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from skdp._limits import NEGLIGIBLE, FloatArray
from skdp.answer import Answer
from skdp.solvers.columns import FAR, Center, find_columns
from skdp.solvers.linalg import signal_share, with_signs
from skdp.solvers.trace import FINER, RECENTRINGS, TraceFit, private_median

# Whitening of measurement matrices from released second moments.
#
# Notation: X = R0^(1/2) G C0^(1/2) with G of iid entries; the sums of X X' and X'X over n records
# are about n tr(C0) R0 and n tr(R0) C0. W1 X W2 has entries of variance `lam`.


_BELOW_ONE = 1 - 1e-6  # norm of a mix: its grid adds less
# Directions of a smaller part of the mean variance are not scaled up to it: of released moments,
# and of public ones.
_LEAST, _LEAST_PUBLIC = 0.02, 0.15
_CUT = 2.0  # medians, or deviations, at which what a record adds is cut


class Whitening(NamedTuple):
    """Public symmetric W1, W2 of norm 1 (None: identity), and the variance of W1 X W2.

    Diagonal ones are vectors, because squares would need too much memory.

    Or a public `mix` A, `lam` times the inverse of the covariance L of vec(X), but for its
    smallest eigenvalues: E <x, H> A x = lam H for H in the directions of the others. Then
    `variance` is that of an entry of A x. `variance_ratio` is its square times the mean variance of
    an entry of x, over lam^2: 1 if L is a multiple of the identity.
    """

    left: FloatArray | None
    right: FloatArray | None
    lam: float
    mix: FloatArray | None = None
    variance: float | None = None
    variance_ratio: float = 1.0


def _whitener(moment: FloatArray, noise: float, mean: float) -> tuple[FloatArray, float]:
    """Return W of norm 1 and the smallest eigenvalue: of a noisy moment, drawn to its mean.

    (G + G')/2 with scale s has mean squared size s^2 d (d + 1)/2 and spectral edge s sqrt(2 d). Of
    a diagonal moment, a vector, W is one too.
    """
    d, diagonal = len(moment), moment.ndim == 1
    middle = np.full(d, mean) if diagonal else mean * np.eye(d)
    centred = (moment + moment.T) / 2 - middle
    size, edge = (d, noise) if diagonal else (d * (d + 1) / 2, noise * math.sqrt(2 * d))
    signal = signal_share(float(np.sum(centred**2)), noise**2 * size)
    drawn = middle + signal * centred
    values, P = (drawn, None) if diagonal else np.linalg.eigh(drawn)
    least = (_LEAST if noise else _LEAST_PUBLIC) * mean
    values = np.maximum(values, min(max(least, signal * edge), mean))
    roots = np.sqrt(values.min() / values)
    return roots if P is None else (P * roots) @ P.T, float(values.min())


def whitening(
    moments: FloatArray, shape: tuple[int, int], n: float, noise: float
) -> Whitening | None:
    """Return the whitening for sums of X X' and X'X or their diagonals; None if all is noise."""
    d1, d2 = shape
    diagonal = len(moments) == d1 + d2
    parts = [moments[:d1], moments[d1:]]
    if not diagonal:
        parts = [moments[: d1 * d1].reshape(d1, d1), moments[d1 * d1 :].reshape(d2, d2)]
    trace = float(sum(part.sum() if diagonal else np.trace(part) for part in parts)) / 2
    if trace <= 2 * noise * math.sqrt((d1 + d2) / 4):
        return None
    (left, r), (right, c) = (_whitener(part, noise, trace / len(part)) for part in parts)
    return Whitening(left, right, r * c / (trace * n))


def mixing(covariance: FloatArray) -> Whitening:
    """Return the mix for a public covariance of vec(X).

    Directions of small variance are enlarged to `_LEAST_PUBLIC` of the mean only: else they would
    hold most of the norm of a record, and hardly any of what targets show.
    """
    values, vectors = np.linalg.eigh(covariance)
    varying = np.maximum(values, _LEAST_PUBLIC * np.mean(values))
    lam = float(varying[0]) * _BELOW_ONE
    mix = (vectors * (lam / varying)) @ vectors.T
    variance = lam * lam * float(np.mean(values / varying**2))
    ratio = variance * float(np.mean(values)) / lam**2
    return Whitening(None, None, lam, (mix + mix.T) / 2, variance, ratio)


def through_design(ask: Any, design: Whitening) -> Any:
    """Return the queries of records after the whitening."""
    if design.mix is not None:
        return ask.mixed(design.mix)
    return ask if design.left is None else ask.whitened(design.left, design.right)


class Place(NamedTuple):
    """Location of records, units of rows and columns, and the norm in these (0: not known)."""

    at: FloatArray
    units: tuple[FloatArray, FloatArray]
    radius: float


def unit_pair(squares: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return units of rows and columns in which mean squares (d1, d2) have equal sums by both.

    A matrix of low rank is one in such units, too. Units that are not clearly other ones stay 1.
    """
    right = np.ones(squares.shape[1])
    for _ in range(50):  # far more than it takes to balance both
        left = 1 / (squares @ right)
        right = 1 / (left @ squares)
    left, right = (np.sqrt(np.median(side) / side) for side in (left, right))
    left, right = (np.where(np.abs(np.log(u)) > math.log(FAR), u, 1.0) for u in (left, right))
    return left, right


def release_place(
    ask: Any, place: Place, n: float, rank_share: float, shares: dict[str, float],
    factored: bool, centered: bool,
) -> Place:  # fmt: skip
    """Release the location of records, and their units: medians of entries, then clipped means.

    A median is used only if it is farther from 0 than the entries are from it. The noise of a mean
    is proportional to the distance of the records from the place before, so each mean comes nearer,
    until that distance is the spread of the records. It is shrunk to the place before as its noise
    demands. Without `centered`, records lie about 0.
    """
    at, units, radius = place
    shape = len(units[0]), len(units[1])
    d = sum(shape) if factored else math.prod(shape)
    if shares["units"]:
        found = find_columns(ask.entries(), d, shares["units"], n, centered=centered)
        if np.mean(found.found) > 0.5:  # if few scales are found, those are chance
            sizes = np.where(found.found, found.deviation, np.median(found.deviation))
            sides = np.outer(*np.split(sizes, [shape[0]])) if factored else sizes.reshape(shape)
            units = unit_pair(np.maximum(sides / sides.max(), 1e-100) ** 2)
        away = (found.found | found.center_found) & (np.abs(found.center) > found.deviation)
        at = np.where(away, found.center, 0.0) if centered else at
    whole = np.outer(*units).ravel()
    first = 0.0
    between: tuple[float, ...] = ()
    for _ in range(RECENTRINGS * centered):
        records = ask.about(at, units).records()
        radius = private_median(records.scores_below, rank_share, n, between)
        answer = records.total(radius, share=shares["mean"] / RECENTRINGS)
        signal = signal_share(float(np.sum(answer.value**2)), d * answer.noise_scale**2)
        at = at + signal * answer.value / n * whole
        least = 2.0 ** (1 - 2**FINER) * radius  # from here on ranks tell it to a factor of two
        between = min(max(math.sqrt(d) * answer.noise_scale / n, least), radius), _CUT * radius
        first = first or radius
    # Half of the records lie nearer to 0 than the median of those that are not 0, which the ranks
    # tell to a factor: most are 0.
    farthest = (_CUT * radius + float(np.linalg.norm(at / whole))) * 2.0 ** (2 / 2**FINER)
    return Place(at, units, first if farthest < first else radius)


def release_whitening(
    ask: Any, shape: tuple[int, int], n: float, rank_share: float, share: float, radius: float
) -> Whitening | None:
    """Learn the design: a private median of the sizes, and one release of both moments.

    `radius` is the median of ||X||; ||X X'|| lies between ||X||^2 / sqrt(d) and ||X||^2.
    """
    between = (radius**2 / (_CUT * math.sqrt(min(shape))), _CUT * radius**2) if radius else ()
    median = private_median(ask.moment_sizes_below, rank_share, n, between)
    answer = ask.measurement_covariance_moments(_CUT * median, share=share)
    return whitening(answer.value, shape, n, answer.noise_scale)


def _times(W: FloatArray | None, basis: FloatArray) -> FloatArray:
    return basis if W is None else W @ basis if W.ndim == 2 else W[:, None] * basis


def trace_attributes(
    fit: TraceFit,
    sides: tuple[FloatArray | None, FloatArray | None],
    units: tuple[FloatArray, FloatArray],
    means: tuple[FloatArray, FloatArray] | None,
) -> dict[str, FloatArray | float | tuple[float, ...]]:
    """Return the fitted attributes for M = W1 (U s V') W2, over units, + a 1' + 1 b'."""
    A, B = (
        _times(W, basis) / unit[:, None]
        for W, basis, unit in zip(sides, (fit.U * fit.values, fit.V), units, strict=True)
    )
    if means is not None:
        ones = np.ones(len(means[0])), np.ones(len(means[1]))
        A = np.column_stack([A, means[0], ones[0]])
        B = np.column_stack([B, ones[1], means[1]])
    Q1, R1 = np.linalg.qr(A)
    Q2, R2 = np.linalg.qr(B)
    P, values, Qt = np.linalg.svd(R1 @ R2.T, full_matrices=False)
    U, components = with_signs(Q1 @ P, Q2 @ Qt.T)
    return {
        "coef_": (U * values) @ components,
        "left_singular_vectors_": U,
        "singular_values_": values,
        "right_singular_vectors_": components.T,
        "residual_std_": fit.noise_sd,
        "gradient_clip_norms_": fit.clip_levels,
    }


# Means of the rows and columns of a matrix of coefficients, from released sums; all of it is free.
#
# Notation: y = centre + <X, a 1' + 1 b'> + the rest, for CSR records X: ratings of products
# (columns) by people (rows), one entry each. Residuals are what the means so far leave of y. The
# sum of residuals times entries in column j is about w_j times the error of b_j so far, w_j the sum
# of squares of these entries. Each mean is shrunk to 0 as its noise demands: means are taken as
# N(0, t), and each t of a grid counts by its likelihood.


_VARIANCES = np.append(0.0, np.geomspace(1e-4, 0.5, 31))  # of means, in that of targets
_PARTS = np.linspace(0.0, 1.0, 11)  # of a share, for the columns


def energies(design: Whitening, shape: tuple[int, int], n: float) -> tuple[FloatArray, FloatArray]:
    """Return sums of squares of the entries of rows and columns over n records of a design."""
    rows, columns = (
        np.ones(d) if W is None else W**-2.0 for W, d in zip(design[:2], shape, strict=True)
    )
    whole = n * design.lam
    return whole * rows * columns.sum(), whole * columns * rows.sum()


class _Side:
    """Means of rows, or of columns, and the released sums that they follow from."""

    def __init__(self, weights: FloatArray) -> None:
        self.weights = weights
        self.means = np.zeros(len(weights))
        self.released: list[tuple[FloatArray, FloatArray, float]] = []  # next to which, sums, noise
        self.chances = np.full(len(_VARIANCES), 1 / len(_VARIANCES))
        self.n_free = 0.0  # means, each as far as it follows what was released

    @property
    def precision(self) -> float:
        """One over the squared noise of all sums together."""
        return math.fsum(noise**-2.0 for _, _, noise in self.released)

    def add(self, answer: Answer, sd: float) -> None:
        """Add released sums of residuals from the means so far, and estimate the means anew."""
        noise = max(answer.noise_scale, 1e-9 * sd * math.sqrt(float(self.weights.mean())))
        self.released.append((self.means, answer.value, noise))
        w, variance = self.weights, 1 / self.precision
        whole = variance * np.sum([(w * b + g) / s**2 for b, g, s in self.released], axis=0)
        t = _VARIANCES[:, None] * sd**2
        spread = w**2 * t + variance + sd**2 * w
        likelihood = -0.5 * np.sum(whole**2 / spread + np.log(spread), axis=1)
        chances = np.exp(likelihood - likelihood.max())
        self.chances = chances / chances.sum()
        drawn = w * (self.chances @ (t / spread)) * (self.chances[0] < 0.5)
        self.means, self.n_free = whole * drawn, float(w @ drawn)

    def explained(self) -> float:
        """Return the sum of squares of <X, M> over records, M these means."""
        return float(self.means @ (self.weights * self.means))

    def left(self, noise: float, sd: float) -> float:
        """Return the sum of squares that these means will miss, after sums with more noise."""
        w, t = self.weights, _VARIANCES[:, None] * sd**2
        precision = self.precision + (noise**-2.0 if math.isfinite(noise) else 0.0)
        rest = sd**2 * w + (1 / precision if precision else math.inf)
        return float(self.chances @ np.sum(w * t / (1 + w**2 * t / rest), axis=1))


class Means:
    """Means of rows and columns as they become known, release by release.

    Parameters
    ----------
    rows, columns : array of shape (d1,), (d2,)
        Sums of squares of the entries of each row and column over records, released or public.
    n : float
        Number of records, public or released.
    centre : Center
        Where targets lie, and how far they vary about there.
    unit_noise : float
        Noise scale of a sum clipped at 1 that has the whole budget.
    """

    def __init__(
        self, rows: FloatArray, columns: FloatArray, n: float, centre: Center, unit_noise: float
    ) -> None:
        self.n, self.centre, self.unit_noise = n, centre, unit_noise
        self.rows, self.columns = _Side(rows), _Side(columns)
        self.length = math.sqrt(float(columns.sum()) / n)  # of records

    @property
    def found(self) -> tuple[FloatArray, FloatArray] | None:
        """The means of the rows and of the columns; None if none differs from 0."""
        both = self.rows.means, self.columns.means
        return both if any(means.any() for means in both) else None

    def residuals(self, ask: Any) -> Any:
        """Return the query over records whose targets have the means subtracted."""
        return ask.about_means(*self.found) if self.found else ask

    @property
    def n_free(self) -> float:
        """Effective number of free means: each counts by how far it follows what was released."""
        return self.rows.n_free + self.columns.n_free

    @property
    def sd(self) -> float:
        """About the standard deviation of the targets about the means."""
        square = self.centre.sd**2
        seen = (self.rows.explained() + self.columns.explained()) / self.n
        return math.sqrt(max(square - seen, NEGLIGIBLE * square))

    def release(self, ask: Any, share: float) -> None:
        """Release sums of columns and of rows, and divide the share for the least expected loss."""
        part = min(_PARTS, key=lambda part: self._left(part, share))
        for side, of_share in 2 * ((self.columns, part / 2), (self.rows, (1 - part) / 2)):
            if of_share > 0:
                known = ask.about_means(self.rows.means, self.columns.means)
                entries = known.single_entries(side is self.columns)
                sums, sd = entries.augmented(self.centre.value, 0.0).products(), self.sd
                side.add(sums.total(_CUT * sd * self.length, share=of_share * share), sd)

    def _left(self, part: float, share: float) -> float:
        sd, left = self.sd, 0.0
        noise = _CUT * sd * self.length * max(self.unit_noise, 1e-12)  # at the whole budget
        for side, of_share in ((self.columns, part), (self.rows, 1 - part)):
            left += side.left(noise / math.sqrt(of_share * share) if of_share else math.inf, sd)
        return left

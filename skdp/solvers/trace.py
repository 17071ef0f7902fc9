"""Low-rank matrix regression from clipped, noisy gradients on the tangent space.

Notation: y_i = <X_i, M> + noise with M of size d1 x d2 and rank r; entries of X_i have variance
lam (after whitening); q = r (d1 + d2 - r) is the dimension of the tangent space; n the released or
public number of records; z the median of |N(0, 1)|. A contribution is clipped at C = c times the
median norm. Clipping at c multiplies a Gaussian gradient by b = P(|g| <= z c) on average and keeps
its direction. So the sum is divided by b, and a low clip norm costs little and needs little noise,
unless targets are skewed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, Self

import numpy as np
from scipy.special import ndtr, ndtri

from skdp._limits import CLEAR, FloatArray
from skdp.answer import Answer
from skdp.solvers.linalg import largest_of_noise, shrink
from skdp.solvers.median_search import QUESTIONS, find_between, find_scale

_Z = float(ndtri(0.75))
FINER = 3  # rank queries that find a median between two public numbers
RECENTRINGS = 3  # clipped means about released medians that tell where records lie
_EXPECTED = (1 / 3, 3.0)  # range of a median, relative to that of the targets or of the last step
_MULTIPLIERS = (0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)


class AsksSum(Protocol):
    """Clipped contributions: the rank of a clip level, and the total."""

    def scores_below(self, threshold: float, *, share: float) -> Answer:
        """Return a negative number when the threshold is below the median norm."""

    def total(self, clip_level: float, *, share: float) -> Answer:
        """Return the sum of contributions clipped at `clip_level`."""


class AsksTrace(Protocol):
    """The queries that the descent makes."""

    def products(self) -> AsksSum:
        """Return the contributions y X."""

    def tangent(
        self, U: FloatArray, S: FloatArray, V: FloatArray, intercept: float = 0.0
    ) -> AsksSum:
        """Return the contributions of the gradient at U S V'."""


class TraceFacts(NamedTuple):
    """Public numbers of a fit.

    Attributes
    ----------
    shape, rank : tuple of int, int
        Shape of M and its rank.
    n : float
        Number of records, public or released.
    lam : float
        Variance of an entry of a (whitened) record.
    unit_noise : float
        Noise scale of a sum clipped at 1 that has the whole budget: k / mu.
    init, gradients, rank_share : float
        Shares of the budget: of the first release, of all steps, of one rank.
    max_iter : int
        Gradient steps.
    clip_level : float or None
        Multiplier c of the median; None: see `clip_multiplier`.
    variance : float or None
        Variance of an entry of what a record contributes; None: `lam`.
    target_sd : float
        About how far targets vary; 0 where it is not known.
    variance_ratio : float
        How much more contributions vary than those of records with equal variances.
    bias : float
        The constant that joins each record, for an intercept.
    useful : float
        Number of records from which the error is expected to be below one half.
    shrink : bool
        Whether singular values are shrunk by the noise (post-processing).
    """

    shape: tuple[int, int]
    rank: int
    n: float
    lam: float
    unit_noise: float
    init: float
    gradients: float
    rank_share: float
    max_iter: int = 8
    clip_level: float | None = None
    bias: float = 0.0
    useful: float = 0.0
    shrink: bool = True
    variance: float | None = None
    variance_ratio: float = 1.0
    target_sd: float = 0.0

    @property
    def steps_share(self) -> float:
        """Budget fraction of the gradient steps, or of the first release if there are none."""
        return self.gradients if self.max_iter else self.init

    def with_more(self, share: float) -> Self:
        """Return these facts with `share` more, or less, of the budget for `steps_share`."""
        if self.max_iter:
            return self._replace(gradients=self.gradients + share)
        return self._replace(init=self.init + share)

    @property
    def information(self) -> float:
        """Fisher information of a record about an entry of M, for noise of variance 1 in y."""
        return self.lam if self.variance is None else self.lam**2 / self.variance

    @property
    def tangent_size(self) -> int:
        """Dimension of the tangent space."""
        return self.rank * (sum(self.shape) - self.rank)

    def length(self, size: int) -> float:
        """Return the median norm of contributions of `size` numbers and residuals of sd 1."""
        variance = self.lam if self.variance is None else self.variance
        return _Z * math.sqrt(variance * size + self.bias**2)


class TraceFit(NamedTuple):
    """A public estimate U diag(values) V', or the reason why it is zero."""

    U: FloatArray
    values: FloatArray
    V: FloatArray
    intercept: float
    clip_levels: tuple[float, ...]
    noise_sd: float
    zero_because: str = ""
    target_sd: float = 0.0  # as the first median says


# -- pieces -------------------------------------------------------------------------------


def bussgang(c: float) -> float:
    """Return b = P(|g| <= z c) for a Gaussian g: what clipping leaves of a gradient."""
    return float(2 * ndtr(_Z * c) - 1)


def _clipped_variance(c: float) -> float:
    """Return E min(g^2, t^2), t = z c, for a Gaussian g."""
    if math.isinf(c):
        return 1.0
    t, b = _Z * c, bussgang(c)
    return float(b - 2 * t * math.exp(-t * t / 2) / math.sqrt(2 * math.pi) + t * t * (1 - b))


def clip_multiplier(facts: TraceFacts, size: int, share: float, rare: float = 0.0) -> float:
    """Return the multiplier of least error: sampling of `size` numbers plus noise on them.

    That is for normal residuals. A median does not see rare targets, and residuals clipped at it
    lead to the median of the targets. So the clip norm is at least that of residuals with four
    times `rare` deviations, or the one at which noise adds a 500th of the variance of these.
    """
    if facts.clip_level is not None:
        return facts.clip_level

    def error(c: float) -> float:
        b = bussgang(c)
        sampling = _clipped_variance(c) / b**2 * size / facts.n
        noise = facts.unit_noise * _Z * c / b * size / facts.n
        return sampling + noise**2 / share

    noise = facts.unit_noise * _Z * size / (facts.n * math.sqrt(share))  # of c = 1, in deviations
    return max(min(_MULTIPLIERS, key=error), min(4.0, math.sqrt(0.002) / max(noise, 1e-9)) * rare)


def _median_uncertainty() -> float:
    """Return the uncertainty of a searched median, as a factor; a larger growth is significant."""
    return float((_EXPECTED[1] / _EXPECTED[0]) ** 2.0**-FINER)


def retract(
    U: FloatArray, S: FloatArray, V: FloatArray, right: FloatArray, left: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the best rank-r (U, s, V) of U S V' + right V' + U left, through a 2r x 2r SVD."""
    r = U.shape[1]
    left = left - left @ V @ V.T
    Q1, R1 = np.linalg.qr(np.hstack([U, right]))
    Q2, R2 = np.linalg.qr(np.hstack([V, left.T]))
    core = np.zeros((2 * r, 2 * r))
    core[:r, :r] = S
    core[:r, r:] = core[r:, :r] = np.eye(r)
    P, values, Qt = np.linalg.svd(R1 @ core @ R2.T)
    return Q1 @ P[:, :r], values[:r], Q2 @ Qt[:r].T


class NoSignalError(Exception):
    """The noise of a rank hides the median."""


def median_steps(max_iter: int, *, centered: bool, searches_covariance: bool) -> int:
    """Return how many ranks all searches of a fit ask for; each gets the same share.

    With `centered`, records are centred about a released mean, and the scale of targets is known.
    """
    wide = searches_covariance + (not centered)  # searches for medians that may lie anywhere
    near = centered + (max_iter + 1 if max_iter else 0)
    near += RECENTRINGS * (searches_covariance and centered)
    return wide * (QUESTIONS + FINER) + FINER * near


def private_median(
    below: Callable[..., Answer], rank_share: float, n: float, between: Sequence[float]
) -> float:
    """Return about the median; the number of rank queries does not depend on the data.

    `between` are two public numbers that the median is expected between, or none: it may lie
    anywhere.
    """

    def rank(threshold: float, *, share: float) -> Answer:
        answer = below(threshold, share=share)
        if CLEAR * answer.noise_scale > n / 2:
            raise NoSignalError
        return answer

    if not between:
        scale = find_scale(rank, QUESTIONS * rank_share).value
        between = scale / 2, scale * 2
    return find_between(rank, between, FINER, FINER * rank_share)


# -- the descent --------------------------------------------------------------------------


class Point(NamedTuple):
    """A public estimate U diag(values) V' and an intercept.

    `start_noise_fraction` is the fraction of the noise of the initial estimate that is still in it.
    """

    U: FloatArray
    values: FloatArray
    V: FloatArray
    intercept: float
    start_noise_fraction: float = 1.0

    @property
    def factors(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """U, the core and V."""
        return self.U, np.diag(self.values), self.V

    def matrix(self) -> FloatArray:
        """Return the estimate."""
        return np.asarray((self.U * self.values) @ self.V.T)


class _Descent:
    """The state of one descent; all of it is public."""

    def __init__(self, ask: AsksTrace, facts: TraceFacts) -> None:
        self.ask = ask
        self.facts = facts
        self.levels: list[float] = []
        self.points: list[Point] = []
        self.sds: list[float] = []
        self.variances: list[float] = []
        self.first_sd = self.median = math.inf
        self.pace = 1.0
        self.sampling = self.start_noise = 0.0

    def start(self) -> None:
        """Compute the initial estimate: the shrunk truncated SVD of the clipped sum of y X."""
        facts, (d1, d2) = self.facts, self.facts.shape
        size, bias = d1 * d2, facts.bias
        products = self.ask.products()
        between = [end * facts.target_sd * facts.length(size) for end in _EXPECTED]
        median = private_median(
            products.scores_below, facts.rank_share, facts.n, between if facts.target_sd else ()
        )
        self.first_sd = median / facts.length(size)
        unseen = facts.target_sd**2 - (_median_uncertainty() * self.first_sd) ** 2
        self.rare_sd = math.sqrt(max(unseen, 0.0))
        c = clip_multiplier(facts, size, facts.init, self.rare_sd / self.first_sd)
        answer = products.total(c * median, share=facts.init)
        b = bussgang(c)
        self.levels.append(c * median)
        scale = 1 / (b * facts.lam * facts.n)
        full = answer.value[:size].reshape(d1, d2) * scale
        noise = math.hypot(
            answer.noise_scale * scale, 1.1 * self.first_sd / math.sqrt(facts.information * facts.n)
        )
        intercept = float(answer.value[-1]) / (b * bias**2 * facts.n) if bias else 0.0
        U, values, V = _truncated_svd(full, facts.rank)
        # Matrices of blocks, as those of nested factors, start at a saddle: records of most blocks
        # have no tangent part there. Noise leads away from it. If there is little noise, numbers
        # that are independent of the records replace it, half as large as the estimate.
        least = float(values[-1]) / (2 * (math.sqrt(d1) + math.sqrt(d2)))
        if facts.max_iter and least > noise:
            other = math.sqrt(2) * np.sin(np.arange(1.0, size + 1) ** 2).reshape(d1, d2)
            full, noise = full + math.sqrt(least**2 - noise**2) * other, least
            U, values, V = _truncated_svd(full, facts.rank)
        self.start_noise = noise
        self.point = Point(U, shrink(values, noise, facts.shape), V, intercept)
        # The initial estimate counts as a step from zero: it is undone if residuals grow.
        self.last = Point(U, np.zeros(facts.rank), V, 0.0, 0.0)
        self.median = self.first_sd * facts.length(facts.tangent_size)

    def release_median(self, index: int) -> None:
        """Release the median norm of contributions at this point; undo the step if it grew much.

        After that the pace is halved.
        """
        facts = self.facts
        self.tangent = self.ask.tangent(*self.point.factors, self.point.intercept)
        between = [end * self.median for end in _EXPECTED]
        found = private_median(self.tangent.scores_below, facts.rank_share, facts.n, between)
        self.sds.append(found / facts.length(facts.tangent_size))
        if found * _median_uncertainty() > between[1]:  # maybe out of range
            self.point, self.pace = self.last, self.pace / 2
            self.variances[-1:] = [math.inf] * bool(index)
            self.tangent = self.ask.tangent(*self.point.factors, self.point.intercept)
        else:
            self.median, self.last = found, self.point

    def step(self, index: int) -> None:
        """Make one clipped gradient step and retract the result to rank r."""
        before = self.last
        self.release_median(index)
        facts, point = self.facts, self.point
        q = facts.tangent_size
        rare = self.rare_sd * facts.length(q) / self.median
        c = clip_multiplier(facts, q, facts.gradients, rare)
        self.levels.append(c * self.median)
        answer = self.tangent.total(self.levels[-1], share=facts.gradients / facts.max_iter)
        move = self._move(answer.value, answer.noise_scale, c)
        if before is not self.last:
            self._adapt_pace(before, move)
        move = self.pace * move
        # Smaller steps add less noise each, but the points are more correlated: their mean is as
        # noisy as with full steps.
        r, (d1, d2) = facts.rank, facts.shape
        right, left, _ = np.split(move, [r * d1, r * (d1 + d2)])
        intercept = point.intercept + (float(move[-1]) if facts.bias else 0.0)
        moved = retract(*point.factors, right.reshape(d1, r), left.reshape(r, d2))
        self.point = Point(*moved, intercept, (1 - self.pace) * point.start_noise_fraction)
        self.points.append(self.point)

    def _adapt_pace(self, before: Point, move: FloatArray) -> None:
        """Change the pace if the last step was more than twice, or less than half, the best one."""
        point, D = self.point, self.point.matrix() - before.matrix()
        left = point.U.T @ D
        led = np.append(D @ point.V, left - left @ point.V @ point.V.T)
        size, onward = float(np.linalg.norm(led)), float(move[: led.size] @ led)
        if abs(onward) > CLEAR * math.sqrt(self.variances[-1]) * size:  # significant
            length = 1 - self.pace * (onward / size / size)
            self.pace = min(1.0, self.pace / (1.0 if 0.5 < length < 2 else max(length, 0.5)))

    def _move(self, gradient: FloatArray, noise: float, c: float) -> FloatArray:
        """Return the step for a noisy gradient; store its variance due to noise and to sampling."""
        facts, q, b = self.facts, self.facts.tangent_size, bussgang(c)
        sd = self.median / facts.length(q)
        rate = -1 / (1 + 2 * q * facts.variance_ratio / facts.n) / (b * facts.lam * facts.n)
        self.variances.append((noise * rate) ** 2)
        self.sampling = sd * math.sqrt(_clipped_variance(c) / (facts.information * facts.n)) / b
        return np.asarray(rate * gradient)

    def finish(self) -> None:
        """Average the points with the smallest residuals and shrink the singular values."""
        facts = self.facts
        if not self.points:
            return
        self.release_median(facts.max_iter)
        sds = np.array(self.sds[1:])
        # Residuals within this factor of the smallest ones differ only by the noise of the search.
        kept = (sds <= _median_uncertainty() * min(self.sds)) & np.isfinite(self.variances)
        if not kept.any():  # all steps were undone
            return
        weights = np.where(kept, 1 / np.maximum(np.array(self.variances), 1e-300), 0.0)
        variance = 1 / float(weights.sum())
        weights = weights * variance
        mean = np.tensordot(weights, np.stack([point.matrix() for point in self.points]), 1)
        U, values, V = _truncated_svd(mean, facts.rank)
        if facts.shrink:
            start = float(weights @ np.array([point.start_noise_fraction for point in self.points]))
            # Fitted residuals underestimate the noise of y: n - q degrees of freedom for n records.
            free = max(1 - facts.tangent_size / facts.n, 1e-9)
            variance += self.sampling**2 / free + (start * self.start_noise) ** 2
            noise = math.sqrt(variance)
            values = shrink(values, largest_of_noise(facts.shape) * noise, facts.shape)
        intercept = float(weights @ [point.intercept for point in self.points])
        self.point = Point(U, values, V, intercept)

    def result(self, reason: str = "") -> TraceFit:
        levels, sds = tuple(self.levels), np.array([self.first_sd, *self.sds])
        # The search rounds the same median up or down, by where it starts from.
        sd = float(sds[sds <= _median_uncertainty() * sds.min()].mean())
        if reason:
            zero = zero_fit(self.facts.shape, self.facts.rank, reason)
            return zero._replace(clip_levels=levels, noise_sd=sd)
        return TraceFit(*self.point[:4], levels, sd, target_sd=self.first_sd)


def _truncated_svd(M: FloatArray, rank: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    U, values, Vt = np.linalg.svd(M, full_matrices=False)
    return U[:, :rank], values[:rank], Vt[:rank].T


def zero_fit(shape: tuple[int, int], rank: int, reason: str) -> TraceFit:
    """Return the zero matrix and the reason for it."""
    U, V = np.eye(shape[0], rank), np.eye(shape[1], rank)
    return TraceFit(U, np.zeros(rank), V, 0.0, (), math.inf, reason)


def fit_trace(ask: AsksTrace, facts: TraceFacts) -> TraceFit:
    """Return the estimate, from an initial release and `max_iter` gradient releases."""
    run = _Descent(ask, facts)
    try:
        run.start()
        for index in range(facts.max_iter):
            run.step(index)
        run.finish()
    except NoSignalError:
        return run.result("the noise hides the median norm of the gradients")
    if not run.point.values.any():
        return run.result("no singular value exceeds the noise level")
    return run.result()

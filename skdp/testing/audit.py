"""Audit of a fit by its transcript: everything that became public, beside what it was exactly.

Three tools, sharpest first. `transcript_audit` compares, for one pair of neighbours, the exact
change of every release with the noise it was given: no sampling, one fit. `check_calibration`
tests that the noise has the scale, shape and independence that the receipt claims: one or a few
fits. `audit` repeats fits and bounds the privacy parameter from below with confidence.

Audits that look at the final output alone are nearly blind: with the noise of a block power method
divided by sqrt(2), or by 2, a test on the final subspace saw nothing in a thousand runs. Read the
transcript: it is what the accountant composes over.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from skdp.testing._calibration import (
    Fit,
    as_fit,
)
from skdp.testing._hooks import cached_accounting
from skdp.testing._statistics import distribution_free_mu, epsilon_lower_bound, gaussian_mu
from skdp.testing._transcripts import (
    Opening,
    Transcript,
    record_transcript,
    replay_answers,
)


@dataclass(frozen=True)
class AuditReport:
    """Lower bounds of the privacy parameter, from many runs.

    Attributes
    ----------
    claimed_mu : float
        Gaussian-DP parameter of the receipt (nan if not all losses are Gaussian).
    claimed_epsilon, delta : float
        Of the receipt.
    mu_hat : float
        Estimate.
    gaussian_bound : float
        Below the true mu with the given confidence, if the scores are Gaussian.
    distribution_free_bound : float
        Below the true mu with the given confidence, whatever the scores.
    epsilon_bound : float
        Below the true epsilon (at delta) with the given confidence, whatever the scores.
    n_runs : int
        Runs on each data set.
    confidence : float
        Of each bound.
    """

    claimed_mu: float
    claimed_epsilon: float
    delta: float
    mu_hat: float
    gaussian_bound: float
    distribution_free_bound: float
    epsilon_bound: float
    n_runs: int
    confidence: float

    @property
    def flagged(self) -> bool:
        """Whether a bound exceeds what is claimed."""
        over = self.epsilon_bound > self.claimed_epsilon
        if not math.isnan(self.claimed_mu):
            over |= max(self.gaussian_bound, self.distribution_free_bound) > self.claimed_mu
        return over

    def check(self) -> "AuditReport":
        """Raise AssertionError if flagged; else return self."""
        if self.flagged:
            raise AssertionError(f"the fit is less private than it claims: {self}")
        return self


def _score(first: Transcript, low: list[np.ndarray], high: list[np.ndarray]) -> float:
    """Log-likelihood ratio of the transcript (of the neighbour against the first data set)."""
    total = 0.0
    for opening, a, b in zip(first, low, high, strict=True):
        if opening.total is None or opening.step == 0.0:
            total += _choice_score(opening, a, b)
            continue
        public = np.asarray(opening.value) / opening.step
        scale = opening.noise_scale / opening.step
        if opening.loss and opening.loss.kind == "pure":
            width = scale / math.sqrt(2.0)
            total += float(np.sum(np.abs(public - a) - np.abs(public - b))) / width
        else:
            shift = (b - a) / scale
            total += float(np.sum(shift * ((public - (a + b) / 2) / scale)))
    return total


def _choice_score(opening: Opening, a, b) -> float:
    if opening.step == 0.0:
        return 0.0
    rate = opening.step / opening.noise_scale

    def log_probability(scores):
        weights = rate * (scores - scores.max())
        return weights[opening.value] - math.log(np.exp(weights).sum())

    return float(log_probability(b) - log_probability(a))


def _scores(run: Fit, data, other, n_runs: int, swap: bool, constant) -> list[float]:
    out = []
    for _ in range(n_runs):
        with record_transcript() as first:
            run(data)
        if constant is None:
            with replay_answers(first) as second:
                run(other)
            mine = [np.asarray(o.exact, np.float64) for o in first]
            theirs = [np.asarray(o.exact, np.float64) for o in second]
            low, high = (theirs, mine) if swap else (mine, theirs)
        else:
            low, high = constant
        out.append(_score(first, low, high))
    return out


def _constant_answers(run: Fit, pair):
    """Return the exact answers of both, if they depend on no released value (a one-shot fit)."""
    seen = []
    for _ in range(3):
        with record_transcript() as first:
            run(pair[0])
        with replay_answers(first) as second:
            run(pair[1])
        seen.append(([o.exact for o in first], [o.exact for o in second], len(first)))
    if any(n != 1 for _, _, n in seen):
        return None  # more than one release: the next run may go another way
    equal = all(np.array_equal(s[i][0], seen[0][i][0]) for s in seen for i in (0, 1))
    return ([seen[0][0][0].astype(float)], [seen[0][1][0].astype(float)]) if equal else None


def audit(
    fit, pair: tuple[Any, Any], n_runs: int = 500, *, confidence: float = 0.999
) -> AuditReport:
    """Bound the privacy parameter from below by repeated fits on two neighbouring data sets.

    The score of a run is the log-likelihood ratio of its whole transcript, with the neighbour
    evaluated at the answers of that run. Two bounds: `gaussian_bound` assumes Gaussian scores,
    `distribution_free_bound` (Clopper-Pearson at every threshold) assumes nothing.

    Power, at confidence .999 and claimed mu = 1: noise / sqrt(2) is found by the Gaussian bound in
    9 of 10 audits with 280 runs on each side (`runs_needed`), always with 500; the
    distribution-free bound needs 6 to 7 times more. Small mu is hard: .5 needs 900. The epsilon
    bound certifies log(n_runs / 4) at most: use it for pure mechanisms. Reused noise or a missing
    orthonormalisation may look *more* private here: run `check_calibration` and
    `check_sensitivity` too.

    Parameters
    ----------
    fit : estimator or callable
        As in `transcript_audit`; it must return the fitted estimator.
    pair : tuple
        Neighbours, see `worst_case_pair`.
    n_runs : int, default=500
        Runs on each of the two.
    confidence : float, default=0.999
        Of each bound.

    Returns
    -------
    report : AuditReport
        ``report.flagged`` is True with probability at most ``3 (1 - confidence)`` for a fit that
        is as private as it claims.
    """
    run, alpha = as_fit(fit), 1 - confidence
    spent = run(pair[0]).privacy_spent_
    constant = _constant_answers(run, pair)
    with cached_accounting():
        low = _scores(run, pair[0], pair[1], n_runs, False, constant)
        high = _scores(run, pair[1], pair[0], n_runs, True, constant)
    mu_hat, bound = gaussian_mu(low, high, alpha)
    return AuditReport(
        claimed_mu=math.nan if spent.mu is None else spent.mu,
        claimed_epsilon=spent.epsilon,
        delta=spent.delta,
        mu_hat=mu_hat,
        gaussian_bound=bound,
        distribution_free_bound=distribution_free_mu(low, high, alpha),
        epsilon_bound=epsilon_lower_bound(low, high, spent.delta, alpha),
        n_runs=n_runs,
        confidence=confidence,
    )

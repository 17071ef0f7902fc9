"""Audits of a fit by its transcript: all released values, together with the exact private ones.

`transcript_audit` compares, for one pair of neighbours, the exact change of every release with the
noise it was given: no sampling, one fit. `audit` repeats fits and bounds the privacy parameter
from below with confidence.

Audits that look at the final output alone are nearly blind: with the noise of a block power method
divided by sqrt(2), or by 2, a test on the final subspace saw nothing in a thousand runs. Read the
transcript: it is what the accountant composes over.
"""

import copy
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from scipy.special import betaincinv, ndtri
from sklearn import config_context

from skdp._limits import WIDER
from skdp._validation import check_count
from skdp.privacy.accounting.losses import SketchMixture
from skdp.testing._transcripts import (
    RecordedRelease,
    Transcript,
    change,
    fresh,
    merge_streams,
    record_transcript,
    replay_answers,
)


class FitData(NamedTuple):
    """What one call of ``fit`` gets.

    Attributes
    ----------
    X : array or sparse matrix
        The private matrix.
    y : array or None
        The target, if there is one.
    fit_params : mapping
        Further arguments of fit, for instance ``groups``.
    assume_finite : bool
        Fit under ``sklearn.config_context(assume_finite=True)``, so that NaN gets through.
    """

    X: Any
    y: Any = None
    fit_params: Mapping[str, Any] = MappingProxyType({})
    assume_finite: bool = False

    def fit(self, estimator):
        """Fit the estimator on this data and return it."""
        with config_context(assume_finite=self.assume_finite):
            return estimator.fit(self.X, self.y, **self.fit_params)


def gaussian_mu(low, high, alpha: float = 0.001) -> tuple[float, float]:
    """Return (mu_hat, G): G is below mu with probability 1 - alpha if the scores are Gaussian.

    `low` and `high` are scores of results on two neighbouring data sets, one for each run.
    mu_hat is the difference of means over the pooled standard deviation, and
    G = mu_hat - z_alpha sqrt(2/N + mu_hat^2/(4N)), the delta method. There is no absolute value: a
    negative mu_hat says nothing, and taking abs() would make a bound out of noise.
    """
    n = min(len(low), len(high))
    pooled = math.sqrt((np.var(low, ddof=1) + np.var(high, ddof=1)) / 2)
    gap = float(np.mean(high) - np.mean(low))
    if pooled == 0.0:
        return (math.inf, math.inf) if gap > 0 else (0.0, 0.0)
    mu = gap / pooled
    return mu, mu + float(ndtri(alpha)) * math.sqrt(2 / n + mu * mu / (4 * n))


def _upper_bounds(counts, n: int, alpha: float):
    """Clopper-Pearson: upper bounds of a probability, from counts out of n."""
    counts = np.asarray(counts, float)
    inside = counts < n
    bound = betaincinv(counts + 1, np.where(inside, n - counts, 1.0), 1 - alpha)
    return np.where(inside, bound, 1.0)


def _error_bounds(low, high, alpha: float):
    """Return upper bounds of (false positive, false negative) rates at every threshold at once.

    Between two order statistics the count is constant and the probability is at most its value at
    the next one, which has the Beta law that Clopper-Pearson inverts: with alpha / (2 (N + 1)) a
    count, all thresholds hold together, also those chosen after looking.
    """
    low, high = np.sort(low), np.sort(high)
    cuts = np.unique(np.concatenate([low, high]))
    false_positives = len(low) - np.searchsorted(low, cuts, side="right")
    false_negatives = np.searchsorted(high, cuts, side="right")
    fpr = _upper_bounds(false_positives, len(low), alpha / (2 * (len(low) + 1)))
    fnr = _upper_bounds(false_negatives, len(high), alpha / (2 * (len(high) + 1)))
    return fpr, fnr


def distribution_free_mu(low, high, alpha: float = 0.001) -> float:
    """Return B: below mu with probability 1 - alpha, for all distributions of the scores.

    `low` and `high` are as in `gaussian_mu`.
    mu-GDP says Phi^-1(1 - FPR) - Phi^-1(FNR) <= mu for every test; Clopper-Pearson bounds both
    error rates from above at every threshold.
    """
    fpr, fnr = _error_bounds(low, high, alpha)
    with np.errstate(invalid="ignore"):
        mu = -ndtri(fpr) - ndtri(fnr)
    return float(np.max(mu[np.isfinite(mu)], initial=-math.inf))


def epsilon_lower_bound(low, high, delta: float, alpha: float = 0.001) -> float:
    """Return a lower bound of epsilon at this delta, for all distributions of the scores.

    `low` and `high` are as in `gaussian_mu`.
    1 - FNR <= e^epsilon FPR + delta for every test. It certifies log(N/4) at most: useful for pure
    mechanisms, and weak for Gaussian ones.
    """
    fpr, fnr = _error_bounds(low, high, alpha)
    power = np.maximum(1 - fnr - delta, 0.0)
    with np.errstate(divide="ignore"):
        return float(np.max(np.log(power / fpr), initial=0.0))


def runs_needed(mu: float, excess: float, alpha: float = 0.001, power: float = 0.9) -> int:
    """Return the runs per data set that the Gaussian bound needs to see mu inflated by `excess`.

    N = (z_alpha + z_beta)^2 (2 + excess^2 mu^2 / 4) / ((excess - 1) mu)^2.

    Parameters
    ----------
    mu : float
        Claimed Gaussian-DP parameter.
    excess : float
        Factor by which the true parameter is larger; sqrt(2) for half the noise variance.
    alpha, power : float, default=0.001, 0.9
        Chance of a false alarm, and of seeing the fault.

    Returns
    -------
    int

    Examples
    --------
    >>> runs_needed(1.0, 2**0.5)
    279
    """
    z = -float(ndtri(alpha)) + float(ndtri(power))
    return math.ceil(z * z * (2 + (excess * mu) ** 2 / 4) / ((excess - 1) * mu) ** 2)


Fit = Callable[[Any], Any]


def as_fit(fit) -> Fit:
    """Return a function of the data: an estimator is cloned and fitted, a function is itself."""
    if not hasattr(fit, "get_params"):
        return fit

    template = fresh(fit)

    def run(data):
        data = data if isinstance(data, FitData) else FitData(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `check_null_release` tests that warnings are public
            return data.fit(copy.copy(template))  # a clone takes as long as a small fit

    return run


# Audit of one pair of neighbours: the change of every release next to the noise it was given.


@dataclass(frozen=True)
class StepAudit:
    """One release of an audited fit.

    Attributes
    ----------
    name : str
        Name of the release.
    kind : str
        Kind of the loss: "gaussian" (mu), "pure" (epsilon), "range" (eta), or "sketch" (mu, which
        is random: the claim is exceeded once in a thousand million fits).
    realised, claimed : float
        Privacy parameter that this pair reaches, and the one that the ledger charges.
    """

    name: str
    kind: str
    realised: float
    claimed: float

    @property
    def ratio(self) -> float:
        """Realised over claimed."""
        return self.realised / self.claimed if self.claimed > 0 else math.inf * self.realised


@dataclass(frozen=True)
class TranscriptReport:
    """What `transcript_audit` found.

    Attributes
    ----------
    steps : tuple of StepAudit
        Release by release.
    faults : tuple of str
        Unpaid or repeated reads, answers that are no integers.
    """

    steps: tuple[StepAudit, ...]
    faults: tuple[str, ...]

    def _total(self, which: str) -> float:
        return math.hypot(*(getattr(s, which) for s in self.steps if s.kind == "gaussian"))

    @property
    def realised_mu(self) -> float:
        """Gaussian-DP parameter of this pair."""
        return self._total("realised")

    @property
    def claimed_mu(self) -> float:
        """Gaussian-DP parameter of the receipt."""
        return self._total("claimed")

    @property
    def ratio(self) -> float:
        """Largest realised / claimed: of a step, or of the Gaussian steps together."""
        total = self.realised_mu / self.claimed_mu if self.claimed_mu > 0 else 0.0
        return max([total, *(step.ratio for step in self.steps)], default=0.0)

    def check(self) -> "TranscriptReport":
        """Raise AssertionError if a claim is exceeded or a fault was seen; else return self."""
        if self.faults:
            raise AssertionError("; ".join(self.faults))
        if not self.ratio <= WIDER:
            raise AssertionError(f"the pair reaches more than the receipt claims: {self}")
        return self

    def __str__(self) -> str:
        lines = [
            f"{s.name}: {s.kind} {s.realised:.6g} of {s.claimed:.6g} ({s.ratio:.4f})"
            for s in self.steps
        ]
        return "; ".join([*lines, f"mu {self.realised_mu:.6g} of {self.claimed_mu:.6g}"])


def _step_audit(first: RecordedRelease, second: RecordedRelease) -> StepAudit:
    loss, name = first.loss, first.bound.name
    if first.bound.cells and loss:
        share = np.setxor1d(first.exact, second.exact).size / first.bound.cells
        return StepAudit(name, loss.kind, loss.value * share, loss.value)
    kind = loss.kind if loss else "gaussian"
    claimed = loss.value if loss else 0.0
    claimed = claimed.largest() if isinstance(claimed, SketchMixture) else claimed
    if first.step == 0.0:
        return StepAudit(name, kind, 0.0, claimed)
    shift = change(first.exact, second.exact)
    scale = first.noise_scale / first.step  # of the noise, in steps
    if kind in ("gaussian", "sketch"):
        size = float(np.max(np.abs(shift), initial=0.0)) or 1.0
        realised = size * float(np.linalg.norm(shift / size)) / scale
    elif kind == "pure":
        realised = float(np.abs(shift).sum()) / (scale / math.sqrt(2.0))
    else:
        realised = float(shift.max() - shift.min()) / scale
    return StepAudit(name, kind, realised, claimed)


def _integer_faults(transcript: Transcript) -> list[str]:
    """Return faults of non-integer sums: a float sum has gaps that reveal the exact value."""
    faults = []
    for opening in transcript:
        if opening.step == 0.0 or opening.total is None:
            continue
        steps = np.asarray(opening.value, np.longdouble) / opening.step
        steps = 2 * steps if opening.bound.symmetric else steps
        above_noise = np.abs(steps) < 2.0**46  # larger ones are rounded by more than the margin
        off = np.abs(steps - np.rint(steps))[above_noise]
        integers = np.asarray(opening.total).dtype == np.int64
        if not integers or np.any(off > 1e-2):
            faults.append(f"{opening.bound.name!r} is not an integer number of steps")
    return faults


def _both(run: Fit, data, other, first=None) -> tuple[Transcript, Transcript]:
    """Return the transcript of a run (or the one given), and of the other data at its answers."""
    if first is None:
        with record_transcript() as first:
            run(data)
    with replay_answers(first) as second:
        run(other)
    return first, second


def transcript_audit(fit, pair: tuple[Any, Any], first=None) -> TranscriptReport:
    """Compare, release by release, the exact change between neighbours with the noise it was given.

    The fit runs once on the first data set; the neighbour is evaluated at the answers that were
    released to the first (an adaptive method would otherwise request other statistics). No
    sampling: a wrong sensitivity shows in one run, if `pair` reaches it; a noise that is smaller
    than claimed does not show here.

    Parameters
    ----------
    fit : estimator or callable
        An unfitted estimator (cloned, with private noise), or a function of the data.
    pair : tuple
        Two neighbouring data sets, arrays or `FitData`.
    first : Transcript, default=None
        What `record_transcript` recorded of the fit on the first one, for several neighbours of it.

    Returns
    -------
    report : TranscriptReport
        `TranscriptReport.check` raises if a claim is exceeded.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPPCA
    >>> from skdp.testing import transcript_audit
    >>> pair = np.zeros((40, 3)), np.eye(41, 3, k=-40)  # a row more, as long as the clip norm
    >>> pca = DPPCA(n_components=2, clip_norm=1.0, center="none")
    >>> report = transcript_audit(pca, pair).check()
    >>> 0.9 < report.ratio <= 1 + 1e-9
    True
    """
    first, second = _both(as_fit(fit), *pair, first)
    faults = [*first.faults, *second.faults, *_integer_faults(first)]
    if len(first) != len(second):
        faults.append(f"{len(first)} releases, {len(second)} on the neighbour")
    if not len(first):
        faults.append("nothing passed the gate: what the fit returns was not audited")
    steps = [_step_audit(a, b) for a, b in zip(first, second, strict=False)]
    return TranscriptReport(merge_streams(steps, first), tuple(faults))


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
        if opening.step == 0.0:
            continue
        if opening.bound.cells or opening.total is None:
            total += (_flip_score if opening.bound.cells else _choice_score)(opening, a, b)
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


def _flip_score(opening: RecordedRelease, a, b) -> float:
    ones = np.ravel_multi_index(opening.value.nonzero(), opening.bound.shape)
    nearer = np.setxor1d(ones, a).size - np.setxor1d(ones, b).size
    return nearer * opening.loss.value / opening.bound.cells


def _choice_score(opening: RecordedRelease, a, b) -> float:
    rate = opening.step / opening.noise_scale

    def log_probability(scores):
        weights = rate * (scores - scores.max())
        return weights[opening.value] - math.log(np.exp(weights).sum())

    return float(log_probability(b) - log_probability(a))


def _scores(run: Fit, data, other, n_runs: int, swap: bool) -> list[float]:
    out = []
    for _ in range(n_runs):
        first, second = _both(run, data, other)
        mine = [np.asarray(o.exact, np.float64) for o in first]
        theirs = [np.asarray(o.exact, np.float64) for o in second]
        low, high = (theirs, mine) if swap else (mine, theirs)
        out.append(_score(first, low, high))
    return out


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
    run, alpha, n_runs = as_fit(fit), 1 - confidence, check_count("n_runs", n_runs, 2)
    spent = run(pair[0]).privacy_spent_
    low = _scores(run, pair[0], pair[1], n_runs, False)
    high = _scores(run, pair[1], pair[0], n_runs, True)
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

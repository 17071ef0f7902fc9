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

from skdp.privacy.accounting.sketch_laws import SketchMixture
from skdp.testing._calibration import (
    Fit,
    as_fit,
)
from skdp.testing._data import FitData
from skdp.testing._hooks import (
    Opening,
    Transcript,
    cached_accounting,
    change,
    record_transcript,
    replay_answers,
)
from skdp.testing._pairs import candidate_pairs
from skdp.testing._statistics import distribution_free_mu, epsilon_lower_bound, gaussian_mu
from skdp.testing._streams import merge_streams

_TOLERANCE = 1e-9


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
        if not self.ratio <= 1 + _TOLERANCE:
            raise AssertionError(f"the pair reaches more than the receipt claims: {self}")
        return self

    def __str__(self) -> str:
        lines = [
            f"{s.name}: {s.kind} {s.realised:.6g} of {s.claimed:.6g} ({s.ratio:.4f})"
            for s in self.steps
        ]
        return "; ".join([*lines, f"mu {self.realised_mu:.6g} of {self.claimed_mu:.6g}"])


def _step_audit(first: Opening, second: Opening) -> StepAudit:
    loss, name = first.loss, first.bound.name
    if first.bound.cells and loss:
        share = np.setxor1d(first.exact, second.exact).size / first.bound.cells
        return StepAudit(name, loss.kind, loss.value * share, loss.value)
    shift = change(first.exact, second.exact)
    kind = loss.kind if loss else "gaussian"
    claimed = loss.value if loss else 0.0
    claimed = claimed.largest() if isinstance(claimed, SketchMixture) else claimed
    if first.step == 0.0:
        return StepAudit(name, kind, 0.0, claimed)
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
    """Noise must be added to integers: a float sum has gaps that tell the exact value."""
    faults = []
    for opening in transcript:
        if opening.step == 0.0 or opening.total is None:
            continue
        steps = np.asarray(opening.value, np.longdouble) / opening.step
        steps = 2 * steps if opening.bound.symmetric else steps
        readable = np.abs(steps) < 2.0**50
        off = np.abs(steps - np.rint(steps))[readable]
        integers = np.asarray(opening.total).dtype == np.int64
        if not integers or np.any(off > 1e-2):
            faults.append(f"{opening.bound.name!r} is not an integer number of steps")
    return faults


def transcript_audit(fit, pair: tuple[Any, Any]) -> TranscriptReport:
    """Compare, release by release, the exact change between neighbours with the noise it was given.

    The fit runs once on the first data set; the neighbour is evaluated at the answers that were
    released to the first (an adaptive method would otherwise go another way and the change of its
    later steps would mean nothing). No sampling: a wrong sensitivity shows in one run, if `pair`
    reaches it; a noise that is smaller than claimed does not show here, see `check_calibration`.

    Parameters
    ----------
    fit : estimator or callable
        An unfitted estimator (cloned, with private noise), or a function of the data.
    pair : tuple
        Two neighbouring data sets, arrays or `FitData`.

    Returns
    -------
    report : TranscriptReport
        `TranscriptReport.check` raises if a claim is exceeded.

    Examples
    --------
    >>> from skdp import DPPCA
    >>> from skdp.testing import transcript_audit, worst_case_pair
    >>> pca = DPPCA(n_components=2, clip_norm=1.0)
    >>> report = transcript_audit(pca, worst_case_pair(pca)).check()
    >>> 0.9 < report.ratio <= 1 + 1e-9
    True
    """
    run = as_fit(fit)
    with record_transcript() as first:
        run(pair[0])
    with replay_answers(first) as second:
        run(pair[1])
    faults = [*first.faults, *second.faults, *_integer_faults(first)]
    if len(first) != len(second):
        faults.append(f"{len(first)} releases, {len(second)} on the neighbour")
    steps = [_step_audit(a, b) for a, b in zip(first, second, strict=False)]
    return TranscriptReport(merge_streams(steps, first), tuple(faults))


def worst_case_pair(estimator) -> tuple[FitData, FitData]:
    """Return neighbours for which the estimator's releases change by (nearly) all they may.

    Candidates come from a registry per class and privacy unit (`register_pairs`); each is run
    through a transcript audit and the one that reaches most of the claimed budget is returned.

    Parameters
    ----------
    estimator : estimator
        Not fitted, not modified.

    Returns
    -------
    pair : tuple of FitData
    """
    best: tuple[float, tuple[FitData, FitData] | None] = (-1.0, None)
    for _, first, second in candidate_pairs(estimator):
        report = transcript_audit(estimator, (first, second))
        reached = report.realised_mu if report.claimed_mu else sum(s.realised for s in report.steps)
        if reached > best[0]:
            best = (reached, (first, second))
    if best[1] is None:
        raise ValueError(f"No pair of data for {type(estimator).__name__}.")
    return best[1]


# -- many runs -----------------------------------------------------------------------------------


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

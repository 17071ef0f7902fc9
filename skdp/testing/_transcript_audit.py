"""Audit of one pair of neighbours: the change of every release beside the noise it was given."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from skdp.privacy.accounting.sketch_laws import SketchMixture
from skdp.testing._calibration import (
    as_fit,
)
from skdp.testing._data import FitData
from skdp.testing._hooks import change
from skdp.testing._pairs import candidate_pairs
from skdp.testing._transcripts import (
    Opening,
    Transcript,
    merge_streams,
    record_transcript,
    replay_answers,
)

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

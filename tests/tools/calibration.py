"""Calibration of the noise of a fit: has it the scale and the independence that it claims."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import chi2, norm, t

from skdp.privacy.noise import integers as noise
from skdp.testing._transcripts import RecordedRelease, Transcript, record_transcript
from skdp.testing.audit import as_fit

# Bounds and tests for the audit. Every bound is valid for finite samples, or says what it assumes.
#
# Notation: scores of N runs on each of two data sets; a is the chance of a false alarm.


SIX_SIGMA = 2 * float(norm.sf(6.0))


def scale_pvalue(squares: float, degrees: float) -> float:
    """Two-sided p-value of a sum of squares that should be chi-square with these degrees."""
    tail = min(chi2.sf(squares, degrees), chi2.cdf(squares, degrees))
    return min(1.0, 2 * float(tail))


def cosine_pvalue(a, b) -> float:
    """Two-sided p-value of the cosine of two vectors, exact if one of them is iid normal."""
    sizes = float(np.linalg.norm(a) * np.linalg.norm(b))
    if len(a) < 2 or sizes == 0.0:
        return 1.0
    cosine = min(1.0, max(-1.0, float(np.dot(a, b)) / sizes))
    rest = 1 - cosine * cosine
    if rest <= 0.0:
        return 0.0
    degrees = len(a) - 1
    return min(1.0, 2 * float(t.sf(abs(cosine) * math.sqrt(degrees / rest), degrees)))


# Calibration of the noise of a fit: has it the scale and the independence that it claims.


_LONG = 8  # values in a release that are enough for a cosine
_ENOUGH, _MOST_FITS = 800, 100


@dataclass(frozen=True)
class CalibrationReport:
    """P-values of the tests of the noise.

    Attributes
    ----------
    pvalues : dict of float
        Name of the test -> two-sided p-value.
    n_values : int
        Independent noise values seen.
    """

    pvalues: dict[str, float] = field(repr=False)
    n_values: int

    @property
    def pvalue(self) -> float:
        """Smallest p-value times the number of tests."""
        return min(1.0, min(self.pvalues.values(), default=1.0) * len(self.pvalues))

    @property
    def worst(self) -> str:
        """Name of the test with the smallest p-value."""
        return min(self.pvalues, key=self.pvalues.__getitem__, default="")

    def check(self, alpha: float = SIX_SIGMA) -> "CalibrationReport":
        """Raise AssertionError if the noise is not what the receipt claims; else return self."""
        if self.pvalue < alpha:
            raise AssertionError(
                f"the noise is not as claimed: {self.worst}, p = {self.pvalues[self.worst]:.1e}"
            )
        return self


def _independent(opening: RecordedRelease) -> tuple[np.ndarray, np.ndarray]:
    """Return (residuals in standard units, their columns), each independent value once.

    (G + G')/2 has half the variance off the diagonal, and each value there appears twice.
    """
    residual = np.atleast_1d(opening.residual())
    columns = np.broadcast_to(np.arange(residual.shape[-1]), residual.shape)
    if not opening.bound.symmetric:
        return residual.ravel(), columns.ravel()
    upper = np.triu_indices(len(residual))
    scale = np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    return residual[upper] * scale, columns[upper]


def _squares(opening: RecordedRelease, residual: np.ndarray) -> tuple[np.ndarray, float]:
    """Return terms that are chi-square, and the degrees of freedom of each."""
    if opening.loss and opening.loss.kind == "pure":
        return 2 * math.sqrt(2.0) * np.abs(residual), 2.0  # |Laplace| is exponential
    return residual**2, 1.0


def _scale_tests(openings, residuals, columns, tests) -> None:
    for opening, residual, column in zip(openings, residuals, columns, strict=True):
        name = f"{opening.bound.name}[{opening.serial}]"
        terms, degrees = _squares(opening, residual)
        tests.setdefault(f"scale of {name}", []).append((terms.sum(), degrees * terms.size))
        if opening.bound.symmetric:
            starts = np.cumsum([0, *range(len(opening.exact), 1, -1)])  # rows of the triangle
            inside = (terms[starts].sum(), degrees * len(starts))
            tests.setdefault(f"diagonal of {name}", []).append(inside)
        for c in np.unique(column):
            part = terms[column == c]
            tests.setdefault(f"column {c} of {name}", []).append((part.sum(), degrees * part.size))


def _reuse_tests(residuals, names) -> dict[str, float]:
    """Noise that appears twice: cosine between long openings, equal integers in short ones."""
    out: dict[str, float] = {}
    long = [i for i, residual in enumerate(residuals) if residual.size >= _LONG]
    for i, j in itertools.combinations(long, 2):
        size = min(residuals[i].size, residuals[j].size)
        p = cosine_pvalue(residuals[i][:size], residuals[j][:size])
        out[f"{names[i]} against {names[j]}"] = p
    firsts = [float(np.rint(residual.flat[0] * noise.SIGMA_INT)) for residual in residuals]
    equal = len(firsts) - len(set(firsts))
    if equal:  # two draws are equal with probability 1 / (2 sqrt(pi) sigma) = 2.8e-10
        pairs = len(firsts) * (len(firsts) - 1) / 2
        out[f"{equal} repeated values"] = min(1.0, pairs * 2.8e-10) ** equal
    return out


def calibration(transcripts: Transcript | Iterable[Transcript]) -> CalibrationReport:
    """Test that (answer - exact) / noise scale is what the receipt claims.

    Tests, all exact for Gaussian and Laplace noise: the scale of all values and of each release,
    of each column and of the diagonal (chi-square), and reuse of noise between releases and
    between fits (cosine, t). Power: with N values a scale wrong by a factor f is found if
    ``|f^2 - 1| > 6 sqrt(2/N)`` or so: 1/sqrt(2) needs 300 values, 10% needs 3600 at six sigma.
    Pass several fits where one has few.

    Parameters
    ----------
    transcripts : Transcript or iterable of Transcript
        From `record_transcript`; several must come from the same estimator.

    Returns
    -------
    report : CalibrationReport
    """
    transcripts = [transcripts] if isinstance(transcripts, Transcript) else list(transcripts)
    tests: dict[str, list[tuple[float, float]]] = {}
    everything, names = [], []
    for index, transcript in enumerate(transcripts):
        openings = [o for o in transcript if o.step and o.total is not None]
        parts = [_independent(opening) for opening in openings]
        residuals = [part[0] for part in parts]
        _scale_tests(openings, residuals, [part[1] for part in parts], tests)
        everything += residuals
        names += [f"{o.bound.name}[{o.serial}] of fit {index}" for o in openings]
    pvalues = {
        name: scale_pvalue(sum(s for s, _ in terms), sum(n for _, n in terms))
        for name, terms in tests.items()
    }
    whole = [term for name, terms in tests.items() if name.startswith("scale") for term in terms]
    pvalues["scale of all noise"] = scale_pvalue(sum(s for s, _ in whole), sum(n for _, n in whole))
    pvalues |= _reuse_tests(everything, names)
    return CalibrationReport(pvalues, sum(r.size for r in everything))


def check_calibration(
    fit, data, n_fits: int | None = None, alpha: float = SIX_SIGMA
) -> CalibrationReport:
    """Fit a few times and raise unless the noise has the scale and independence it claims.

    Parameters
    ----------
    fit : estimator or callable
        As in `transcript_audit`.
    data : FitData or array
        What to fit on; the tests do not depend on it.
    n_fits : int, optional
        Number of fits. By default 2 or more, until 800 noise values were seen (100 at most).
    alpha : float
        Chance of a false alarm, all tests together. Default: six sigma.

    Returns
    -------
    report : CalibrationReport
    """
    run = as_fit(fit)
    transcripts: list[Transcript] = []
    seen = 0
    while len(transcripts) < (n_fits or (2 if seen >= _ENOUGH else _MOST_FITS)):
        with record_transcript() as transcript:
            run(data)
        transcripts.append(transcript)
        seen += sum(_independent(o)[0].size for o in transcript if o.step and o.total is not None)
    return calibration(transcripts).check(alpha)

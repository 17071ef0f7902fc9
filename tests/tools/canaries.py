"""Canaries: data made so that a fit which tells too much gives itself away.

They are the attacks behind two lower bounds. Each guesses fair coins of the data from what a fit
released; privacy bounds how often that can be right (`skdp.theory.recovery_bound`). They look at
the final output alone, so they are weak next to `transcript_audit`: what they flag is wrong, what
they pass need not be right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata
from sklearn.base import clone

from skdp.theory import recovery_bound


@dataclass(frozen=True)
class CanaryReport:
    """How often coins of the data were guessed, next to what privacy allows.

    Attributes
    ----------
    success : float
        Mean share of right guesses.
    bound : float
        Largest expected share for the mu that is claimed.
    margin : float
        What luck may add: a fit that is as private as it claims passes with .999 (Hoeffding).
    """

    success: float
    bound: float
    margin: float

    def check(self) -> CanaryReport:
        """Raise AssertionError if the guesses were better than privacy allows; else return self."""
        if self.success > self.bound + self.margin:
            raise AssertionError(f"the fit tells more than it claims: {self}")
        return self


def canary_report(successes: Sequence[float], mu: float, changes: float = 1.0) -> CanaryReport:
    """Compare shares of right guesses, one for each independent fit, with what mu allows.

    Parameters
    ----------
    successes : sequence of float
        Share of right guesses of each fit, in [0, 1].
    mu : float
        Gaussian-DP parameter that is claimed.
    changes : float, default=1.0
        How many units one coin decides.

    Returns
    -------
    CanaryReport
    """
    margin = math.sqrt(math.log(1000) / (2 * len(successes)))
    return CanaryReport(float(np.mean(successes)), recovery_bound(mu, changes), margin)


def coherence_canary(
    estimator: Any,
    n: int = 200,
    coherence: float = 2.0,
    *,
    n_runs: int = 20,
    random_state: int | None = None,
) -> CanaryReport:
    """Guess the bits of a matrix of known coherence from its leading vector.

    The family M_C of Hardt and Roth (2013, theorem 6.1): n/C equal rows of fair bits above zeros.
    One bit decides n/C entries, so that a fit of (epsilon, delta) = (C/n, small) for entries must
    not find the leading vector, which any accurate one finds.

    Parameters
    ----------
    estimator : estimator
        With `components_` of an n x n matrix and the entry unit, such as ``DPTruncatedSVD(1,
        privacy_unit="entry", epsilon=coherence / n)``; a clone is fitted in each run.
    n : int, default=200
        Side of the matrix.
    coherence : float, default=2.0
        C, from 2 to n.
    n_runs : int, default=20
        Number of fits.
    random_state : int or None, default=None
        Of the bits.

    Returns
    -------
    CanaryReport
    """
    rng, rows = np.random.default_rng(random_state), max(1, round(n / coherence))
    shares, mus = [], []
    for _ in range(n_runs):
        bits = rng.integers(0, 2, n)
        A = np.zeros((n, n))
        A[:rows] = bits
        model = clone(estimator).fit(A)
        v = model.components_[0] * np.sign(model.components_[0].sum())
        shares.append(float(np.mean((v > v.mean()) == bits)))
        mus.append(model.privacy_spent_.mu)
    if None in mus:
        raise ValueError("the canary needs a receipt with a mu: one of Gaussian releases alone.")
    return canary_report(shares, max(mus), rows)


def score_attack(coef: Any, inside: tuple[Any, Any], outside: tuple[Any, Any], truth: Any) -> float:
    """Guess which records a low-rank regression was fitted to; return how often that is right.

    The attack behind theorem 5 of Zha (2024): a record (X, y) has the score (y - <X, M>)
    <M^ - M, X>, which is larger for records of the fit. Each record of the fit is compared with
    each other one; the expected share of right answers is at most ``recovery_bound(mu, 2)`` for a
    fit under "add_remove" and ``recovery_bound(mu)`` under "replace". It knows the true M.

    Parameters
    ----------
    coef : array-like of shape (d1, d2)
        Fitted matrix.
    inside, outside : tuple of arrays
        (X, y) of the records of the fit, and of as many others of the same law.
    truth : array-like of shape (d1, d2)
        The true M.

    Returns
    -------
    float
        Share of right answers, the area under the curve of the attack; .5 is guessing.
    """
    M = np.asarray(truth, np.float64).ravel()
    moved = np.asarray(coef, np.float64).ravel() - M

    def scores(X, y):
        rows = np.reshape(np.asarray(X, np.float64), (len(y), -1))
        return (np.asarray(y) - rows @ M) * (rows @ moved)

    first, second = scores(*inside), scores(*outside)
    ranks = rankdata(np.concatenate([first, second]))[: len(first)]
    wins = ranks.sum() - len(first) * (len(first) + 1) / 2
    return float(wins / (len(first) * len(second)))

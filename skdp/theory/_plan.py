"""What a fit will cost and bring, said before any data are touched."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, repeat
from numbers import Integral
from operator import mul
from typing import Any

from skdp._tables import aligned, html_table

_NUMBERS = tuple(accumulate(repeat(1.02, 1744), mul, initial=1.0))  # of samples, up to 1e15
_STRIDE = 32


@dataclass(frozen=True)
class PlannedRelease:
    """One kind of release of a planned fit.

    Attributes
    ----------
    name : str
        Name of the release, as the ledger of the fit will show it.
    times : int
        How many there are, at most.
    share : float
        Share of the budget that they take together.
    sensitivity, noise_scale : float
        Of one of them, in the unit of the plan, the largest if they differ; where the fit learns a
        clip level it is taken to be the largest of its search.
    size : int
        Numbers in one answer.
    """

    name: str
    times: int
    share: float
    sensitivity: float
    noise_scale: float
    size: int


@dataclass(frozen=True)
class Expectation:
    """What theory expects of a rehearsed fit: the part of a plan that is not the fit itself.

    Attributes
    ----------
    error : callable
        Expected error as a function of the number of samples; nan where theory has no value.
    meaning, signal : str
        What `error` is a share of, and what `found` measures.
    found : float
        The smallest signal that stands out of the noise.
    assumptions : tuple of str
        What is assumed of the data.
    goal : float
        Error at which there are enough samples; 0 where that is not asked.
    scales : bool
        Whether `error` holds for other numbers of samples than the planned one.

    Examples
    --------
    >>> from skdp import DPPCA
    >>> expected = DPPCA(3, clip_norm=1.0).plan(1000, 40).expected
    >>> expected.error(2000) < expected.error(1000) and expected.error(expected.needed()) < 0.5
    True
    """

    error: Callable[[float], float]
    meaning: str
    found: float
    signal: str
    assumptions: tuple[str, ...]
    goal: float = 0.0
    scales: bool = True

    def needed(self) -> int:
        """Return the number of samples at which the goal is reached; 0 if unknown."""
        return first_below(self.error, self.goal) if self.goal else 0


def constant_error(_n: float, error: float = math.nan) -> float:
    """Return an error that holds for the planned shape alone; nan where theory has none."""
    return error


def first_below(error: Callable[[float], float], goal: float) -> int:
    """Return the smallest number (to 2%) at which an error is at most the goal; 0 if none is.

    The error is taken to fall: it is looked at in strides, and inside the stride by halves.
    """

    def enough(place: int) -> bool:
        return error(_NUMBERS[place]) <= goal

    end = next((i for i in (*range(0, len(_NUMBERS), _STRIDE), len(_NUMBERS) - 1) if enough(i)), -1)
    if end < 0:
        return 0
    first = max(0, end - _STRIDE + 1)
    return math.ceil(_NUMBERS[first + bisect_left(range(first, end), True, key=enough)])


def check_counts(estimator: object, **counts: Any) -> None:
    """Refuse numbers of samples, features or targets that are none."""
    for what, size in counts.items():
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            raise ValueError(
                f"{type(estimator).__name__}.plan needs a positive integer '{what}'. Got {size!r}."
            )


def check_entries(estimator: object, nnz: Any, n: int, d: int) -> None:
    """Refuse a number of entries that a matrix of n rows and d columns cannot have."""
    if not isinstance(nnz, Integral) or isinstance(nnz, bool) or not 1 <= nnz <= n * d:
        raise ValueError(
            f"The 'nnz' parameter of {type(estimator).__name__}.plan must be None or an int in the "
            f"range [1, {n * d}] (n_samples * n_features). Got {nnz!r} instead."
        )


@dataclass(frozen=True)
class FitPlan:
    """What a fit will add as noise and lose by it, from public numbers alone.

    Attributes
    ----------
    estimator : str
        Name of the class.
    n_samples, n_features : int
        The assumed shape of the data.
    guarantee : str
        What the fit would satisfy.
    cautions : tuple of str
        What is weak about it.
    mu : float
        Gaussian-DP parameter of the budget; 0 where the fit is not made of Gaussians.
    unit : str
        What noise scales are multiples of: "1", or the name of a length that the fit learns first.
    error : float
        Expected error, in the sense of `meaning`; nan where theory has nothing to say.
    meaning : str
        What `error` is a share of.
    found : float
        The smallest signal that stands out of the noise, in the sense of `signal`.
    signal : str
        What `found` measures.
    assumptions : tuple of str
        What was assumed of the data.
    releases : tuple of PlannedRelease
        What would be released.
    needed : int
        Number of samples from which `error` would be below one half of the worst; 0 if unknown.
    expected : Expectation
        The formulas behind `error`, `found` and `needed`.
    """

    estimator: str
    n_samples: int
    n_features: int
    guarantee: str
    cautions: tuple[str, ...]
    mu: float
    unit: str
    error: float
    meaning: str
    found: float
    signal: str
    assumptions: tuple[str, ...]
    releases: tuple[PlannedRelease, ...] = field(repr=False)
    needed: int = 0
    expected: Expectation | None = field(default=None, repr=False, compare=False)

    def error_at(self, n_samples: float) -> float:
        """Return the expected error for another number of samples; nan if it has another noise.

        Parameters
        ----------
        n_samples : float
            Number of samples, where the noise does not depend on it (see `expected`).

        Returns
        -------
        float
        """
        if self.expected is None or not self.expected.scales:
            return math.nan
        return self.expected.error(n_samples)

    def _facts(self) -> list[tuple[str, str]]:
        shape = f"{self.n_samples} samples, {self.n_features} features"
        error = "theory has no value" if math.isnan(self.error) else f"about {self.error:.2g}"
        facts = [
            ("Plan", f"{self.estimator}, {shape}; no data was touched"),
            ("Guarantee", self.guarantee),
            *(("Weak", text) for text in self.cautions),
            ("Expected error", f"{error} ({self.meaning})"),
            ("Found from", f"{self.found:.2g} ({self.signal})"),
        ]
        if self.needed:
            facts.append(("Samples needed", f"about {self.needed} for half of the signal"))
        return facts + [("Assumed", text) for text in self.assumptions]

    def _head(self) -> tuple[str, ...]:
        return ("release", "share", "sensitivity", f"noise scale (unit: {self.unit})")

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                r.name if r.times == 1 else f"{r.name} ({r.times} times)",
                f"{r.share:.1%}",
                f"{r.sensitivity:.4g}",
                f"{r.noise_scale:.4g}",
            )
            for r in self.releases
        ]

    def __str__(self) -> str:
        """Return the plan as aligned text."""
        return "\n".join([*aligned(self._facts()), *aligned([self._head(), *self._rows()])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self._facts()) + html_table(self._rows(), self._head())

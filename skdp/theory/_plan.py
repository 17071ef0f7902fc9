"""Plans: the accuracy of a fit, measured by fitting synthetic data drawn from stated facts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral, Real
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from skdp.privacy.accounting import losses
from skdp.privacy.accounting.receipts import LedgerEntry, aligned, cautions, html_table
from skdp.privacy.gate.bounds import PrivacyBudget
from skdp.privacy.gate.session import no_warnings
from skdp.privacy.ledger.routes import on_made_data
from skdp.theory._made import bare_copy
from skdp.units import unit_of

# Value | what it trades | measured by tests/test_plan.py
N_FITS, N_FEW = 5, 3  # fits at the stated size; fewer for large data, or if a noiseless fit is made
_MORE = {4.0: 3, 16.0: 2}  # multiples of the sample size to halve the error, and their fits
_LEAST_ROWS, MOST_NUMBERS = 2000, 400_000  # of synthetic data; more are thinned, with less noise
_LARGEST_MU = (40.0, 14.0)  # about the least noise of the sampler: in copies, and in one
USUAL_ONES = 10  # ones in a synthetic binary row
_SEEN = 0.01  # for a smaller error the required sample size is not computed


class PlanData(NamedTuple):
    """Synthetic data, with functions that fit a copy of the estimator to them and score it.

    Attributes
    ----------
    fit, score : callable
        Copy of the estimator -> fitted; fitted -> number, the larger the better.
    assumptions : tuple of str
        What the data are, in words.
    units_per_row : float
        Stated units behind each drawn one.
    trivial, best : float
        Scores of no fit at all, and of one without noise; nan is measured, by such a fit.
    plain : callable or None
        Returns the fit of a peer without noise, where it is the same in less time.
    """

    fit: Callable[[Any], Any]
    score: Callable[[Any], float]
    assumptions: tuple[str, ...]
    units_per_row: float = 1.0
    trivial: float = 0.0
    best: float = 1.0
    plain: Callable[[], Any] | None = None

    def lost_fraction(self, score: float) -> float:
        """Return the fraction that a score lacks of a noiseless fit's gain over a trivial model."""
        gain = self.best - self.trivial
        return max(0.0, self.best - score) / gain if gain > _SEEN * abs(self.best) else math.nan


@dataclass(frozen=True)
class PlannedRelease:
    """One kind of release of a planned fit.

    Attributes
    ----------
    name : str
        Name of the release, as the ledger of the fit shows it.
    repeats : int
        How many there were.
    budget_fraction : float
        Fraction of the budget that they took together; nan where losses of two kinds compose.
    sensitivity, noise_scale : float
        The largest of them; if the fit learns a clip norm, in units of the synthetic data.
    """

    name: str
    repeats: int
    budget_fraction: float
    sensitivity: float
    noise_scale: float


@dataclass(frozen=True)
class FitPlan:
    """What fits on synthetic data lost to noise.

    Attributes
    ----------
    estimator : str
        Name of the class.
    n_samples, n_features : int
        The stated shape.
    guarantee : str
        What the fit would satisfy.
    cautions : tuple of str
        Warnings about it.
    mu : float
        Gaussian-DP parameter of the budget; 0 without delta.
    metric : str
        What the scores are.
    n_fits : int
        How many fits at this size there were.
    score, low, high : float
        Median, smallest and largest score of the fits.
    best, trivial : float
        Scores of a fit without noise, and of none.
    error : float
        Median fraction of ``best - trivial`` that is lost; nan if nothing can be gained.
    required_samples : float
        Number of samples that would lose half as much: infinity if it is more than 16 times
        `n_samples`, `n_samples` if next to nothing is lost, nan for edges and changes of a matrix,
        where more rows add noise too.
    assumptions : tuple of str
        What the synthetic data are.
    releases : tuple of PlannedRelease
        What one of the fits released.
    """

    estimator: str
    n_samples: int
    n_features: int
    guarantee: str
    cautions: tuple[str, ...]
    mu: float
    metric: str
    n_fits: int
    score: float
    low: float
    high: float
    best: float
    trivial: float
    error: float
    required_samples: float
    assumptions: tuple[str, ...]
    releases: tuple[PlannedRelease, ...] = field(repr=False)

    def _facts(self) -> list[tuple[str, str]]:
        shape = f"{self.n_samples} samples, {self.n_features} features"
        scores = f"{self.score:.2g} ({self.low:.2g} to {self.high:.2g} in {self.n_fits} fits)"
        lost = f"about {self.error:.2g} of the gain"
        lost = "nothing: there is no gain" if math.isnan(self.error) else lost
        facts = [
            ("Plan", f"{self.estimator}, {shape}; no data was touched"),
            ("Guarantee", self.guarantee),
            *(("Caution", text) for text in self.cautions),
            ("Expected", f"{self.metric}: {scores}"),
            ("Compare with", f"{self.best:.2g} without noise, {self.trivial:.2g} without a fit"),
            ("Lost", lost),
        ]
        if not (self.required_samples == self.n_samples or math.isnan(self.required_samples)):
            said, least = f"about {self.required_samples}", f"{max(_MORE) * self.n_samples:.0f}"
            said = f"more than {least}" if math.isinf(self.required_samples) else said
            facts.append(("Half as much", f"is lost with {said} samples"))
        return facts + [("Synthetic", text) for text in self.assumptions]

    _head = ("release", "budget fraction", "sensitivity", "noise scale")

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                r.name if r.repeats == 1 else f"{r.name} ({r.repeats} times)",
                f"{r.budget_fraction:.1%}".replace("nan%", "-"),
                f"{r.sensitivity:.4g}",
                f"{r.noise_scale:.4g}",
            )
            for r in self.releases
        ]

    def __str__(self) -> str:
        """Return the plan as aligned text."""
        return "\n".join([*aligned(self._facts()), *aligned([self._head, *self._rows()])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self._facts()) + html_table(self._rows(), self._head)


class PlansMixin:
    """The method `plan`.

    Estimators have ``_made(rng, n, d, **facts)``, which returns `PlanData`, and `_measure`, what
    scores are in words.
    """

    _measure: Any = ""

    def _planned_shape(self, n, d):
        """Return the shape that is planned for, as `_made` takes it."""
        return n, d

    def plan(self, n_samples: Any = None, n_features: Any = None, **facts: Any) -> FitPlan:
        """Estimate how accurate a fit will be, and what it would release. No data are read.

        Up to ten fits with these parameters run on synthetic data with the stated facts. If more
        than about 2,000 rows are stated, fewer are drawn, and the noise is reduced in the same
        proportion. A plan costs no budget, also in a `PrivacyLedger`. If the number of samples is
        private, pass a guess.

        Parameters
        ----------
        n_samples, n_features : int
            Shape of the data; for personal models the numbers of users and of features. A graph
            needs the number of nodes alone. `n_features` may be omitted if `matrix_shape` is set.
        **facts : dict
            What else is known of the data, such as `signal`, `nnz` or `n_rows`: the user
            guide lists the names for each estimator. Other facts have usual values, which the plan
            prints.

        Returns
        -------
        plan : FitPlan
            Print it to read it; ``plan.error`` is the fraction of the gain that noise costs.
        """
        with no_warnings():  # those of fits to few synthetic rows say nothing of private ones
            return planned(self, n_samples, n_features, facts)


def planned(estimator: Any, n: Any, d: Any, facts: Mapping[str, Any]) -> FitPlan:
    """Return the plan of an estimator for a stated shape and facts."""
    name = type(estimator).__name__
    known = list(inspect.signature(estimator._made).parameters)[3:]
    if unknown := sorted(set(facts) - set(known)):
        raise TypeError(f"{name}.plan takes the facts {known}. Got {unknown}.")
    estimator._check_parameters()
    budget = estimator._checked_session().budget
    n, d = estimator._planned_shape(_whole(n), _whole(d))
    stated = _stated(name, facts)
    counts = {x: _whole(stated[x]) for x in ("n_targets", "n_rows", "nnz") if x in stated}
    size = math.prod(d) if isinstance(d, tuple) else d
    check_counts(name, n_samples=n, n_features=size, **counts)

    def fits(times: float, most: int) -> list[tuple[float, PlanData, Any]]:
        large = 2 * n * times * size > MOST_NUMBERS
        there = {x: round(count * times ** (x == "nnz")) for x, count in counts.items()}
        draw = partial(estimator._made, n=round(n * times), d=d, **stated | there)
        return _fits(estimator, budget, draw, min(most, N_FEW) if large else most, large)

    first = fits(1, N_FITS)
    error, (score, made, model) = _lost(first), first[len(first) // 2]
    unit, needed = unit_of(estimator), float(n)
    if error > _SEEN and math.isfinite(budget.epsilon):
        needed = _needed(n, error, fits) if unit.in_rows else math.nan
    said = f"unit {getattr(estimator, 'privacy_unit', 'row')}, {estimator.adjacency}"
    return FitPlan(
        estimator=name,
        n_samples=int(n),
        n_features=int(size),
        guarantee=f"epsilon={budget.epsilon:g}, delta={estimator.delta:g}, {said}",
        cautions=cautions(budget.epsilon, budget.delta, unit.name, int(n) * bool(unit.counted)),
        mu=budget.mu,
        metric=estimator._measure,
        n_fits=len(first),
        score=score,
        low=first[0][0],
        high=first[-1][0],
        best=float(made.best),
        trivial=float(made.trivial),
        error=error,
        required_samples=needed,
        assumptions=made.assumptions,
        releases=_grouped(model.releases_, made.units_per_row),
    )


def _fits(
    estimator: Any, budget: PrivacyBudget, draw: Callable[..., PlanData], most: int, large: bool
) -> list[tuple[float, PlanData, Any]]:
    """Return (score, data, model) of fits to synthetic data, the worst first.

    Data that take long are drawn once. A regression depends most on what is drawn, and a peer fits
    it without noise in little time.
    """
    found: list[tuple[float, PlanData, Any]] = []
    once = False

    def fit(seed: int, **exact: float) -> Any:
        largest = _LARGEST_MU[not estimator._splits_budget]
        spent = thinned_budget(budget, made.units_per_row, largest)
        return fitted_copy(estimator, made, {**spent, "random_state": seed, **exact})

    for seed in range(most):
        if not once:
            made = draw(np.random.default_rng(seed))
            once = made.plain is None and (large or math.isnan(made.best))
            if math.isnan(made.best):
                exact = made.plain() if made.plain else fit(seed, epsilon=math.inf)
                made = made._replace(best=float(made.score(exact)))
        model = fit(seed)
        found.append((float(made.score(model)), made, model))
        if once and len(found) == N_FEW:
            break
    return sorted(found, key=itemgetter(0))


def _lost(fits: list[tuple[float, PlanData, Any]]) -> float:
    return float(np.median([made.lost_fraction(score) for score, made, _ in fits]))


def fitted_copy(estimator: Any, made: PlanData, params: Mapping[str, Any]) -> Any:
    """Return a copy that is fitted to synthetic data, without a charge and without warnings.

    A `group_column` is left out: groups of synthetic data are given as numbers.
    """
    if "group_column" in estimator.get_params(deep=False):
        params = {**params, "group_column": None}
    copy = bare_copy(estimator).set_params(**params)
    with on_made_data(copy), no_warnings():
        return made.fit(copy)


def fit_rows(model: Any, X: Any, y: Any = None) -> Any:
    """Fit rows; for the unit "group" each row is a group of its own."""
    people = {"groups": np.arange(X.shape[0])} if unit_of(model).of_groups else {}
    return model.fit(X, y, **people)


def rows_drawn(n: int, d: int) -> int:
    """Return how many of n rows with d numbers are drawn."""
    return int(min(n, max(_LEAST_ROWS if d <= _LEAST_ROWS else 500, MOST_NUMBERS // d)))


def histories_of(n: int, nnz: int) -> tuple[int, int]:
    """Return the numbers of synthetic user-item rows and of their ones, for n rows with `nnz` ones.

    A stored entry takes more time than a number of a dense array, so half as many are drawn.
    """
    rows = min(n, max(500, n * MOST_NUMBERS // (2 * nnz)))
    return rows, max(nnz * rows // n, 1)


def thinned_budget(budget: PrivacyBudget, behind: float, largest: float) -> dict[str, float]:
    """Return the epsilon and delta with `behind` times the mu, for data with fewer rows.

    It is `largest` at most; above 14 only budgets that are split into copies have such a mu.

    Noise depends on mu alone, so any epsilon and delta with that mu will do. A small epsilon with a
    delta near 1 takes the least time: for a huge epsilon, which the largest mu need, the sampler
    draws several times.
    """
    epsilon, delta = budget.epsilon, budget.delta
    if delta == 0:
        epsilon *= behind
    elif behind != 1 and not budget.exact:
        mu = min(budget.mu * behind, largest)
        epsilon = losses.epsilon_from_mu_delta(mu, delta)
        if epsilon > 30:
            delta = losses.delta_from_mu_epsilon(min(mu, 14.0), 28.0)  # for a larger mu it is 1
            epsilon = losses.epsilon_from_mu_delta(mu, delta)
            while mu > 14 and PrivacyBudget(epsilon, delta, split=True).mu < mu:
                epsilon *= 1.1
    return {"epsilon": epsilon, "delta": delta}


def _whole(size: Any) -> Any:
    """Convert floats such as 1e6, and integers of numpy, to int; return other values unchanged."""
    whole = isinstance(size, np.integer) or (isinstance(size, float) and size.is_integer())
    return int(size) if whole else size


def _stated(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that are stated: numbers or lists of them, and no tables."""
    stated = {fact: value for fact, value in facts.items() if value is not None}
    for fact, value in stated.items():
        if hasattr(value, "columns") or np.ndim(value) > 1 or np.asarray(value).dtype.kind in "OUS":
            raise ValueError(
                f"The fact '{fact}' of {name}.plan is a number, or a list of numbers, that is "
                f"public. Got a {type(value).__name__}."
            )
    return stated


def check_counts(name: str, **counts: Any) -> None:
    """Refuse numbers of samples, features or targets that are none."""
    for what, size in counts.items():
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            got = repr(size) if isinstance(size, Real | str) else f"a {type(size).__name__}"
            raise ValueError(f"{name}.plan needs a positive integer '{what}'. Got {got}.")


def check_entries(estimator: Any, nnz: Any, n: int, d: int) -> None:
    """Refuse a number of entries that a matrix of n rows and d columns cannot have."""
    name = type(estimator).__name__
    if nnz > n * d:
        raise ValueError(
            f"The 'nnz' parameter of {name}.plan must be None or an int in the "
            f"range [1, {n * d}] (n_samples * n_features). Got {nnz!r} instead."
        )
    if unit_of(estimator).contract:
        raise ValueError(
            f"The 'nnz' parameter of {name}.plan is for entries that are there or not; "
            f"privacy_unit={estimator.privacy_unit!r} bounds changes of any matrix: use "
            f"'signal'. Got {nnz!r} instead."
        )


def check_share(signal: Any) -> float:
    """Return a share, or refuse it."""
    if isinstance(signal, bool) or np.ndim(signal) or not 0 < signal <= 1:
        raise ValueError(f"'signal' must be a fraction in (0, 1]. Got {signal!r} instead.")
    return float(signal)


def _needed(n: int, error: float, fits: Callable[[float, int], Any]) -> float:
    """Return about the number of samples at which the error is half as large."""
    before, last, goal = 1.0, error, min(error, 1.0) / 2
    for times, n_fits in _MORE.items():
        # Errors fall like 1/n^2 at most; a faster fall is chance, with so few fits.
        now = max(_lost(fits(times, n_fits)), last * (before / times) ** 2)
        if now <= goal:
            part = math.log(last / goal) / math.log(last / now)
            return int(float(f"{n * before * (times / before) ** part:.2g}"))
        before, last = times, now
    return math.inf


def _grouped(ledger: tuple[LedgerEntry, ...], behind: float) -> tuple[PlannedRelease, ...]:
    """Put the releases of one name together, with the noise that the stated size would have."""
    kinds = {line.loss.kind for line in ledger}
    power = {"gaussian": 2, "pure": 1}.get(next(iter(kinds))) if len(kinds) == 1 else None

    def size(lines: Iterable[LedgerEntry]) -> float:
        return math.fsum(x.loss.value**power for x in lines) if power else math.nan

    groups: dict[str, list[LedgerEntry]] = {}
    for line in ledger:
        groups.setdefault(line.name, []).append(line)
    return tuple(
        PlannedRelease(
            name=name,
            repeats=len(lines),
            budget_fraction=size(lines) / size(ledger),
            sensitivity=max(float(np.max(x.sensitivity)) for x in lines),
            noise_scale=max(float(np.max(x.noise_scale)) for x in lines) * behind,
        )
        for name, lines in groups.items()
    )

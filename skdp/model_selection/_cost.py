"""The privacy cost of a search, computed from its folds before it runs, and its payment."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from sklearn import model_selection
from sklearn.base import clone
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor

from skdp.base import BaseDPEstimator
from skdp.exceptions import PrivacyError
from skdp.model_selection._proven import inner_steps
from skdp.model_selection._scorers import PrivateScorer
from skdp.model_selection._splitters import resolved_splitter, sets_of
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.accounting.receipts import PrivacySpent, aligned, html_table
from skdp.privacy.gate.bounds import SAMPLER_DISTANCE, PrivacyBudget
from skdp.privacy.ledger.filters import USUAL_DELTA
from skdp.privacy.ledger.fits import LedgerFit, budget_losses, unit_name
from skdp.privacy.ledger.routes import COUNTERS, Payment
from skdp.privacy.ledger.scope import around
from skdp.units import bound_of

# The private estimators inside an estimator, their budgets and privacy units.


def dp_parts(estimator):
    """Return the private estimators in an estimator (or itself), but not those nested in them."""
    if isinstance(estimator, BaseDPEstimator):
        return [estimator]
    if not hasattr(estimator, "get_params"):
        return []
    params = estimator.get_params(deep=True)
    found, inside = [], ()
    for name in sorted(params):
        if isinstance(params[name], BaseDPEstimator) and not name.startswith(inside):
            found.append(params[name])
            inside += (name + "__",)
    return found


# Compositions that fit a clone on all rows for each target, and leave rows and targets as they are.
_FOR_EACH_TARGET = (MultiOutputRegressor, MultiOutputClassifier)


def check_fitted_once(estimator):
    """Raise unless a composition is known to fit each private part exactly once."""
    if isinstance(estimator, BaseDPEstimator) or not dp_parts(estimator):
        return
    if not (parts := inner_steps(estimator)):
        raise PrivacyError(
            f"it is not known how often {type(estimator).__name__} fits a private estimator inside "
            "it, and on which rows, so its privacy cost is unknown. Use the private estimator "
            "itself."
        )
    for _, part in parts:
        check_fitted_once(part)


def check_fitted_whole(estimator):
    """Raise unless a composition fits each clone of a private part on all rows, unchanged."""
    if type(estimator) in _FOR_EACH_TARGET:
        check_fitted_whole(estimator.estimator)
    elif parts := inner_steps(estimator):
        for _, part in parts:
            check_fitted_whole(part)
    else:
        check_fitted_once(estimator)


def planned_fit(part, with_groups=False):
    """Return the public ledger line of one fit of a private estimator, before it happens."""
    plan = part.plan() if hasattr(part, "planned_losses") else None
    losses, sessions = (plan.losses, plan.sessions) if plan else _planned_losses(part)
    meaning, seeded = meaning_of(part, with_groups), part.random_state is not None
    return LedgerFit(type(part).__name__, *meaning, losses, seeded, sessions=sessions)


def _planned_losses(part):
    """Return the losses that one fit spends at most, and how many samplers draw its noise.

    If the shape of X or the first releases decide whether a fit is Gaussian or pure, or if it draws
    random sketches, these are the losses of any (epsilon, delta)-DP mechanism. Inside a ledger they
    are those of a Gaussian fit, and a fit that turns out to be of another kind is refused.
    """
    kinds = part._budget_kinds()
    delta = 0.0 if kinds == ("pure",) else part.delta
    alone = not any(around())
    budget = PrivacyBudget(part.epsilon, delta, split=alone and part._splits_budget)
    if alone and kinds not in (("gaussian",), ("pure",)) and budget.delta and not budget.exact:
        return (Loss("pure", budget.epsilon), Loss("delta", budget.delta)), 1
    return budget_losses(budget), budget.copies


def meaning_of(part, with_groups):
    """Return the privacy unit and the adjacency of a private estimator's fit."""
    unit = getattr(part, "privacy_unit", "row")
    if with_groups and hasattr(part, "require_groups"):  # its unit depends on `groups` in fit
        unit = "group"
    return unit_name(unit, bound_of(part)), part.adjacency


def weights_of(parts):
    """Return the fraction of a run's budget for each part, in proportion to their own budgets."""
    spent = [planned_fit(part).losses for part in parts]
    sizes = [
        math.fsum(value**2 if kind == "gaussian" else value for kind, value in losses)
        for losses in spent
    ]
    if len(parts) == 1 or not all(0 < size < math.inf for size in sizes):
        return [1 / len(parts)] * len(parts)
    return [size / math.fsum(sizes) for size in sizes]


@cache
def budget_for(kind, value, delta):
    """Return (epsilon, delta) of a fit that spends at most a given mu, or a given epsilon.

    The noise of a Gaussian fit depends on mu alone, so any (epsilon, delta) with this mu will do.
    """
    if kind == "pure" or value == math.inf:
        return value, delta
    while True:
        epsilon = accounting.epsilon_from_mu_delta(value, delta)
        if epsilon > min(1e-6, value):  # the rounding of a smaller epsilon would matter
            break
        delta /= 16
    while PrivacyBudget(epsilon, delta).mu > value:
        epsilon *= 1 - 1e-12
    return epsilon, delta


def set_budget(parts, kind, value, delta):
    """Set the budgets of the parts of a run, in proportion to the budgets that they had."""
    for part, weight in zip(parts, weights_of(parts), strict=True):
        size = value * (math.sqrt(weight) if kind == "gaussian" else weight) * (1 - 1e-9)
        epsilon, own_delta = budget_for(kind, size, delta)
        part.set_params(epsilon=epsilon, delta=own_delta)


def candidate_of(estimator, params):
    """Return a clone of an estimator with the parameters of one candidate."""
    return clone(estimator).set_params(**{k: clone(v, safe=False) for k, v in params.items()})


# What a search of scikit-learn spends with private estimators: computed before it starts.


_HEAD = ("candidate", "one fit")


@dataclass(frozen=True, repr=False)
class SearchCost:
    """What a search or a cross-validation spends.

    Attributes
    ----------
    name : str
        Name of the search, or of the estimator.
    candidates : tuple of (params, losses)
        Each candidate, and what one fit of it spends.
    n_splits : int
        Number of training sets.
    held, scored : int
        Largest numbers of training sets and of test sets that hold one unit.
    refit : bool
        Whether the best candidate is fitted once more, on everything.
    exact_scores : bool
        Whether a scorer has no privacy: scores, and the choice made by them, are then not covered.
    losses : tuple of Loss
        Losses of all fits and private scores, for composition.
    unit, adjacency : str
        What is protected.
    seeded : bool
        Whether noise is reproducible.
    fits, refits : tuple
        Every fit and score, and the fits of each candidate, one of which is made again.
    """

    name: str
    candidates: tuple
    n_splits: int
    held: int
    scored: int
    refit: bool
    exact_scores: bool
    losses: tuple[Loss, ...]
    unit: str
    adjacency: str
    seeded: bool
    fits: tuple[LedgerFit, ...] = ()
    refits: tuple[tuple[LedgerFit, ...], ...] = ()

    def epsilon(self, delta=USUAL_DELTA):
        """Return the epsilon of everything together, at a delta.

        Parameters
        ----------
        delta : float, default=1e-6
            In [0, 1).

        Returns
        -------
        float
        """
        return self._spent.epsilon_at(delta)

    @property
    def mu(self):
        """Gaussian-DP parameter, or None unless all parts are Gaussian."""
        return self._spent.mu

    @property
    def _sessions(self):
        return sum(fit.sessions for fits in (self.fits, *self.refits) for fit in fits)

    @property
    def _spent(self):
        """All losses as a receipt, whose epsilon covers the samplers of Gaussian noise."""
        distance = self._sessions * SAMPLER_DISTANCE
        distance *= any(kind == "gaussian" for kind, _ in self.losses)
        return PrivacySpent(0.0, 0.0, self.losses, self.adjacency, self.unit, self.seeded, distance)

    def _candidates(self):
        for params, losses in self.candidates:
            yield str(params), accounting.as_text(losses)

    def table(self):
        """Return the candidates and what one fit of each spends, as aligned text."""
        return "\n".join(aligned([_HEAD, *self._candidates()]))

    def _totals(self):
        scores = (
            "exact: neither they nor the choice are covered" if self.exact_scores else "private"
        )
        return (
            f"{self.name}: {len(self.candidates)} candidate(s), {self.n_splits} splits",
            f"one {self.unit} ({self.adjacency}) is in {self.held} training sets of each candidate",
            f"refit: {'one fit of the most expensive' if self.refit else 'none'}; scores: {scores}",
            self._total(),
        )

    def _total(self):
        """Return the total epsilon as text, at the first of two deltas at which it is finite."""
        said = f"total: epsilon={self.epsilon():.4g} at delta={USUAL_DELTA:.4g}"
        if self.mu is not None:
            return f"{said} (mu={self.mu:.4g})"
        added = math.fsum(value for kind, value in self.losses if kind == "delta") + USUAL_DELTA
        beyond = self.epsilon(added) if added < 1 else math.inf
        if not math.isinf(self.epsilon()) or math.isinf(beyond):
            return said
        return (
            f"total: epsilon={beyond:.4g} at delta={added:.4g} (deltas of fits add up: no epsilon "
            f"holds at {USUAL_DELTA:.4g}; use a smaller 'delta' for each)"
        )

    def __str__(self):
        return "\n".join([self.table(), *self._totals()])

    __repr__ = __str__

    def _repr_html_(self):
        lines = "".join(f"<p>{html.escape(line)}</p>" for line in self._totals())
        return html_table(self._candidates(), _HEAD) + lines


def search_cost(
    search: Any, n_samples: Any = None, groups: Any = None, *, cv: Any = None, scoring: Any = None
) -> Any:
    """State what a search or a cross-validation spends, before data are read.

    With t the largest number of training sets that hold one unit and mu_c what a fit of candidate
    c spends, everything together is mu-GDP for ``mu^2 = t sum_c mu_c^2 + max_c mu_c^2``, the last
    term for the refit. (Given all other rows, a fit whose training set lacks the unit is the same
    for neighbours.) A private scorer adds its own loss for each test set that holds the unit. For
    K folds t is K - 1, for ShuffleSplit it is K.

    Parameters
    ----------
    search : GridSearchCV, RandomizedSearchCV or estimator
        A search that is not fitted; or an estimator, for ``cross_validate(estimator, cv=cv)``.
    n_samples : int, default=None
        Number of rows, if it is public; otherwise ignored.
    groups : array-like, default=None
        Users of the rows, for the unit "group": their labels are taken to be public.
    cv, scoring : object, default=None
        For an estimator: as in `~sklearn.model_selection.cross_validate`.

    Returns
    -------
    cost : SearchCost
        ``cost.epsilon(delta)``, ``cost.losses``, ``print(cost)``.

    Raises
    ------
    PrivacyError
        If one unit can move others between folds: under ``adjacency="add_remove"`` use
        `IndependentKFold`.

    Examples
    --------
    >>> from sklearn.model_selection import GridSearchCV
    >>> from skdp import DPPCA
    >>> from skdp.model_selection import IndependentKFold, search_cost
    >>> pca = DPPCA(clip_norm=1.0, epsilon=0.5)
    >>> search = GridSearchCV(pca, {"n_components": [1, 2, 3]}, cv=IndependentKFold(4))
    >>> search_cost(search, n_samples=1000)
    candidate            one fit
    {'n_components': 1}  mu=0.1241
    {'n_components': 2}  mu=0.1241
    {'n_components': 3}  mu=0.1241
    GridSearchCV: 3 candidate(s), 4 splits
    one row (add_remove) is in 3 training sets of each candidate
    refit: one fit of the most expensive; scores: exact: neither they nor the choice are covered
    total: epsilon=1.729 at delta=1e-06 (mu=0.3925)
    """
    counted, estimator = is_search(search), search
    if hasattr(search, "cv") and not counted and not hasattr(search, "planned_losses"):
        raise PrivacyError(
            f"the privacy cost of {type(search).__name__} is unknown: it selects by exact scores, "
            "or its folds depend on other rows. Use DPGridSearchCV."
        )
    if counted:
        if not (cv is None and scoring is None):
            raise ValueError("'cv' and 'scoring' are for estimators; a search has its own.")
        estimator, cv, scoring = search.estimator, search.cv, search.scoring
    if not dp_parts(estimator):
        raise ValueError(f"there is no private estimator in {estimator!r}: it has no finite cost.")
    candidates = _candidates(search) if counted else [{}]
    plans = [_planned(estimator, params, groups is not None) for params in candidates]
    kinds = {(fit.unit, fit.adjacency) for plan in plans for fit in plan}
    if len(kinds) > 1:
        raise PrivacyError(f"guarantees for different units do not compose. Got {kinds}")
    ((unit, adjacency),) = kinds
    splitter = resolved_splitter(cv, estimator)
    held, scored = sets_of(splitter, n_samples, groups, unit, adjacency)
    n_splits = getattr(splitter, "n_splits", None)  # without the number of rows
    if n_splits is None:
        n_splits = splitter.get_n_splits([0] * int(n_samples), None, groups)
    scorers, lines = _scorers(scoring), []
    for scorer in scorers:
        if isinstance(scorer, PrivateScorer):
            scorer.check_meaning(unit, adjacency)
            seeded = scorer.random_state is not None
            spent = scorer.private_losses
            lines.append(LedgerFit("PrivateScorer", unit, adjacency, spent, seeded))
    refit = bool(counted and search.refit)
    training = bool(counted and search.return_train_score)
    one_fit = [accounting.compose(loss for fit in plan for loss in fit.losses) for plan in plans]
    score = [loss for line in lines for loss in line.losses]
    losses = [loss for spent in one_fit for loss in spent * held]
    losses += score * ((scored + held * training) * len(plans))
    losses += _dearest(one_fit) if refit else ()
    fits = [fit for plan in plans for fit in [*plan, *lines * (1 + training)] * n_splits]
    return SearchCost(
        name=type(search).__name__,
        candidates=tuple(zip(candidates, one_fit, strict=True)),
        n_splits=n_splits,
        held=held,
        scored=scored,
        refit=refit,
        exact_scores=len(lines) < len(scorers),
        losses=accounting.compose(losses),
        unit=unit,
        adjacency=adjacency,
        seeded=any(fit.seeded for fit in fits),
        fits=tuple(fits),
        refits=tuple(map(tuple, plans)) if refit else (),
    )


def is_search(object_):
    """Whether this is a search whose fits are known beforehand, and no subclass of one."""
    return type(object_) in (model_selection.GridSearchCV, model_selection.RandomizedSearchCV)


def _dearest(spent):
    """Return losses that dominate those of any one candidate, part by part."""
    out = []
    for kind in accounting.KINDS:
        sizes = [sorted((v for k, v in losses if k == kind), reverse=True) for losses in spent]
        longest = max(map(len, sizes))
        padded = [values + [0.0] * (longest - len(values)) for values in sizes]
        out += [Loss(kind, max(values)) for values in zip(*padded, strict=True)]
    return out


def _candidates(search):
    """Return the candidates of a search, which draws the same ones when it runs."""
    if isinstance(search, model_selection.GridSearchCV):
        return list(model_selection.ParameterGrid(search.param_grid))
    if not isinstance(search.random_state, int):
        raise PrivacyError(
            "the search draws its candidates when it runs: its cost is not known before. "
            "Give it an int as 'random_state' (it draws no noise)."
        )
    drawn = search.param_distributions, search.n_iter
    return list(model_selection.ParameterSampler(*drawn, random_state=search.random_state))


def _planned(estimator, params, with_groups):
    candidate = candidate_of(estimator, params)
    check_fitted_once(candidate)
    return [planned_fit(part, with_groups) for part in dp_parts(candidate)]


def _scorers(scoring):
    if isinstance(scoring, dict):
        return list(scoring.values())
    return list(scoring) if isinstance(scoring, list | tuple) else [scoring]


# What `PrivacyLedger.charge` charges: searches, cross-validations, and clones fitted whole.


def payment_for(
    fitted, n_samples=None, *, groups=None, cv=None, scoring=None, assume_all_rows=False
):
    """Return the charge for an object that clones private estimators, or refuse."""
    if not is_search(fitted) and cv is None:
        if scoring is not None:
            raise ValueError("'scoring' needs 'cv': both as given to cross_validate.")
        return _whole_fits(fitted, assume_all_rows)
    if assume_all_rows:
        raise ValueError("'assume_all_rows' is for a private estimator without 'cv'.")
    cost = search_cost(fitted, n_samples, groups, cv=cv, scoring=scoring)
    if cost.exact_scores and is_search(fitted):
        raise PrivacyError(
            f"{type(fitted).__name__} selects by exact scores: its choice has no finite epsilon. "
            "Use DPGridSearchCV, or scoring=make_private_scorer(...)."
        )
    if is_search(fitted):
        name = f"{type(fitted).__name__} ({len(cost.candidates)} candidates)"
        steps = [value for params, _ in cost.candidates for value in params.values()]
        private, scoring = [fitted.estimator, *steps], fitted.scoring
    else:
        stated = "folds as you stated" + "; exact scores are not covered" * cost.exact_scores
        name, private = f"cross-validation of {type(fitted).__name__} ({stated})", [fitted]
    parts = [part for each in private for part in dp_parts(each)]
    parts += [scorer for scorer in _scorers(scoring) if isinstance(scorer, PrivateScorer)]
    meaning = cost.unit, cost.adjacency, cost.losses, cost.seeded
    fit = LedgerFit(name, *meaning, sessions=cost._sessions)
    payment = Payment(tuple(parts), fit, cost.fits, cost.refits)
    if not is_search(fitted):  # a function: whether it is called, and how often, is not known
        return payment

    def changed(args, kwargs):
        """Count again, for the rows and groups of the call: all of them are public."""
        rows = args[0] if args else kwargs.get("X")
        shape = (len(rows),) if isinstance(rows, list | tuple) else np.shape(rows)
        n = shape[0] if shape else None  # of what has no rows
        again = payment_for(fitted, n, groups=kwargs.get("groups"))
        same = (again.fit, again.fits, again.refits) == (fit, cost.fits, cost.refits)
        return "" if same else _CHANGED

    return payment._replace(caller=fitted, changed=changed)


_CHANGED = (
    "changed after it was charged, or is fitted to another number of rows, or with other 'groups'."
    " Charge what you fit: ledger.charge(search, n_samples=len(X), groups=groups)."
)


def _whole_fits(fitted, assume_all_rows):
    """Return the payment for clones that get all rows, if that is known or the caller says so."""
    parts = tuple(dp_parts(fitted))
    if not parts:
        raise ValueError(f"there is no private estimator in {fitted!r}: nothing is charged.")
    if parts[0] is not fitted:
        if assume_all_rows:
            raise ValueError("'assume_all_rows' is for a private estimator itself.")
        check_fitted_whole(fitted)
        return Payment(parts, caller=fitted, changed=lambda *_: check_fitted_whole(fitted))
    if assume_all_rows:
        return Payment(parts)
    name = type(fitted).__name__
    raise PrivacyError(
        f"it is not known who fits clones of {name}, on which rows, and how scores are used. "
        "Charge the object that fits them: ledger.charge(search), or ledger.charge(estimator, "
        "cv=cv) for cross_validate. If you know that each clone receives all rows unchanged, and "
        "that no exact score decides, state it: ledger.charge(estimator, assume_all_rows=True). "
        "The ledger and the receipts then quote your statement."
    )


COUNTERS.append(payment_for)

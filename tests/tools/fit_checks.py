"""Checks of receipts, entropy, budgets, state, pickling, company, storage, order of rows."""

import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import joblib
import numpy as np
import scipy.sparse as sp
from joblib import parallel_config
from sklearn import config_context
from sklearn.base import BaseEstimator, clone
from sklearn.utils import get_tags

from skdp.data import blocks
from skdp.exceptions import PrivacyWarning
from skdp.model_selection._cost import dp_parts
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.gate.bounds import Bounded
from skdp.testing._transcripts import (
    change,
    fixed_noise,
    fresh,
    record_transcript,
    replaced,
    replay_answers,
)
from skdp.testing.audit import FitData
from skdp.testing.sensitivity import _Attack
from skdp.units import bound_of, unit_of
from tools.calibration import SIX_SIGMA, check_calibration, cosine_pvalue
from tools.data import STORED, null_release_data, settings_of
from tools.null_checks import not_private, skip
from tools.outcomes import difference, documented_attributes, fitted_attributes, outcome
from tools.pairs import audits

_SLACK = 1 + 1e-6
_LARGE_EPSILON = 30.0  # beyond it one release has all the noise that it needs at less
BAD_EPSILONS = (math.nan, 0, 0.0, -1, -math.inf, True, "1", None, [1.0])
BAD_DELTAS = (math.nan, -1, -1e-9, 1, 1.5, math.inf, True, "0", None)


def ordinary(estimator) -> FitData:
    """Return ordinary dense data for this estimator."""
    return null_release_data(estimator)["dense"]["ordinary"]


def _fitted(estimator, data=None, **params):
    """Fit a clone that draws private noise; what warnings show is for `check_null_release`."""
    with warnings.catch_warnings(action="ignore"):
        return (ordinary(estimator) if data is None else data).fit(fresh(estimator, **params))


def _results(estimator):
    """Return the fitted arrays and numbers, those of a fitted inner estimator too."""
    kept = fitted_attributes(estimator)
    results = {name: v for name, v in kept.items() if isinstance(v, np.ndarray | float)}
    for name, inner in kept.items():
        if isinstance(inner, BaseEstimator):
            results |= {f"{name}.{key}": v for key, v in _results(inner).items()}
    return results


def check_receipt(name, estimator):
    """The ledger adds up to the receipt, and the receipt to the budget, no more and no less.

    Each line's noise is at least what its loss needs for its sensitivity; each opening of the gate
    has one line and one reading. The lines of a search pay for whole runs, of which none spends
    more than the plan says.
    """
    with record_transcript() as transcript:
        fitted = _fitted(estimator)
    spent, ledger = fitted.privacy_spent_, fitted.releases_
    if transcript.faults:
        raise AssertionError(f"{name}: {transcript.faults}")
    if hasattr(fitted, "best_estimator_"):
        _check_runs(name, fitted, transcript)
    else:
        read = [line for line in ledger if line.mechanism != "charged, nothing released"]
        if len(transcript) != len(read):
            raise AssertionError(f"{name}: {len(read)} ledger lines, {len(transcript)} openings")
    losses = accounting.compose(line.loss for line in ledger)
    either = ("pure", fitted.epsilon), ("delta", fitted.delta)  # first answers chose the kind
    if spent.losses != either and not _same_losses(losses, spent.losses):
        raise AssertionError(f"{name}: the ledger has {losses}, the receipt {spent.losses}")
    if spent.epsilon > fitted.epsilon or spent.delta > fitted.delta:
        raise AssertionError(f"{name}: {spent} exceeds the budget")
    printed = getattr(estimator, "calibration", "") == "printed"  # constants that waste
    if not printed and spent.epsilon * _SLACK < min(fitted.epsilon, _LARGE_EPSILON):
        raise AssertionError(f"{name}: {spent} leaves a part of the budget")
    if (spent.unit, spent.adjacency) != settings_of(estimator)[:2]:
        raise AssertionError(f"{name}: the receipt is for {spent.unit} {spent.adjacency}")
    if not_private(estimator):
        return
    needed = accounting.delta_from_losses(losses, spent.epsilon * _SLACK)
    if needed > spent.delta * _SLACK:
        raise AssertionError(f"{name}: the ledger costs delta = {needed}, the receipt says {spent}")
    for line in ledger:
        if line.noise_scale * _SLACK < _needed_noise(line):
            raise AssertionError(f"{name}: too little noise for its loss: {line}")


def _check_runs(name, search, transcript):
    """Each run of a search, fits and score, spends at most what its plan gives to a run."""
    limit, per_run = search.selection_plan_.run, len(dp_parts(search.estimator)) + 1
    runs = {}
    for opening in transcript:
        runs.setdefault(opening.session // per_run, []).append(opening.loss)
    if search.selection_plan_.strategy == "compose" and len(runs) != len(search.releases_):
        raise AssertionError(f"{name}: {len(search.releases_)} lines, {len(runs)} runs")
    for number, losses in runs.items():
        spent = accounting.compose(losses)
        if [loss.kind for loss in spent] != [limit.kind] or spent[0].value > limit.value * _SLACK:
            raise AssertionError(f"{name}: run {number} spends {spent}, its plan says {limit}")


def _same_losses(first, second):
    """Whether losses are equal up to rounding: a receipt snaps to the budget."""
    if [loss.kind for loss in first] != [loss.kind for loss in second]:
        return False
    pairs = zip(first, second, strict=True)
    return all(a == b or math.isclose(float(a.value), float(b.value)) for a, b in pairs)


def _needed_noise(line):
    """Return the noise scale that a ledger line needs for its loss."""
    if line.loss.value == 0 or line.sensitivity == 0:
        return 0.0
    loss = float(line.loss.value)
    if line.mechanism == "randomised response":  # flips with probability 1/(1 + e^(loss / cells))
        return 0.5 / math.sinh(loss / line.sensitivity / 2)
    factor = math.sqrt(2.0) if line.loss.kind == "pure" else 1.0
    return factor * line.sensitivity / loss


def check_noise_calibration(name, estimator):
    """The noise of what becomes public has the claimed scale, in all columns; none is reused."""
    if not_private(estimator):
        return skip("epsilon is infinite")
    check_calibration(estimator, ordinary(estimator))
    return None


def check_worst_case_pair(name, estimator):
    """Hostile neighbours, each of them, change no release by more than its receipt claims."""
    if not_private(estimator):
        return skip("epsilon is infinite")
    found = [report.check() for _, report in audits(estimator)]
    if not found:
        raise AssertionError(f"{name}: no pair of data to compare")
    return None


def check_system_entropy(name, estimator):
    """Fits with random_state=None differ, whatever numpy's global state is, and leave it alone."""
    if not_private(estimator):
        return skip("epsilon is infinite")
    state = np.random.get_state()
    fits = []
    for _ in range(2):
        np.random.set_state(state)
        fits.append(_fitted(estimator))
        if difference(state, np.random.get_state()):
            raise AssertionError(f"{name} uses numpy's global random state")
    if difference(_results(fits[0]), _results(fits[1])) is None:
        raise AssertionError(f"{name}: two fits with random_state=None are the same")
    if any(fit.privacy_spent_.seeded for fit in fits):
        raise AssertionError(f"{name}: random_state=None is flagged as seeded")
    return None


def _seeded(estimator, **params):
    with record_transcript() as transcript, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = ordinary(estimator).fit(clone(estimator).set_params(random_state=7, **params))
    warned = any(issubclass(w.category, PrivacyWarning) for w in caught)
    return fitted, transcript, warned


def check_seeded_noise(name, estimator):
    """A seed makes noise reproducible: it warns, the receipt is flagged, budgets share no noise."""
    if not_private(estimator):
        return skip("epsilon is infinite")
    first, transcript, warned = _seeded(estimator)
    again, _, _ = _seeded(estimator)
    if not warned or not first.privacy_spent_.seeded:
        raise AssertionError(f"{name}: a seeded fit must warn PrivacyWarning and be flagged")
    if difference(_results(first), _results(again)):
        raise AssertionError(f"{name}: two fits with the same seed differ")
    _, other, _ = _seeded(estimator, epsilon=2.5 * estimator.epsilon)
    for a, b in zip(transcript, other, strict=False):  # how many may depend on the budget
        if a.total is None or b.total is None:
            continue
        size = min(a.exact.size, b.exact.size)
        x, y = np.ravel(a.residual())[:size], np.ravel(b.residual())[:size]
        if np.allclose(x, y, rtol=1e-6) or (x.size >= 8 and cosine_pvalue(x, y) < SIX_SIGMA):
            raise AssertionError(
                f"{name}: one seed gives the same noise at two budgets ({a.bound.name}); the "
                "difference of two fits would show exact data"
            )
    return None


def check_bad_budgets(name, estimator):
    """Bad epsilon and delta are refused, also where scikit-learn's own checks are switched off."""
    data = ordinary(estimator)
    bad = [("epsilon", v) for v in BAD_EPSILONS] + [("delta", v) for v in BAD_DELTAS]
    for switched_off in (False, True):
        for parameter, value in bad:
            with (
                config_context(skip_parameter_validation=switched_off),
                record_transcript() as transcript,
            ):
                subject = fresh(estimator, **{parameter: value})
                failure = outcome(subject, data).exception
            if failure is None or not failure.startswith(("ValueError", "TypeError")):
                raise AssertionError(f"{name}: {parameter}={value!r} is not refused: {failure!r}")
            if len(transcript) or fitted_attributes(subject):
                raise AssertionError(f"{name}: {parameter}={value!r} is refused too late")


def check_documented_attributes(name, estimator):
    """What fit puts on the estimator stands in the "Attributes" section of its docstring.

    scikit-learn's HTML display prints every public attribute; hidden ones get pickled.
    """
    documented = documented_attributes(type(estimator))
    for family, data in null_release_data(estimator).items():
        extra = set(fitted_attributes(_fitted(estimator, data["ordinary"]))) - documented
        if extra:
            raise AssertionError(f"{name} fitted on {family} data has undocumented {sorted(extra)}")


def check_pickle_and_clone(name, estimator):
    """A pickle holds the same public values; a clone holds none, and no trace of a fit."""
    fitted = _fitted(estimator)
    with warnings.catch_warnings(action="ignore"):  # what holds private heads says so
        copy = pickle.loads(pickle.dumps(fitted))
    found = difference(fitted_attributes(fitted), fitted_attributes(copy))
    if found:
        raise AssertionError(f"{name}: a pickled copy differs: {found}")
    bare = clone(fitted)
    if fitted_attributes(bare):
        raise AssertionError(f"{name}: a clone keeps {sorted(fitted_attributes(bare))}")
    for key, value in fitted.get_params(deep=False).items():
        if difference(value, bare.get_params(deep=False)[key]):
            raise AssertionError(f"{name}: fit or clone changes the parameter {key!r}")


def _fit_clone(estimator, data):
    return data.fit(clone(estimator))


def _fit_quietly(estimator, data):
    with warnings.catch_warnings(action="ignore"):
        return _fit_clone(estimator, data)


def _fits_side_by_side(backend, estimators, data):
    # threads share their filters: one that puts them back does so for all, in mid-fit
    fit = _fit_quietly if backend == "loky" else _fit_clone
    jobs = [joblib.delayed(fit)(estimator, data._replace(fit_params=dict(data.fit_params)))
            for estimator in estimators]  # fmt: skip
    with warnings.catch_warnings(action="ignore"):
        return joblib.Parallel(n_jobs=2, backend=backend)(jobs)


def check_joblib(name, estimator):
    """Fits in threads and in worker processes work, differ, and carry their receipts."""
    data, subject = ordinary(estimator), fresh(estimator)
    seeded = clone(estimator).set_params(random_state=3)
    here = _results(_fit_quietly(seeded, data))
    for backend in ("threading", "loky"):
        first, second, repeated = _fits_side_by_side(backend, (subject, subject, seeded), data)
        if not not_private(estimator) and not difference(_results(first), _results(second)):
            raise AssertionError(f"{name}: two {backend} workers draw the same noise")
        if difference(here, _results(repeated)):
            raise AssertionError(f"{name}: a seeded fit depends on the {backend} backend")
        if difference(first.privacy_spent_, second.privacy_spent_):
            raise AssertionError(f"{name}: receipts differ between {backend} workers")


def _inputs(X, sparse):
    yield "float64", X.copy()
    yield "float32", X.astype(np.float32)
    yield "column-major", np.asfortranarray(X)
    frozen = X.copy()
    frozen.flags.writeable = False
    yield "read-only", frozen
    if sparse:
        yield "csr", sp.csr_array(X)
        yield "csc", sp.csc_matrix(X)
        yield "csr float32", sp.csr_matrix(X.astype(np.float32))
        yield "csr with duplicates", STORED["duplicates"](X)


def _bytes(X):
    parts = (X.data, X.indices, X.indptr) if sp.issparse(X) else (X,)
    return [np.ascontiguousarray(part).tobytes() for part in parts]


def check_input_unmodified(name, estimator):
    """Fit never writes to X: dense, sparse, float32, column-major or read-only."""
    data = ordinary(estimator)
    params = {"copy": False} if "copy" in estimator.get_params(deep=False) else {}
    for form, X in _inputs(np.asarray(data.X), get_tags(estimator).input_tags.sparse):
        before = _bytes(X)
        _fitted(estimator, data._replace(X=X), **params)
        if _bytes(X) != before:
            raise AssertionError(f"{name} modifies its {form} input")


# In place of scales that are learnt.
_PUBLIC = {
    "clip_norm": 1.0,
    "entry_bounds": (-1.0, 1.0),
    "bounds": (-1.0, 1.0),
    "limits": [(-1.0, 1.0), (-1.0, 1.0)],
}
_SCALED = (*_PUBLIC, "gradient_clip_factor", "center", "sensitivity", "unit_bound", "value_cap")


def _scaled_params(estimator, factor):
    """Return the parameters in the unit of X times a factor; public ones for those learnt."""
    inner = getattr(estimator, "estimator", None)
    if inner is not None:
        return {f"estimator__{name}": v for name, v in _scaled_params(inner, factor).items()}
    out = {}
    bounded, clipped = hasattr(estimator, "unit_bound"), hasattr(estimator, "clip_norm")
    for name in _SCALED:
        value = getattr(estimator, name, None)
        if name == "unit_bound" and bounded:
            value = bound_of(estimator) or (None if clipped else 1.0)
        if name == "clip_norm" and bounded and not unit_of(estimator).reads_clip_norm:
            continue
        if isinstance(value, str):
            value = _PUBLIC.get(name)
        if value is None:
            continue
        out[name] = factor * np.asarray(value, float) if np.ndim(value) else factor * value
        if isinstance(value, tuple) and np.ndim(value) == 1:
            out[name] = tuple(float(v) for v in out[name])
    return out


def check_scaling(name, estimator):
    """fit(4 X, clip_norm=4 C) is fit(X, clip_norm=C) in other units: nothing has a hidden scale.

    The integers of the noise are the same in both fits; each attribute must be multiplied by one
    power of 4, the same for all its entries.
    """
    data = ordinary(estimator)
    if settings_of(estimator).unit == "interaction" or data.y is not None:
        return skip("no scale, or a target with a scale of its own")
    with fixed_noise(1, scale_free=True):
        one = _fitted(estimator, **_scaled_params(estimator, 1.0))
        four = _fitted(estimator, data._replace(X=4.0 * data.X), **_scaled_params(estimator, 4.0))
    small, large = _results(one), _results(four)
    for key, value in small.items():
        powers = [4.0**p * np.asarray(value, float) for p in range(-4, 5)]
        if key == "clip_norm_":
            powers = [4.0 * np.asarray(value)]
        if np.asarray(value).dtype.kind != "f" or not np.all(np.isfinite(value)):
            continue
        size = float(np.max(np.abs(large[key]), initial=1e-300))
        if not any(np.allclose(large[key], p, rtol=1e-6, atol=1e-9 * size) for p in powers):
            raise AssertionError(f"{name}: {key} does not scale with X: {value} and {large[key]}")
    if difference(one.privacy_spent_, four.privacy_spent_):
        raise AssertionError(f"{name}: the receipt depends on the scale")
    return None


# Checks that a unit's part in a release depends neither on its company nor on how it is stored.


_SEED = 20240401


def check_storage_form(name, estimator):
    """One CSR matrix gives one fit, bit by bit, however its entries are stored."""
    families = null_release_data(estimator)
    if "csr" not in families:
        return skip("takes no sparse input")
    data = families["csr"]["ordinary"]
    whole = data.X.toarray()
    with fixed_noise(_SEED):
        expected = outcome(fresh(estimator), data._replace(X=sp.csr_array(whole)))
        for form, store in STORED.items():
            seen = outcome(fresh(estimator), data._replace(X=store(whole)))
            found = difference(tuple(expected), tuple(seen))
            if found:
                raise AssertionError(f"{name}: the same matrix with {form} differs: {found}")
    return None


def _part(data, units, kept):
    """Return the rows of some units."""
    rows = np.isin(units, kept)
    take = {key: np.asarray(value)[rows] for key, value in data.fit_params.items()}
    y = None if data.y is None else np.asarray(data.y)[rows]
    return data._replace(X=data.X[rows], y=y, fit_params=take)


def _hostile(data, units):
    """Scale every third unit up and every fifth down: most of them are clipped, some by far."""
    X = np.array(data.X, np.float64)
    X[units % 3 == 0] *= 1e5
    X[units % 5 == 1] *= 1e-7
    y = data.y
    if y is not None and np.asarray(y).dtype.kind == "f":
        y = np.where(units % 4 == 1, 1e4, 1.0) * y
    return data._replace(X=X, y=y)


def check_company(name, estimator):
    """A unit adds the same integers in any company: no number of one unit reaches another's part.

    A fit on some of the units, and one on the others, are handed the answers of the fit on all:
    their exact answers add up to its exact answers, integer by integer (or up to the slack of a
    bound that says that sums are rounded too). Where neighbours replace a unit the number of units
    is public, and a fit on some of them does not ask the same questions.
    """
    settings = settings_of(estimator)
    if settings.unit not in ("row", "group") or settings.adjacency != "add_remove":
        return skip("the sum of two fits on parts is asked for rows and users that come and go")
    if not_private(estimator):
        return skip("epsilon is infinite: floats")
    data = null_release_data(estimator)["dense"]["ordinary"]
    groups = data.fit_params.get("groups")
    units = np.arange(settings.n_rows) if groups is None else np.asarray(groups)
    data = _hostile(data, units)
    with record_transcript() as whole:
        failure = outcome(fresh(estimator), data).exception
    parts = []
    for kept in (units[units % 2 == 0], units[units % 2 == 1]):
        with replay_answers(whole) as part:
            failure = failure or outcome(fresh(estimator), _part(data, units, kept)).exception
        parts.append(part)
    if failure:
        raise AssertionError(f"{name}: {failure}")
    for openings in zip(whole, *parts, strict=True):
        bound, (exact, some, others) = openings[0].bound, (opening.exact for opening in openings)
        rounding = bound.l2_slack if bound.l2_slack >= math.sqrt(bound.size) else 0.0
        if np.linalg.norm(change(exact, some + others)) > rounding:
            raise AssertionError(
                f"{name}: what a unit adds to {bound.name!r} depends on other units"
            )
    return None


def check_order_invariance(
    make_query: Callable[[Any], Any],
    release: str | Callable[..., Bounded],
    *public: Any,
    data: np.ndarray,
    mu: float = 0.3,
    permute: bool = True,
    seed: int = 0,
) -> None:
    """Check that integer answers are the same for every row order, block size, thread count.

    A float sum is not: one row more can then move all roundings, which no bound covers.

    Parameters
    ----------
    make_query : callable
        Matrix -> query object.
    release : str or callable
        As in `check_sensitivity`.
    *public : object
        Public arguments of the method.
    data : ndarray
        Rows, enough to fill several blocks of 16 rows.
    mu : float, default=0.3
        Budget that fixes the step.
    permute : bool, default=True
        Whether the statistic is a sum over rows (then their order cannot matter).
    seed : int, default=0
        Seed of the permutation.
    """
    attack = _Attack(make_query, release, public, (mu,))
    bound = attack.bounded(data).bound
    steps = [step for _, step, _ in attack.claims(bound)]

    def answers(X):
        return [attack.answer(attack.bounded(X), step) for step in steps]

    def same(other, what):
        if not all(np.array_equal(a, b) for a, b in zip(expected, other, strict=True)):
            raise AssertionError(f"{bound.name}: the exact answer depends on {what}")

    expected = answers(data)
    if permute:
        order = np.random.default_rng(seed).permutation(len(data))
        same(answers(data[order]), "the order of rows")
        same(answers(np.asfortranarray(data)[::-1]), "the order of rows or of memory")
    with replaced(blocks, "BLOCK", lambda _: 8):
        same(answers(data), "the size of a block")
    for n_jobs in (1, 2, 3):
        with parallel_config(backend="threading", n_jobs=n_jobs):
            same(answers(data), f"n_jobs={n_jobs}")
    small = replaced(blocks, "BLOCK", lambda _: 8)
    with small, parallel_config(backend="threading", n_jobs=2):
        same(answers(sp.csr_array(data)), "the format, block size or number of threads")

"""Checks that only released values can be seen: null releases, hostile rows, order of acts."""

import math
import warnings

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import SkipTestWarning
from sklearn.utils import get_tags

from skdp.exceptions import BudgetExceededError
from skdp.testing._transcripts import (
    change,
    fixed_noise,
    fresh,
    null_release,
    record_transcript,
    replay_answers,
)
from skdp.testing.audit import FitData
from skdp.units import unit_named
from tools.data import null_release_data, settings_of
from tools.outcomes import before_payment, difference, fitted_attributes, outcome

_SEED = 20240229
_LARGE = 1000.0  # an epsilon at which few rows go through all releases of a fit


def skip(reason):
    """Say that a check does not apply."""
    warnings.warn(reason, SkipTestWarning, stacklevel=3)


def not_private(estimator) -> bool:
    """Whether this instance adds no noise at all."""
    return getattr(estimator, "epsilon", 1.0) == math.inf


def _compare(name, family, estimator, reference, data, what):
    found = difference(tuple(reference), tuple(outcome(fresh(estimator), data)))
    if found:
        part = ("attributes", "warnings", "exception")[int(found[0])]
        raise AssertionError(
            f"{type(estimator).__name__} shows private data: with {what}, {family} data "
            f"'{name}' differ from 'ordinary' in {part}: {found[3:]}"
        )


def _some(data, every):
    """Return every second or third item of data sets, and all that differ in a number."""

    def sizes(item):
        return item.X.shape[0], len(np.unique(item.fit_params.get("groups", ())))

    usual, items = sizes(data["ordinary"]), list(data.items())
    return [one for i, one in enumerate(items) if i % every == 0 or sizes(one[1]) != usual]


def _recorded_fit(name, estimator, data, seed):
    """Fit on real answers: what is seen, and the answers."""
    with fixed_noise(seed), record_transcript() as transcript:
        seen = outcome(fresh(estimator), data)
    if seen.exception is not None:
        raise AssertionError(f"{name} fails on ordinary data: {seen.exception}")
    return seen, transcript


def _with_power(name, family, estimator, seen, data):
    """A fit that stops at its first answers, or shows no noise, would compare constants."""
    if any(
        line.mechanism == "charged, nothing released"
        for line in seen.attributes.get("releases_", ())
    ):
        raise AssertionError(
            f"{name} leaves releases out on {family} data: the null release check would not see "
            "them. Give this instance a larger budget, or its unit more data."
        )
    other = _recorded_fit(name, estimator, data, _SEED - 1)[0]
    # A search shows its arrays in the model that it found.
    shown = {k: v for k, v in seen.attributes.items() if isinstance(v, np.ndarray | BaseEstimator)}
    if not any(difference(value, other.attributes.get(key)) for key, value in shown.items()):
        raise AssertionError(f"{name}: no array depends on the noise; the check could not fail")


def check_null_release(name, estimator, every=1):
    """Fix the noise and the answers: contrasting data must look the same.

    Attributes, warnings and exceptions are compared bit by bit: those of a fit that runs no private
    code and gets zeros for answers with those of fits that run it on any data and throw its
    answers away; and those of `check_same_answers`. Whatever differs is seen by nobody's leave.
    The delta is just below one over the number of rows, or of users: an exact number would warn of
    one more. With `every` = 3, a third of the data sets have their answers thrown away, and all of
    another number of rows or users.
    """
    if not_private(estimator):
        return skip("epsilon is infinite")
    base = null_release_data(estimator)["dense"]["ordinary"]
    n = len(np.unique(base.fit_params.get("groups", np.arange(len(base.X)))))
    warned = fresh(estimator, **{"delta": 1 / (n + 0.5)} if getattr(estimator, "delta", 0) else {})
    for seed, (family, data) in enumerate(null_release_data(estimator).items(), _SEED):
        with fixed_noise(seed), null_release(run=False):
            reference = outcome(fresh(warned), data["ordinary"])
        if reference.exception is not None:
            raise AssertionError(f"{name} fails on ordinary data: {reference.exception}")
        for contrast, item in _some(data, every):
            with fixed_noise(seed), null_release(run=True):
                _compare(contrast, family, warned, reference, item, "answers thrown away")
    return check_same_answers(name, estimator)


def check_same_answers(name, estimator, every=1):
    """All get the answers of the ordinary data, with which a fit goes as far as it ever does."""
    for seed, (family, data) in enumerate(null_release_data(estimator).items(), _SEED):
        reference = _with_the_same_answers(name, family, estimator, data, seed, every)
        _with_power(name, family, estimator, reference, data["ordinary"])


def check_same_answers_at_large_budget(name, estimator):
    """At a small one, numbers below the noise are left at 0, whatever they come from."""
    if getattr(estimator, "calibration", "") == "printed":
        skip("the noise of a printed formula has a largest budget")
    large = fresh(estimator, epsilon=_LARGE)
    for seed, (family, data) in enumerate(null_release_data(large).items(), _SEED):
        _with_the_same_answers(name, family, large, data, seed)


def _with_the_same_answers(name, family, estimator, data, seed, every=1):
    reference, answers = _recorded_fit(name, estimator, data["ordinary"], seed)
    for contrast, item in _some(data, every)[1:]:  # the first are the ordinary ones
        with fixed_noise(seed), replay_answers(answers):
            _compare(contrast, family, estimator, reference, item, "the same answers")
    return reference


def check_null_release_can_fail(name, estimator):
    """The same data at a huge epsilon, with real answers, must look different."""
    strong = {} if not_private(estimator) else {"epsilon": 1e4}
    for family, data in null_release_data(estimator).items():
        reference = _model(estimator, data["ordinary"], strong)
        others = (_model(estimator, item, strong) for k, item in data.items() if k != "ordinary")
        if not any(difference(reference, other) for other in others):
            raise AssertionError(
                f"{name}: no {family} data set changes the fit, even with epsilon=1e4; the null "
                "release check could not fail"
            )


def _model(estimator, data, params):
    """Return what a fit under one fixed noise shows, its ledger aside."""
    with fixed_noise(_SEED):
        attributes = outcome(fresh(estimator, **params), data).attributes
    attributes.pop("releases_", None)
    return attributes


def check_bad_rows(name, estimator):
    """A row of NaN or inf under assume_finite contributes nothing, poisons nothing, shows nothing.

    With the noise fixed, fits must be finite, and the same whatever the bad values are.
    """
    settings = settings_of(estimator)
    if settings.unit != "row" or not_private(estimator):
        return skip("covered by the null release for this unit")
    base = null_release_data(estimator)["dense"]["ordinary"]
    rows = {bad: np.full(settings.n_features, float(bad)) for bad in ("NaN", "inf")}
    rows["one -inf"] = np.where(np.arange(settings.n_features) == 1, -np.inf, 3.0)
    rows["one NaN"] = np.where(np.arange(settings.n_features) == 0, np.nan, -1e12)
    reference = None
    with fixed_noise(_SEED):
        for bad, row in rows.items():
            X = np.array(base.X)
            X[len(X) // 2] = row
            seen = outcome(fresh(estimator), FitData(X, base.y, base.fit_params, True))
            if seen.exception:
                raise AssertionError(f"{name} with a {bad} row: {seen.exception}")
            for key, value in seen.attributes.items():
                floats = isinstance(value, np.ndarray) and value.dtype.kind == "f"
                if (floats or isinstance(value, float)) and not np.all(np.isfinite(value)):
                    raise AssertionError(f"{name} with a {bad} row: {key} is not finite")
            reference = seen if reference is None else reference
            found = difference(reference.attributes, seen.attributes)
            if found or seen.warnings != reference.warnings:
                raise AssertionError(f"{name}: a {bad} row can be told from a NaN row: {found}")
    return None


_MOVED = 1e-3  # noise scales; mu is 2.5e-6, and these data sets differ in a few dozen units
_ALIKE = ("ordinary", "zeros", "x1e6", "x1e-6", "empty", "star", "one row")


def _same_answers(name, key, first, second):
    """Two transcripts hold the same answers, up to a thousandth of their noise."""
    if [o.bound.name for o in first] != [o.bound.name for o in second]:
        raise AssertionError(f"{name} at a tiny epsilon: '{key}' data are asked other questions")
    for one, other in zip(first, second, strict=True):
        what = f"{name} at a tiny epsilon: {one.bound.name}"
        if one.bound.cells:  # cells are drawn anew, and their law is what hardly moves
            _half_flipped(what, one)
            continue
        if one.total is None:
            if one.value != other.value:
                raise AssertionError(f"{what} chooses otherwise on '{key}' data")
            continue
        moved = float(np.max(np.abs(change(one.total, other.total)), initial=0.0))
        if moved * one.step > _MOVED * one.noise_scale:
            raise AssertionError(
                f"{what} depends on X: on '{key}' data it moves by "
                f"{moved * one.step / one.noise_scale:.3g} of its noise"
            )


def _half_flipped(what, opening):
    """Half of the cells of an array are flipped: nothing is left of it."""
    rows, columns = opening.value.nonzero()
    places = rows.astype(np.int64) * opening.bound.shape[1] + columns
    size, flips = opening.bound.size, np.setxor1d(places, opening.exact).size
    if abs(flips - size / 2) > 3 * np.sqrt(size):  # six standard deviations
        raise AssertionError(f"{what} flips {flips} of {size} cells: it depends on X")


def check_tiny_epsilon(name, estimator):
    """With epsilon = 1e-9 the fit is the same for all data, up to what delta alone allows.

    The noise is fixed; delta = 1e-6 leaves mu = 2.5e-6 (pure fits get epsilon = 1e-5: with less
    their integers would not fit into 64 bits), so an answer about a few dozen rows moves
    by less than a thousandth of its noise. Whatever else can be seen is a function of the answers:
    a fit on other data that is handed the answers of the first must be the same, bit by bit.
    (Attributes of the two fits themselves are not compared: where noise makes two singular values
    nearly equal, a thousandth, or another processor's rounding, turns their vectors.)
    """
    if not_private(estimator) or unit_named(settings_of(estimator).unit).contract:
        return skip("epsilon is infinite, or the unit bounds no data set")
    pure = getattr(estimator, "delta", 0) == 0
    tiny = {"epsilon": 1e-5} if pure else {"epsilon": 1e-9, "delta": 1e-6}
    data = null_release_data(estimator)["dense"]
    with fixed_noise(_SEED, scale_free=True):
        with record_transcript() as first:
            reference = outcome(fresh(estimator, **tiny), data["ordinary"])
        if reference.exception is not None:
            raise AssertionError(f"{name} fails at a tiny epsilon: {reference.exception}")
        for key in (key for key in _ALIKE if key in data):
            with record_transcript() as second:
                outcome(fresh(estimator, **tiny), data[key])
            _same_answers(name, key, first, second)
            with replay_answers(first):
                seen = outcome(fresh(estimator, **tiny), data[key])
            found = difference(tuple(reference), tuple(seen))
            if found:
                raise AssertionError(
                    f"{name} at a tiny epsilon, given the same answers, depends on X ('{key}'): "
                    f"{found}"
                )
    return None


def _failing_read(count):
    def action(index):
        if index == count:
            raise BudgetExceededError("refused by skdp.testing")

    return action


def check_failed_fit(name, estimator):
    """A fit that fails anywhere leaves the estimator as it was: no attribute, no receipt.

    Each payment is refused in turn, on a new estimator and on a fitted one; so is a hostile X.
    """
    data = null_release_data(estimator)["dense"]["ordinary"]
    # One noise for all: how many payments there are may follow from what was released.
    with warnings.catch_warnings(), fixed_noise(_SEED), record_transcript() as transcript:
        warnings.simplefilter("ignore")
        fitted = data.fit(fresh(estimator))
    before = fitted_attributes(fitted)
    refusals = [(_failing_read(i), data) for i in range(min(len(transcript), 12))]
    hostile = (np.zeros(3), "rows", None, np.full((3, settings_of(estimator).n_features), np.nan))
    refusals += [(lambda index: None, data._replace(X=X)) for X in hostile]
    for action, item in refusals:
        for subject, state in ((fresh(estimator), {}), (fitted, before)):
            with before_payment(action), fixed_noise(_SEED), record_transcript() as seen:
                failure = outcome(subject, item).exception
            if failure is None:
                raise AssertionError(f"{name}: fit succeeds although refused, or on {item.X!r}")
            found = difference(state, fitted_attributes(subject))
            if found:
                raise AssertionError(f"{name}: a failed fit leaves a trace: {found}")
            if item is not data and len(seen):
                raise AssertionError(f"{name}: a fit on {item.X!r} released something")


def check_pays_first(name, estimator):
    """Nothing private is computed before it is paid for.

    The rows are overwritten in place at the first payment: the fit must be that of the new rows,
    bit by bit. An estimator that copies dense float64 rows before it pays does not pass.
    """
    if not_private(estimator) or get_tags(estimator).target_tags.required:
        return skip("needs noise, and no target")
    data = null_release_data(estimator)["dense"]
    early, late = data["ordinary"], data["ordinary"]
    late = late._replace(X=np.ascontiguousarray(0.5 * np.roll(late.X, 1, axis=1)))
    if settings_of(estimator).unit in ("edge", "interaction"):
        late = late._replace(X=np.zeros_like(late.X))
    moving = early._replace(X=np.array(early.X, np.float64, order="C"))

    def overwrite(index):
        if index == 0:
            moving.X[...] = late.X

    with fixed_noise(_SEED):
        expected = outcome(fresh(estimator), late)
        with before_payment(overwrite):
            seen = outcome(fresh(estimator), moving)
    found = difference(tuple(expected), tuple(seen))
    if found:
        raise AssertionError(f"{name}: private data were used before they were paid for: {found}")
    return None

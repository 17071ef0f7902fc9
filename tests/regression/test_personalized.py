"""DPPersonalizedRegressor and DPPersonalizedClassifier: guarantees, users, publication, utility."""

import math
import pickle
import tracemalloc
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn import config_context
from sklearn.base import clone
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skdp.data.units import UserRows
from skdp.exceptions import (
    NoSignalWarning,
    PartialSignalWarning,
    PrivacyError,
    PrivacyUnitWarning,
    PrivacyWarning,
    UtilityWarning,
)
from skdp.model_selection import WithinGroupKFold
from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.ledger.ledger import PrivacyLedger
from skdp.regression import DPPersonalizedClassifier, DPPersonalizedRegressor, _personalized_base
from skdp.regression._personalized_base import positions, within_bounds
from skdp.solvers.columns import FoundColumns
from skdp.solvers.local_fits import LOSSES, RidgePath
from skdp.solvers.personalization import PENALTIES, View, scaling_of
from skdp.solvers.scaling import Scaling
from skdp.solvers.user_heads import Heads
from skdp.testing import seeded_entropy
from tools.data import hostile_users
from tools.outcomes import assert_refused, refuses

# -- data ------------------------------------------------------------------------------------------


class Users:
    """x ~ N(0, 1), y = x' U v + noise; ten rows of each user."""

    def __init__(self, n, d=20, k=2, m=10, noise=0.5, seed=0):
        rng = np.random.default_rng(seed)
        self.n, self.d, self.m = n, d, m
        self.U = np.linalg.qr(rng.standard_normal((d, k)))[0]
        self.theta = rng.standard_normal((n, k)) @ self.U.T
        self.rows = rng.standard_normal((n, m, d))
        y = np.einsum("nmd,nd->nm", self.rows, self.theta) + noise * rng.standard_normal((n, m))
        self.X, self.y = self.rows.reshape(-1, d), y.ravel()
        self.groups = np.repeat(np.arange(n), m)
        self.all = (self.X, self.y, self.groups)

    def risk(self, theta, intercept=0.0):
        """Excess risk relative to the zero model."""
        change = np.sum((self.theta - theta) ** 2, axis=1) + np.square(intercept)
        return float(np.mean(change) / np.mean(np.sum(self.theta**2, axis=1)))

    def alone(self):
        """Risk of ridge on the user's own rows."""
        path, Y = RidgePath.of(self.rows), self.y.reshape(self.n, self.m, 1)
        best = PENALTIES[np.argmin(path.errors(Y, PENALTIES, 0.0), axis=1)]
        fit = path.fit(Y, 0 * Y, LOSSES["squared"], best, 0.0)
        return self.risk(path.coefficients(fit)[:, :, 0])

    def within(self, U):
        """Risk of ridge heads in a subspace."""
        path, Y = RidgePath.of(self.rows @ U), self.y.reshape(self.n, self.m, 1)
        fit = path.fit(Y, 0 * Y, LOSSES["squared"], np.full(self.n, 0.1), 0.0)
        return self.risk((path.coefficients(fit).swapaxes(1, 2) @ U.T)[:, 0])


# Few users, seeds and infinite budgets warn; tests of these warnings expect them.
EXPECTED = ".*no noise|.*random_state|.*lie far|.*could (not|use)|.*learnt nothing|.*classes from y"


def quiet(function, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", EXPECTED, UserWarning)
        return function(*args, **kwargs)


def risk_of(users, **params):
    model = quiet(DPPersonalizedRegressor(**params).fit, *users.all)
    heads = model._private["heads"]
    return users.risk(heads[:, : users.d], heads[:, users.d])


SMALL = Users(60, d=5, m=6, seed=3)


def seeded(cls=DPPersonalizedRegressor, data=SMALL.all, groups=True, **params):
    X, y, labels = data
    return quiet(cls(random_state=0, **params).fit, X, y, labels if groups else None)


# -- utility: fixed data and fixed noise, with room to spare ---------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize(
    ("n", "seeds", "intercept", "bound", "beside_alone"),
    [
        (50, 15, True, 2.0, 1.15),
        (200, 15, True, 2.0, 0.8), (300, 7, True, 0.30, 0.5),
        (1000, 9, True, 0.070, 0.11),
        (3000, 1, True, 0.065, 0.1),
        (300, 7, False, 0.22, 0.4),
        (3000, 3, False, 0.042, 0.1),
    ],
)  # fmt: skip
def test_risk_by_number_of_users(n, seeds, intercept, bound, beside_alone):
    """Also against users' own fits: hardly worse with too few users."""
    users = [Users(n, seed=s) for s in range(seeds)]
    risks = np.array([risk_of(each, fit_intercept=intercept) for each in users])
    assert np.median(risks) <= bound
    assert np.median(risks / [each.alone() for each in users]) <= beside_alone


@pytest.mark.thorough
def test_without_noise_it_is_nearly_as_good_as_the_true_subspace():
    users = Users(1500)
    assert risk_of(users, epsilon=math.inf) <= 1.2 * users.within(users.U)


@pytest.mark.thorough
def test_automatic_number_of_components():
    for k in (1, 3):
        users = Users(2000, d=15, k=k, m=15)
        assert quiet(DPPersonalizedRegressor("auto").fit, *users.all).n_components_ == k


@pytest.mark.deep
@pytest.mark.parametrize(
    "params",
    [
        {"head_selection": "per_user"},
        {"head_selection": "subspace", "adjacency": "replace"},
        {"loss": "huber", "whiten": False, "target_bounds": (-20, 20)},
    ],
)
def test_other_routes_learn_too(params):
    users = Users(1500, d=10)
    assert risk_of(users, **params) < 0.25 < users.alone()


# -- users of few rows, and the model of all -------------------------------------------------------


class Shops:
    """Users of 1 to 60 rows whose models lie about a common one, and targets far from 0."""

    def __init__(self, n, shift=150.0, common=1.0, apart=0.7, seed=0):
        rng = np.random.default_rng(seed)
        sizes = np.clip(np.exp(rng.normal(1.5, 1.2, n)), 1, 60).astype(int)
        held = np.repeat(5, n)
        self.groups = np.repeat(np.arange(n), sizes + held)
        place = np.concatenate([np.arange(size) for size in sizes + held])
        self.test = place < 5
        self.few = (sizes <= 3)[self.groups]
        self.X = rng.standard_normal((len(place), 5))
        U = np.linalg.qr(rng.standard_normal((5, 2)))[0]
        w = common / math.sqrt(5) + apart * rng.standard_normal((n, 2)) @ U.T
        level = shift + apart / 2 * rng.standard_normal(n)
        noise = rng.standard_normal(len(place))
        self.y = np.sum(self.X * w[self.groups], axis=1) + level[self.groups] + noise

    def losses(self, model, some=True):
        """Squares of the errors of (heads, model of all, mean of y) on rows that were held back."""
        held, kept = self.test & some, ~self.test
        model = quiet(model.fit, self.X[kept], self.y[kept], self.groups[kept])
        public = self.X[held] @ model.global_coef_ + model.global_intercept_
        own = model.predict(self.X[held], self.groups[held])
        guesses = own, public, self.y[kept].mean()
        return [float(np.mean((self.y[held] - guess) ** 2)) for guess in guesses]


@pytest.mark.deep
@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_heads_beat_the_model_of_all_and_that_beats_the_mean(unit):
    """Targets about 150 deviations from 0, columns of units 1/1000 to 1000."""
    shops = Shops(2000)
    shops.X, shops.y = shops.X * np.logspace(-3, 3, 5), unit * shops.y
    for few, least in (False, 0.93), (True, 1.03):  # rows of users with few rows, or of all
        some = shops.few if few else True
        fits = [shops.losses(DPPersonalizedRegressor(2), some) for _ in range(5)]
        own, public, mean = np.median(fits, axis=0)
        assert own < least * public and public < 0.85 * mean


@pytest.mark.thorough
def test_levels_of_users_are_not_taken_for_slopes(rng):
    """Columns and targets follow the level of the user, and rows of one user nothing else."""
    level = np.repeat(rng.standard_normal(400), 6)
    X, new = level[:, None] + rng.standard_normal((2, 2400, 4))
    users = np.repeat(np.arange(400), 6)
    model = seeded(data=(X, level, users), epsilon=10.0)
    assert model.global_model_found_
    assert model.score(new, level, groups=users) > 0.995  # by common slopes .98


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")  # at 150 +- 1
@pytest.mark.parametrize("common", [0.0, 1.0])
def test_users_who_do_not_differ_are_hardly_worse_than_the_model_of_all(common):
    own, public, mean = Shops(1500, common=common, apart=0.0).losses(DPPersonalizedRegressor(2))
    assert own < 1.05 * public < 1.05 * 1.02 * mean


@pytest.mark.deep
@pytest.mark.parametrize(("share", "code"), [(0.0005, 1e8), (0.01, -999.0)])
def test_codes_among_the_entries_do_not_spoil_heads(share, code, rng):
    """A value for "unknown", in rows of one user in twenty, of most, or all that a column has."""
    users = Users(1500, d=10)
    held = rng.random(len(users.y)) < 0.25
    X, y, groups = users.all
    X = np.where(rng.random(X.shape) < share, code, X)
    X = np.hstack([X, code * (rng.random((len(X), 2)) < 0.02)])
    model = quiet(DPPersonalizedRegressor(2).fit, X[~held], y[~held], groups[~held])
    assert r2_score(y[held], model.predict(X[held], groups[held])) > 0.4
    low, high = model.feature_bounds_
    assert (low > -100).all() and (high < 100).all()
    some, theirs = X[held][:50], groups[held][:50]
    folded = within_bounds(some, model.feature_bounds_)
    assert np.abs(folded).max() < 100
    for one in (model, quiet(model.public_copy)):
        expected = one.predict(folded, theirs)
        for rows in (some, sp.csr_array(some)):
            assert np.allclose(one.predict(rows, theirs), expected)


@pytest.mark.thorough
@pytest.mark.parametrize("far", [1.6e9, 30.0, 1e3])
def test_where_columns_lie_makes_no_difference(far):
    """A year, a height in millimetres, a time in seconds."""
    users = Users(1200, d=6, m=8)
    held = np.arange(len(users.y)) % 8 == 0
    size = max(1.0, 1e-3 * far)
    deviations = np.array([1, size, size, 1, 1, 20 * size])
    places = far * np.array([0, 1, -1, 0, 0, 1])
    X = users.X * deviations + places
    model = DPPersonalizedRegressor(2, epsilon=2.0)
    quiet(model.fit, X[~held], users.y[~held], users.groups[~held])
    assert r2_score(users.y[held], model.predict(X[held], users.groups[held])) > 0.6
    # 1.5 deviations from 0 either place will do.
    clear = (places == 0) | (np.abs(places) > 10 * deviations)
    assert np.abs(model.feature_center_ - places)[clear].max() < 0.5 * far


def test_a_column_without_a_limit_has_no_part_in_the_model_of_all(monkeypatch):
    """Its entries may be of any size, and are divided by the scale of the others."""
    limits, (X, y, groups) = np.array([64.0, math.inf]), Users(600, d=2).all
    free = lambda columns: scaling_of(columns)._replace(limit=limits)  # noqa: E731
    monkeypatch.setattr(_personalized_base.personalization, "scaling_of", free)
    model = quiet(DPPersonalizedRegressor(1, epsilon=10.0).fit, X, y + X.sum(axis=1), groups)
    assert model.global_coef_[0] != 0.0 == model.global_coef_[1]


def test_entries_beyond_their_bounds_are_folded():
    """Bounds on both sides of 0 leave zeros alone, others move them; duplicates are summed."""
    X = np.array([[0.0, 10.0, -50.0], [1.0, 0.0, 1e300]])
    parts = sp.csr_array((np.array([4.0, 6.0, -50.0, 1.0, 1e300]), [1, 1, 2, 0, 2], [0, 3, 5]))
    found = within_bounds(X, np.array([[-5.0] * 3, [5.0] * 3]))
    assert np.allclose(found, [[0, 2.5, -0.5], [1, 0, 0]])
    for bounds in (np.array([[-5.0] * 3, [5.0] * 3]), np.array([[-5, 1, -np.inf], [5, 5, np.inf]])):
        cut = within_bounds(parts, bounds)
        cut = cut.toarray() if sp.issparse(cut) else cut
        assert np.array_equal(cut, within_bounds(X, bounds)) and np.isfinite(cut).all()
    assert np.array_equal(parts.data, [4, 6, -50, 1, 1e300])
    assert X[1, 2] == 1e300


@pytest.mark.thorough
def test_one_row_is_no_head():
    """It moves the model of all by a public part of its error; without noise heads stay bounded."""
    shops = Shops(300)
    for epsilon in (2.0, math.inf):
        fit = DPPersonalizedRegressor(2, epsilon=epsilon).fit
        model = quiet(fit, shops.X, shops.y, shops.groups)
        single = model.adapt(shops.X[:1], shops.y[:1] + 1e6, [-1])
        rows = within_bounds(shops.X, model.feature_bounds_)
        expected = rows @ model.global_coef_ + model.global_intercept_
        parts = single.predict(shops.X, np.full(len(shops.X), -1)) - expected
        parts /= shops.y[0] + 1e6 - expected[0]
        assert np.ptp(parts) < 1e-9 and np.isclose(parts[0], [0, 1 / 11, 1 / 2]).any()
        assert np.abs(model._private["heads"][1:]).max() < 500


@pytest.mark.deep
@pytest.mark.parametrize("kind", [DPPersonalizedRegressor, DPPersonalizedClassifier])
def test_few_users_have_their_own_units_and_share_none(kind, monkeypatch, rng):
    """Places and scales of columns do not matter; what is released is not about own units."""
    users = np.repeat(np.arange(80), 16)
    X = rng.standard_normal((len(users), 5))
    y = np.sum(X * rng.standard_normal((80, 5))[users], axis=1)
    X, labels = X * [1e3, 1.0, 1e-2, 10.0, 0.1] + [2e3, 0.0, 5.0, 0.0, -1.0], kind._y_numeric
    y, held = y if labels else (y > 0).astype(int), np.arange(len(users)) % 4 == 0
    data = X[~held], y[~held], users[~held]
    model = seeded(kind, data)
    assert np.isinf(model.feature_bounds_).all()  # not one scale was found
    assert model.score(X[held], y[held], users[held]) > (0.7 if labels else 0.75)
    # Beyond three own deviations nothing is known: there predictions are those of the nearest row.
    ones, mine = np.arange(80), np.stack([X[~held][users[~held] == i] for i in range(80)])
    ends = mine.mean(axis=1) + np.multiply.outer([3, 9], mine.std(axis=1))
    near, far = (model._linear(rows, ones) for rows in ends)
    np.testing.assert_allclose(far, near, rtol=1e-9, atol=1e-9)
    with seeded_entropy(1):
        head = quiet(kind(epsilon=1.0).fit, *data).make_head().fit(mine[3], data[1][data[2] == 3])
    assert np.allclose(head.predict(ends[0, 3:4]), head.predict(ends[1, 3:4]))
    rules = _personalized_base.all_rules
    monkeypatch.setattr(_personalized_base, "all_rules", lambda *args: rules(*args[:2]))
    monkeypatch.setattr(kind, "_fitted_heads", lambda *_: None)
    common = seeded(kind, data)
    for name in ("components_", "whitening_", "global_coef_", "global_intercept_"):
        assert np.array_equal(getattr(common, name), getattr(model, name))
    assert common.head_rule_scores_ != model.head_rule_scores_  # votes are about what is fitted


@pytest.mark.deep
def test_users_have_own_units_unless_all_columns_have_shown_theirs():
    """The common scale of some columns is wrong for others: more budget loses nothing."""
    rng, users = np.random.default_rng(0), np.repeat(np.arange(30), 40)
    X, coef = rng.standard_normal((1200, 4)), rng.standard_normal((30, 4))[users]
    y = np.sum(X * coef, axis=1) + 0.3 * rng.standard_normal(1200)
    skewed, X, held = np.exp(1.5 * X), X * [1.0, 10.0, 1e2, 1e3], np.arange(1200) % 2 == 0
    # Next to common scales: a slope of some rows says nothing of an entry far beyond them.
    model = seeded(data=(skewed[~held], y[~held], users[~held]), epsilon=100.0)
    assert model.score(skewed[held], y[held], users[held]) > 0.4
    for most, end in (np.inf, np.inf), (3.0, 100.0):  # but many rows show whether it goes on
        targets = np.minimum(skewed, most).sum(axis=1)[~held]
        model = seeded(data=(skewed[~held], targets, users[~held] // 10), epsilon=100.0)
        assert (model._linear(np.full((1, 4), 1e4), np.zeros(1, int)) > 1e3) == (end > 1e3)
    model = seeded(DPPersonalizedRegressor, (X[~held], y[~held], users[~held]), epsilon=10.0)
    assert 0 < np.count_nonzero(np.isfinite(model.feature_bounds_[1])) < 4
    assert model.score(X[held], y[held], users[held]) > 0.9


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_the_published_model_of_few_users_predicts_their_level(rng):
    """The first search fails with 60 users; without a second one the median error is above 300."""
    users, X = np.repeat(np.arange(60), 5), rng.standard_normal((300, 4))
    y = 500 + 20 * rng.standard_normal(60)[users] + 5 * rng.standard_normal(300)
    model = DPPersonalizedRegressor(1, epsilon=1.0)
    levels = [model.fit(X, y, users).public_copy().predict(X).mean() for _ in range(11)]
    assert np.median(np.abs(np.subtract(levels, y.mean()))) < 60


def test_one_column_has_one_component(rng):
    users = np.repeat(np.arange(1000), 5)
    X = rng.standard_normal((5000, 1))
    model = seeded(data=(X, (1 + users % 3) * X[:, 0], users), n_components=2, epsilon=3.0)
    assert model.components_.shape == (1, 1)
    assert model.score(X, (1 + users % 3) * X[:, 0], groups=users) > 0.99


@pytest.mark.parametrize("d", [6, pytest.param(1, marks=pytest.mark.deep)])
def test_few_users_do_not_count_as_many_because_of_noise(d, monkeypatch, rng):
    """The noise of their number is known from that of the ranks released with it."""
    X, y, seen = rng.standard_normal((90, d)), 100 + rng.standard_normal(90), []
    noise_of = FoundColumns.count_noise
    monkeypatch.setattr(FoundColumns, "count_noise", lambda c: seen.append(noise_of(c)) or seen[-1])
    for seed in range(6):
        model = quiet(DPPersonalizedRegressor(1, random_state=seed).fit, X, y, np.arange(90) // 3)
        assert not model.target_scale_found_
    (line,) = (line for line in model.releases_ if line.name == "count")
    assert seen[-1] == pytest.approx(line.noise_scale, rel=0.05)


def test_predictions_stay_within_public_bounds():
    (X, _, users), bounds = SMALL.all, (-1.0, 1.5)
    found = seeded(target_bounds=bounds).predict(np.vstack([X, 1e6 * X]), np.tile(users, 2))
    assert (found.min(), found.max()) == bounds


@pytest.mark.deep
def test_a_public_copy_of_a_fit_that_does_not_see_the_targets_says_so():
    shops = Shops(40)
    with seeded_entropy(24):  # heads are of use: warnings are errors
        model = DPPersonalizedRegressor(1, epsilon=0.5).fit(shops.X, shops.y, shops.groups)
    with pytest.warns(PartialSignalWarning, match="the range of the targets: new users get a"):
        model.public_copy()


def test_a_public_copy_says_so_where_users_share_no_model_and_only_there():
    """Heads are as accurate; the published model predicts about the mean of the targets."""
    users, model = Users(600, d=6, m=8), DPPersonalizedRegressor(epsilon=3.0, target_bounds=(-9, 9))
    with seeded_entropy(4):
        model.fit(*users.all)
    assert model.score(users.X, users.y, users.groups) > 0.6 and not model.global_model_found_
    with pytest.warns(UtilityWarning, match="the mean of all users"):
        model.public_copy()
    with seeded_entropy(4):
        model.fit(users.X, users.y + users.X[:, 0], groups=users.groups)  # warnings are errors
    assert model.global_model_found_ and model.public_copy()


# -- adversarial users -----------------------------------------------------------------------------


def stacked(users, ids):
    X, y = np.vstack([x for x, _ in users]), np.concatenate([t for _, t in users])
    return X, y, np.repeat(ids, [len(x) for x, _ in users])


@pytest.mark.thorough
@pytest.mark.parametrize("params", [{}, {"loss": "huber", "head_selection": "per_user"}])
def test_adversarial_users_leave_all_values_finite(params):
    users = [(x, t[:, 0]) for x, t in hostile_users(SMALL.U)]
    users += [(SMALL.rows[i], SMALL.y[6 * i : 6 * i + 6]) for i in range(20)]
    X, y, ids = stacked(users, np.arange(len(users)))
    with config_context(assume_finite=True):
        model = quiet(DPPersonalizedRegressor(1, **params).fit, X, y, ids)
        finite = np.isfinite(X).all(axis=1) & (np.abs(X).max(axis=1) < 1e100)
        predicted = model.predict(X[finite], ids[finite])
    for name, value in vars(model).items():
        if isinstance(value, np.ndarray | float):
            assert np.isfinite(value).all() or name == "feature_bounds_", name
    heads = model._private["heads"]
    assert np.isfinite(heads).all() and np.isfinite(predicted).all()
    assert heads[-20:].any(axis=1).all()  # nobody else takes them away


def degenerate(d=4):
    """Users without information besides an intercept: equal targets, or equal rows."""
    rng = np.random.default_rng(12)
    for m in (2, 3, 7, 30):
        X, y = rng.standard_normal((m, d)), rng.standard_normal(m)
        yield X, np.full(m, y[0])
        yield np.tile(X[:1], (m, 1)), y
        yield np.tile(X[:1], (m, 1)) * 1e-9, y * 1e9


HUBER = {"loss": "huber", "head_selection": "per_user"}
WAYS = [{}, HUBER, {"fit_intercept": False, "whiten": False}]


@pytest.mark.thorough
@pytest.mark.parametrize("far", [0.0, 1e4])
@pytest.mark.parametrize("params", WAYS, ids=str)
def test_order_of_the_rows_of_a_user_changes_no_bit(params, far, monkeypatch, rng):
    if far:  # too few users for the fit to see it by itself
        scaling = Scaling(far * np.eye(4)[0], np.full(4, 2.0), np.full(4, 9.0))
        monkeypatch.setattr(_personalized_base.personalization, "scaling_of", lambda _: scaling)
    users = [*degenerate(), *((SMALL.rows[i, :, :4], SMALL.y[6 * i : 6 * i + 6]) for i in range(9))]
    X, y, ids = stacked(users, np.arange(len(users)))
    X[:, 0] += far
    expected = seeded(data=(X, y, ids), n_components=1, **params)
    for order in (np.arange(len(X))[::-1], rng.permutation(len(X))):
        found = seeded(data=(X[order], y[order], ids[order]), n_components=1, **params)
        for name in ("components_", "global_coef_", "eigenvalues_", "whitening_"):
            assert np.array_equal(getattr(found, name), getattr(expected, name)), name
        assert np.array_equal(found._private["heads"], expected._private["heads"])


@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "softmax"])
def test_users_without_information_on_a_direction_contribute_nothing(loss, rng):
    """Their votes would be unit vectors of rounding."""
    view = View(None, True, loss)

    def sent(X, y):
        Y = y[:, None]
        if view.loss.mean is not None:
            Y = np.eye(3)[(y > 0).astype(int)] if loss == "softmax" else (Y > 0).astype(float)
        return view.ridge(next(UserRows(X, Y, np.zeros(len(X), int), True).blocks()))

    assert not any(sent(X, y).any() for X, y in degenerate())
    assert sent(rng.standard_normal((9, 4)), np.linspace(-1, 1, 9)).any()


@pytest.mark.deep
def test_memory_grows_with_the_rows_of_a_user_not_with_their_square(rng):
    m = 40_000
    X, y = rng.standard_normal((m + 60, 3)), rng.standard_normal(m + 60)
    users = np.append(np.zeros(m, int), 1 + np.arange(60) // 6)
    tracemalloc.start()
    seeded(data=(X, y, users), n_components=1, head_selection="per_user")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 250 * 8 * m  # m^2 numbers are 40,000 * 8 * m bytes


def test_budget_split():
    split = {"targets": 60, "subspace": 1, "head": 1, "global": 1, "columns": 1}
    lines = seeded(budget_split=split).releases_
    even = [line for line in lines if line.name not in ("column_centered_ranks", "count")]
    assert len({round(line.loss.value, 9) for line in even}) == 1


# -- users -----------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_both_forms_of_users_are_the_same_fit():
    by_groups = seeded()
    X = np.insert(SMALL.X, 2, SMALL.groups, axis=1)
    frame = pd.DataFrame(SMALL.X, columns=list("abcde"))
    frame["who"] = [f"user {g:03d}" for g in SMALL.groups]
    for data, column in ((X, 2), (X, -4), (sp.csr_array(X), 2), (frame, "who"), (frame, 5)):
        model = seeded(data=(data, SMALL.y, None), group_column=column)
        assert np.allclose(model.components_, by_groups.components_) and model.n_features_in_ == 6
        assert np.allclose(model.predict(data), by_groups.predict(SMALL.X, SMALL.groups))
        refuses(ValueError, "twice", model.predict, data, groups=SMALL.groups)
        refuses(ValueError, "twice", model.fit, data, SMALL.y, groups=SMALL.groups)
    assert list(model.feature_names_in_) == [*"abcde", "who"]


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_rows_without_users():
    public = DPPersonalizedRegressor(target_bounds=(-9, 9), adjacency="replace")
    with pytest.warns(PrivacyUnitWarning, match="without users"):
        model = public.fit(SMALL.X, SMALL.y)
    assert model.n_groups_ == len(SMALL.X)
    assert model.privacy_spent_.unit == "row" and model._private is None
    assert quiet(model.fit, *SMALL.all).privacy_spent_.unit == "group"
    assert model.privacy_unit == clone(model).privacy_unit == "group"
    with pytest.raises(ValueError, match="require_groups"):
        DPPersonalizedRegressor(require_groups=True).fit(SMALL.X, SMALL.y)
    refuses(ValueError, "groups", seeded(require_groups=True).predict, SMALL.X)
    with (
        pytest.raises(PrivacyError, match="unit"),
        PrivacyLedger(3.0, 1e-5, unit="group"),
        pytest.warns(PrivacyUnitWarning),
    ):
        DPPersonalizedRegressor().fit(SMALL.X, SMALL.y)


def test_large_ids_in_a_user_column_stay_apart():
    X = [[2**60 + i // 2, float(i), 1.0] for i in range(20)]
    model = quiet(DPPersonalizedRegressor(1, group_column=0).fit, X, np.arange(20.0))
    assert len(model._private["users"]) == 10


def test_ids_that_look_equal_as_floats_are_not_known():
    """Of integers beyond 2**53, whichever side has floats."""
    known = np.array([7, 2**53, 2**60])
    for labels in (np.array([7.0, 2.0**53, 2.0**60]), known):
        users = known if labels.dtype == float else known.astype(float)
        assert _personalized_base.positions(users, labels)[1].tolist() == [True, False, False]
        assert _personalized_base.positions(labels, labels)[1].all()
    _personalized_base.same_kind(known, known.astype(np.uint32))
    refuses(ValueError, "must have the type", _personalized_base.same_kind, known, known * 1.0)


def test_unknown_users_get_the_global_model(monkeypatch):
    model = seeded()
    refuses(ValueError, "one type, in fit", model.predict, SMALL.X, SMALL.groups.astype(str))
    expected = SMALL.X @ model.global_coef_ + model.global_intercept_
    with pytest.warns(UserWarning, match="without users"):
        assert np.allclose(model.predict(SMALL.X), expected)
    assert np.allclose(model.predict(SMALL.X, SMALL.groups + 1000), expected)
    mixed = np.where(rows := SMALL.groups < 30, SMALL.groups, -1)
    whole = model.predict(SMALL.X, mixed)
    assert np.allclose(whole[rows], model.predict(SMALL.X[rows], SMALL.groups[rows]))
    assert np.allclose(whole[~rows], expected[~rows])
    monkeypatch.setattr(_personalized_base, "BLOCK", 50)  # ten rows at once
    assert np.allclose(model.predict(sp.csr_array(SMALL.X), mixed), whole)


def test_rows_to_predict_are_folded_into_bounds_and_cut_where_those_of_the_user_end():
    (X, _, users), model = SMALL.all, seeded()
    model.global_coef_, far = np.ones(5), 1e3 * X
    model.feature_bounds_ = np.array([[-3.0] * 5, [3.0] * 5])
    near = within_bounds(far, model.feature_bounds_)
    assert np.allclose(model.predict(far, users - 1000), near.sum(axis=1) + model.global_intercept_)
    model.feature_bounds_ = np.array([[-np.inf] * 5, [np.inf] * 5])
    cuts = model._private["heads"][users][:, -10:].reshape(-1, 2, 5).swapaxes(0, 1)
    assert np.allclose(model.predict(far, users), model.predict(np.clip(far, *cuts), users))


@pytest.mark.parametrize(
    ("groups", "match"),
    [
        (np.where(SMALL.groups == 3, np.nan, SMALL.groups), "missing"),
        (np.where(SMALL.groups == 3, None, SMALL.groups), "missing"),
        (SMALL.groups[:-1], "inconsistent"),
        # what numpy would merge or lose
        (np.array(["a", "a\0"] * 180, dtype=object), "Group labels"),
        ([1, "1"] * 180, "strings or all numbers"),
        (np.array(["a", math.nan] * 180, np.dtypes.StringDType(na_object=math.nan)), "missing"),
        (np.ma.masked_equal(SMALL.groups, 3), "missing"),
        (np.ma.array(np.float32(2**24) + np.arange(360, dtype=np.float32)), "such large floats"),
        (np.array(["2020-01-01", "NaT"] * 180, dtype="datetime64[D]"), "group label"),
    ],
)
def test_bad_user_labels(groups, match):
    assert_refused(DPPersonalizedRegressor(), match, SMALL.X, SMALL.y, groups=groups)


@pytest.mark.parametrize("known", [np.array(["a"]), np.array([1]), np.array([b"a"])])
@pytest.mark.parametrize("asked", [np.array(["b"]), np.array([2.0]), np.array([b"b"])])
def test_users_of_another_type_are_refused(known, asked):
    """Else known users would get the model of unknown ones."""
    if (known.dtype.kind, asked.dtype.kind) in (("U", "U"), ("i", "f"), ("S", "S")):
        assert not positions(known, asked)[1].any()
    else:
        refuses(ValueError, "must have one type", positions, known, asked)


@pytest.mark.deep
@pytest.mark.parametrize("routing", [False, True])
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_pipeline_and_search_with_users(routing):
    X, y, groups = Users(600, d=6, m=8).all
    model = DPPersonalizedRegressor(epsilon=8.0)
    cut, scores = FunctionTransformer(), {}
    with config_context(enable_metadata_routing=routing):
        column = clone(model).set_params(group_column=6)
        XU = np.column_stack([X, groups])
        searched = [("column, search", column, XU)] + [("groups, search", model, X)] * routing
        for name, one, rows in searched:
            search = GridSearchCV(one, {"n_components": [1, 2]}, cv=WithinGroupKFold(2))
            scores[name] = search.fit(rows, y, groups=groups).best_score_
        scores["column, pipeline"] = make_pipeline(cut, column).fit(XU, y).score(XU, y)
        pipe = make_pipeline(cut, model)
        pipe.fit(X, y, **{"groups" if routing else "dppersonalizedregressor__groups": groups})
        scores["groups, pipeline"] = r2_score(y, pipe.predict(X, groups=groups))
    assert min(scores.values()) > 0.65, scores


# -- publication -----------------------------------------------------------------------------------


def private_fit():
    with seeded_entropy(7):
        return quiet(DPPersonalizedRegressor(epsilon=3.0).fit, *SMALL.all)


def test_released_copy_holds_nothing_private():
    model = private_fit()
    public = quiet(model.public_copy)
    assert not hasattr(public, "_private") and not hasattr(public, "n_groups_")
    alike = seeded(data=(SMALL.X, 0 * SMALL.y + 1, SMALL.groups), epsilon=math.inf)
    assert alike.n_groups_ == 60  # though none has a direction
    assert public.random_state is None and public.privacy_spent_ == model.privacy_spent_
    heads = model._private["heads"]
    assert heads.tobytes()[:64] not in pickle.dumps(public)
    with pytest.warns(PrivacyWarning, match="holds an exact model for each user"):
        assert heads.tobytes()[:64] in pickle.dumps(model)
    unknown = model.predict(SMALL.X, SMALL.groups - 1000)
    assert np.array_equal(public.predict(SMALL.X), unknown)
    assert np.array_equal(public.predict(SMALL.X, SMALL.groups), unknown)


def test_seeded_or_noiseless_fits_are_not_published():
    for model in (seeded(), quiet(DPPersonalizedRegressor(epsilon=math.inf).fit, *SMALL.all)):
        for publish in (model.public_copy, model.make_head):
            refuses(PrivacyError, "not private", publish)


def test_heads_of_new_users_cost_nothing(monkeypatch):
    model = private_fit()
    public = quiet(model.public_copy)
    assert not (public.private_state or model.make_head().public.private_state)
    monkeypatch.setattr(PrivacySession, "_read", None)
    fit, tell = Heads.fit, partial(warnings.warn, "of a user's rows", UserWarning, 1)
    with monkeypatch.context() as patch:  # which nobody hears
        patch.setattr(Heads, "fit", lambda *given: tell() or fit(*given))
        public.adapt(*SMALL.all)
    expected = model.predict(SMALL.X, SMALL.groups)
    assert np.allclose(public.predict(SMALL.X, SMALL.groups), expected)
    head = model.make_head().fit(SMALL.X[:6], SMALL.y[:6])  # on the device of the first
    for found in (head.predict(SMALL.X[:6]), SMALL.X[:6] @ head.coef_ + head.intercept_):
        assert np.allclose(found, expected[:6])
    public.adapt(SMALL.X[:12], SMALL.y[:12], groups=SMALL.groups[:12] + 500)
    assert np.allclose(public.predict(SMALL.X[:12], SMALL.groups[:12] + 500), expected[:12])
    assert np.allclose(public.predict(SMALL.X, SMALL.groups), expected)
    public.adapt(SMALL.X[:12], -SMALL.y[:12], groups=SMALL.groups[:12])  # again: replaced
    assert not np.allclose(public.predict(SMALL.X[:12], SMALL.groups[:12]), expected[:12])
    refuses(ValueError, "groups", public.adapt, SMALL.X, SMALL.y)
    names = SMALL.groups[:12].astype(str)  # which are not the numbers that they show
    refuses(ValueError, "the type of the fitted", public.adapt, SMALL.X[:12], SMALL.y[:12], names)
    refuses(ValueError, "is expecting 5 features", public.adapt, SMALL.X[:, :2], *SMALL.all[1:])


@pytest.mark.deep
def test_head_for_a_device():
    model, rows = private_fit(), SMALL.groups == 7
    head = model.make_head().fit(SMALL.X[rows], SMALL.y[rows])
    expected = model.predict(SMALL.X[rows], SMALL.groups[rows])
    assert np.allclose(head.predict(SMALL.X[rows]), expected)
    assert np.allclose(SMALL.X[rows] @ head.coef_ + head.intercept_, expected)
    with pytest.warns(PrivacyWarning, match="keep it like the data"):  # which are on the device
        again = pickle.loads(pickle.dumps(head))
    assert np.allclose(again.predict(SMALL.X[rows]), expected)
    X = pd.DataFrame(SMALL.X, columns=[*"abcde"])
    with seeded_entropy(7):  # names are those of the columns of X but for the users
        model = DPPersonalizedRegressor(epsilon=3.0, group_column="who")
        quiet(model.fit, X.assign(who=SMALL.groups), SMALL.y)
    assert np.allclose(model.make_head().fit(X[rows], SMALL.y[rows]).coef_, head.coef_)


# -- labels ----------------------------------------------------------------------------------------


def labelled(n=500, classes=2, seed=0):
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.standard_normal((8, 2)))[0]
    theta = 3 * rng.standard_normal((n, classes, 2)) @ U.T
    groups = np.repeat(np.arange(n), 20)
    X = rng.standard_normal((20 * n, 8))
    eta = np.einsum("id,icd->ic", X, theta[groups]) / math.sqrt(2)
    return X, np.argmax(eta + rng.gumbel(size=eta.shape), axis=1), groups


@pytest.mark.deep
@pytest.mark.parametrize(("classes", "floor"), [(2, 0.78), (3, 0.68)])
def test_classifier_learns_personal_labels(classes, floor):
    X, y, groups = labelled(600, classes)
    names, train = np.array(["no", "perhaps", "yes"])[:classes], np.arange(len(y)) % 20 < 15
    model = DPPersonalizedClassifier(epsilon=4.0, classes=names)
    model.fit(X[train], names[y[train]], groups=groups[train])
    test = X[~train], names[y[~train]], groups[~train]
    assert model.score(*test) > floor
    assert abs(quiet(model.public_copy).score(*test[:2]) - 1 / classes) < 0.1
    logs = model.predict_log_proba(test[0], groups=test[2])
    assert np.allclose(logs, np.log(model.predict_proba(test[0], groups=test[2])))
    assert model.global_coef_.shape == ((8,) if classes == 2 else (3, 8))
    assert model.decision_function(*test[::2]).shape[1:] == model.global_coef_.shape[:-1]


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_users_whose_labels_are_alike_count_as_others_do():
    """They have no direction; and rows in unknown units do not make noise look significant."""
    users, X = np.repeat(np.arange(60), 5), 1e6 * np.random.default_rng(0).random((300, 4))
    for classes, epsilon, near in (2, 50.0, 0.15), (3, 50.0, 0.15), (3, 0.5, 0.35):
        y, public = np.maximum(users % 6 - 6 + classes, 0), {"classes": range(classes)}
        off = []
        for seed in range(5):
            model = DPPersonalizedClassifier(epsilon=epsilon, random_state=seed, **public)
            found = quiet(model.fit, X, y, users).predict_proba(X, users + 60)
            off.append(np.abs(found - np.bincount(y) / 300).max())
        assert np.median(off) < near


@pytest.mark.thorough
def test_a_rare_class_is_said_to_be_predicted_of_hardly_any_row(rng):
    X, users = rng.standard_normal((12_000, 2)), np.repeat(np.arange(3000), 4)
    y = rng.random(len(X)) < 1 / (1 + np.exp(2.5 - 0.6 * X[:, 0]))
    model = DPPersonalizedClassifier(1, epsilon=10.0, classes=[False, True])
    model.fit(X, y, groups=users)
    with pytest.warns(PartialSignalWarning, match="could use one class only"):
        assert model.public_copy().predict(X).mean() < 0.02
    with pytest.warns(PrivacyUnitWarning), pytest.warns(PartialSignalWarning, match="one class"):
        model.fit(X, y)  # nobody has a head, but a model of all was found


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_new_users_get_what_labels_of_all_users_show():
    """A column tells the level of a user, so that no user's own rows show what it does for all."""
    rng, n = np.random.default_rng(0), 200
    groups, level = np.repeat(np.arange(n), 3), rng.standard_normal(n)
    X = rng.standard_normal((3 * n, 4)) + 1.5 * level[groups][:, None] * np.eye(4)[0]
    y = 2 * level[groups] + rng.logistic(size=3 * n) > 0
    known, units = groups < 150, (X * [1, 1, 50, 1] + [0, 100, 0, 0])
    data = units[known], y[known], groups[known]
    model = seeded(DPPersonalizedClassifier, data, classes=[False, True], epsilon=10.0)
    assert model.global_model_found_
    assert model.score(units[~known], y[~known], groups[~known]) > 0.7
    seen = []
    for seed in range(4):
        few = DPPersonalizedClassifier(classes=[False, True], epsilon=2.0, random_state=seed)
        quiet(few.fit, *data)
        lost = np.isinf(few.feature_bounds_[1])  # heads go without columns in unknown units
        assert not few._public_heads()[1].model.coef[lost].any()
        seen.append(lost.any() and few.global_coef_[lost].all())
    assert any(seen)


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_new_users_get_the_likeliest_class_where_users_are_few(rng):
    """One of ten labels is the other class: 40 users show that, but neither columns nor numbers."""
    groups = np.repeat(np.arange(40), 20)
    X, y = rng.standard_normal((800, 2)), (rng.random(800) < 0.9).astype(int)
    for labels in (y, 1 - y):
        right = []
        for seed in range(8):
            few = DPPersonalizedClassifier(classes=[0, 1], epsilon=1.0, random_state=seed)
            quiet(few.fit, X, labels, groups)
            right.append(np.mean(quiet(few.predict, X, groups + 40) == labels))
        assert np.median(right) > 0.85


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_classes_are_public():
    X, y, groups = labelled(40)
    with pytest.warns(PrivacyWarning, match="classes"):
        assert list(DPPersonalizedClassifier(epsilon=20.0).fit(X, y, groups).classes_) == [0, 1]
    odd = np.where(groups == 5, 7, y)  # a user with another label contributes nothing
    silent = np.where(groups == 5, 0.0, 1.0)[:, None] * X
    first = seeded(DPPersonalizedClassifier, (X, odd, groups), classes=[1, 0])
    second = seeded(DPPersonalizedClassifier, (silent, y, groups), classes=[0, 1])
    assert np.array_equal(first.components_, second.components_) and [*first.classes_] == [0, 1]


# -- parameters ------------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize("labels", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_too_few_users_for_the_budget(labels, rng):
    """Regressor and classifier say so once; a clear model of all is not doubted."""
    # The rule reads released numbers, so its answer depends on the noise: one fixed sequence.
    X, y, groups = SMALL.all
    given = {"classes": [0, 1]} if labels else {"target_bounds": (-9, 9)}
    model = (DPPersonalizedClassifier if labels else DPPersonalizedRegressor)(epsilon=0.01, **given)
    small = X, (y > 0).astype(int) if labels else y
    with seeded_entropy(0):
        model.fit(*small, groups)  # heads follow from the users' own rows: warnings are errors
        with pytest.warns(PartialSignalWarning, match="new users get (about the class|a guess)"):
            model.public_copy()
        with pytest.warns(PrivacyUnitWarning), pytest.warns(NoSignalWarning, match="new users"):
            model.fit(*small)  # nobody has a head
    X, groups = rng.standard_normal((9000, 3)), np.repeat(np.arange(1500), 6)
    y = X @ [2.0, 1.0, 0.0] + rng.standard_normal(9000)
    with seeded_entropy(0):
        model.set_params(epsilon=2.0, n_components=1)
        model.fit(X, (y > 0).astype(int) if labels else y, groups)
        model.public_copy()  # warnings are errors
        model.set_params(epsilon=30.0).fit(X[::-1], (y > 0).astype(int) if labels else y, groups)
        # The rest is sampling error, far above the noise.
        with pytest.warns(PartialSignalWarning, match="no global model"):
            model.public_copy()


@pytest.mark.deep
def test_a_scale_that_is_raised_for_far_targets_hides_no_model():
    """The part of chance is proportional to the deviation of the targets, not to their bounds."""
    rng, users = np.random.default_rng(0), np.repeat(np.arange(300), 4)
    X = rng.standard_normal((1200, 3))
    y = 0.5 * X[:, 0] + rng.standard_t(4, 1200)
    assert seeded(data=(X, y, users), epsilon=1e3).global_model_found_


def test_bad_users_cause_no_warning():
    """Without noise the sums of bad users are 0, and nothing is divided by them."""
    model = DPPersonalizedRegressor(epsilon=math.inf, target_bounds=(0.0, 8.0))
    with config_context(assume_finite=True):
        quiet(model.fit, np.full((8, 2), np.nan), np.arange(8.0), np.repeat([0, 1], 4))
    assert not np.any(model.global_coef_)


def test_targets_far_from_zero_are_learnt_and_bounds_hold(rng):
    users, X = np.repeat(np.arange(600), 8), rng.standard_normal((4800, 3))
    y = X @ [1.0, -1.0, 0.5] + 0.5 * rng.standard_normal(len(users))
    for given in ("auto", (1e5 - 10, 1e5 + 10), (0, 1e9)):
        model = DPPersonalizedRegressor(1, epsilon=3.0, target_bounds=given)
        assert model.fit(X, y + 1e5, groups=users).score(X, y + 1e5, groups=users) > 0.6
        assert model.public_copy().score(X, y + 1e5) > 0.6


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("kind", [DPPersonalizedRegressor, DPPersonalizedClassifier])
def test_tiny_rows_of_one_user_cause_no_warning(kind, rng):
    """Their head is beyond all floats: no warning, which is an error here, and no exception."""
    X, groups = 1e-6 * rng.standard_normal((600, 3)), np.arange(600) // 6
    X[:6] = 1e-310 * rng.standard_normal((6, 3))
    given = {"classes": [0, 1]} if kind is DPPersonalizedClassifier else {}
    model = kind(1, epsilon=4.0, **given).fit(X, X[:, 0] > 0, groups=groups)
    assert np.isfinite(model.predict(X, groups=groups)).all()


@pytest.mark.deep
def test_rare_dummies_have_no_scale_next_to_a_centre_that_is_off():
    rng, users = np.random.default_rng(0), np.repeat(np.arange(400), 9)
    X = (rng.random((3600, 6)) < 0.08).astype(float)
    own = 1 + 0.5 * rng.standard_normal((400, 1)) * [1, 1, 0, 0, 0, 0]
    y = np.sum(X * own[users], axis=1) + 0.3 * rng.standard_normal(3600)
    for seed in (6, 8):  # had a scale of .001
        with seeded_entropy(seed):
            model = DPPersonalizedRegressor(1, epsilon=1.0).fit(X, y, groups=users)
        assert model.feature_scale_.min() > 0.1 and model.score(X, y, groups=users) > 0.84

"""DPRidge and DPRidgeClassifier: limits, parameters, formats, what is learnt."""

import math
import re

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_digits, load_iris
from sklearn.linear_model import LinearRegression, Ridge, RidgeClassifier
from sklearn.preprocessing import normalize

from skdp import DPRidge, DPRidgeClassifier
from skdp.exceptions import NoSignalWarning, PrivacyWarning, UtilityWarning
from skdp.regression._linear import moment_size
from skdp.solvers.linear_regression import ClassMoments
from skdp.testing import record_transcript, replay_answers, seeded_entropy, transcript_audit
from skdp.testing._transcripts import fixed_noise
from skdp.testing.audit import FitData
from tools.null_checks import check_null_release
from tools.outcomes import assert_refused, messages_of, refuses

NO_NOISE = {"epsilon": math.inf, "clip_norm": math.inf}
UNBOUNDED = {**NO_NOISE, "target_bounds": (-math.inf, math.inf)}


@pytest.fixture(autouse=True)
def fixed():
    with seeded_entropy(0):
        yield


def data(n=3000, d=5, q=1, seed=0, noise=0.1):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, d)) + 0.3
    Y = X @ rng.uniform(-1, 1, (d, q)) + 2.0 + noise * rng.standard_normal((n, q))
    return X, Y[:, 0] if q == 1 else Y


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*no noise:skdp.exceptions.PrivacyWarning")
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("q", [1, 3])
def test_without_noise_it_is_ridge(adjacency, fit_intercept, q):
    X, y = data(q=q)
    forms = (1.0, np.asarray, None), (0.0, np.asarray, None), (10.0, sp.csr_array, None)
    for alpha, form, bounds in (*forms, (0.0, np.asarray, (-2, 4))):  # bounds are other units
        ours = DPRidge(alpha, fit_intercept=fit_intercept, adjacency=adjacency, bounds=bounds,
                       **UNBOUNDED)  # fmt: skip
        theirs = Ridge(alpha, fit_intercept=fit_intercept).fit(X, y)
        ours.fit(form(X), y)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-9, atol=1e-12)
        found, expected = ours.predict(form(X)), theirs.predict(X)  # some are next to 0
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
        assert np.shape(ours.coef_) == np.shape(theirs.coef_)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("alpha", [1e-320, 1.7e308])
def test_no_penalty_is_too_large_or_small_for_the_noise(alpha):
    X, y = data(n=50)
    ours = DPRidge(alpha, epsilon=100, clip_norm=1.0, random_state=0).fit(X, y)
    classes = DPRidgeClassifier(alpha, epsilon=100, clip_norm=1.0, classes=[0, 1], random_state=0)
    for coef in (ours.coef_, classes.fit(X, y > 2).coef_):
        assert np.all(np.isfinite(coef)) and (alpha < 1 or np.all(np.abs(coef) < 1e-290))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*no noise|.*classes from y:skdp.exceptions.PrivacyWarning")
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_without_noise_it_is_ridge_classifier(fit_intercept, n_classes):
    X, y = load_digits(return_X_y=True)
    X, y = normalize(X), y % n_classes
    ours = DPRidgeClassifier(2.0, fit_intercept=fit_intercept, **NO_NOISE).fit(X, y)
    theirs = RidgeClassifier(2.0, fit_intercept=fit_intercept).fit(X, y)
    expected = theirs.decision_function(X)
    np.testing.assert_allclose(ours.decision_function(X), expected.reshape(len(X), -1).squeeze(),
                               atol=1e-9)  # fmt: skip
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))


@pytest.mark.deep
@pytest.mark.parametrize("shift", [0.0, 50.0])
@pytest.mark.parametrize("units", [1.0, [1e-6, 1.0, 30.0, 1e4, 1e9]])
def test_shifts_and_units_do_not_matter(shift, units):
    """Within .02 of the R2 of centred data, for all units of columns and targets."""
    X, y = data(50_000, noise=0.0)
    X, y = (X + shift) * units, 1e5 * (y + shift)
    assert DPRidge().fit(X, y).score(X, y) > 0.98
    classes = DPRidgeClassifier(classes=[False, True]).fit(X, y > np.median(y))
    assert classes.score(X, y > np.median(y)) > 0.95


@pytest.mark.deep
@pytest.mark.parametrize("shift", [1_000.0, 300.0])
def test_columns_and_targets_thousands_of_deviations_from_zero_count(shift):
    """Longitudes in one city, and the seconds of a day."""
    X, y = data(20_000)
    score = DPRidge(epsilon=3).fit(X, y).score(X, y)
    moved, times = X + [shift, 0.0, 0.0, 0.0, -shift], y + 20 * shift * y.std()
    assert DPRidge(epsilon=3).fit(moved, y).score(moved, y) > score - 0.03
    assert DPRidge(epsilon=3).fit(X, times).score(X, times) > score - 0.03


@pytest.mark.deep
@pytest.mark.parametrize("epsilon", [30.0, 1000.0])
def test_nearly_equal_columns_are_separated_as_the_noise_vanishes(epsilon, rng):
    x, z = rng.standard_normal((2, 20_000))
    X = np.column_stack([x, x + 0.1 * z, rng.standard_normal((20_000, 3))])
    y = z + 0.3 * rng.standard_normal(20_000)
    model = DPRidge(epsilon=epsilon).fit(X, y)
    assert model.score(X, y) > 0.7 and model.privacy_spent_.mu > math.sqrt(epsilon) / 2


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_a_search_among_few_rows_has_up_to_twice_its_share():
    """But the caller's, and no more where nothing would be found; all sum to the budget."""
    X, split, parts = np.random.default_rng(0).standard_normal((3000, 12)), {}, []
    split |= {"clip_norm": 0.05, "columns": 0.2, "regression_moments": 0.75}
    for n, budget_split in ((160, "auto"), (3000, "auto"), (60, "auto"), (160, split)):
        model = DPRidgeClassifier(classes=[0, 1], budget_split=budget_split)
        with seeded_entropy(0):
            model.fit(X[:n], X[:n, 0] > 0)
        of = dict.fromkeys(("count", "column_centered_ranks", "all"), 0.0)
        for line in model.releases_:
            for name in of.keys() & {line.name, "all"}:
                of[name] += line.loss.value**2
        assert of["all"] == pytest.approx(model.privacy_spent_.mu**2, rel=1e-9)
        parts.append((of["count"] + of["column_centered_ranks"]) / of["all"])
        ends = (model.feature_bounds_ - model.center_) / model.scale_
        np.testing.assert_allclose(ends, [[-3.5] * 12, [3.5] * 12])
    np.testing.assert_allclose(parts, [0.39, 0.2, 0.2, 0.2], atol=1e-6)


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("part", [0.08, 0.99])
def test_a_second_search_leaves_budget_for_the_cut_and_for_the_model(part):
    """Targets that are all 0 cannot be found, even if most of the budget is for their search.

    Without an intercept there is a model in any case; else bounds change nothing: their mean alone.
    """
    X, y = np.random.default_rng(0).standard_normal((3000, 3)), np.zeros(3000)
    names = ["clip_norm", "columns", "regression_moments"]
    split = dict.fromkeys(names, (1 - part) / len(names)) | {"target_bounds": part}
    model = DPRidge(epsilon=8.0, budget_split=split, fit_intercept=False).fit(X, y)
    assert model.privacy_spent_.epsilon == pytest.approx(8.0)
    spent = {line.name: line.loss.value for line in model.releases_}
    assert min(spent["target_count_above"], spent["regression_moments"]) > 0
    for bounds in ("auto", (-1.0, 1.0), (-1.0, 99.0)):
        alone = DPRidge(epsilon=8.0, target_bounds=bounds).fit(X, y)
        assert not alone.coef_.any() and abs(alone.intercept_) < 0.1
        assert alone.releases_[-1].name == "target_sums"


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_targets_that_are_hard_to_see_take_budget_from_the_model(rng):
    """A far and narrow target of few records: its released middle is predicted.

    If a longer search finds the target, the rest shows that no column explains it.
    """
    X, y = rng.standard_normal((300, 6)), 40 + rng.standard_normal(300)
    off, without, model = [], 0, DPRidge(epsilon=0.5, adjacency="replace")
    for seed in range(9):
        with seeded_entropy(seed), pytest.warns(UtilityWarning) as caught:
            model.fit(X, y)
        said = any("are one released number" in str(each.message) for each in caught)
        assert len(model.releases_) <= 70
        assert said == ("regression_moments" not in {line.name for line in model.releases_})
        assert not said or not model.coef_.any()
        without += said
        off.append(abs(model.intercept_ - 40))
        mu = math.sqrt(math.fsum(line.loss.value**2 for line in model.releases_))
        assert mu == pytest.approx(model.privacy_spent_.mu, rel=1e-9)
    assert np.median(off) < 1 and without >= 5


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.PartialSignalWarning")
@pytest.mark.parametrize("q", [1, 2])
def test_public_bounds_of_targets_that_few_records_do_not_show_hold_their_mean(q, rng):
    """A mean within bounds far wider than the targets has too much noise: it is taken near them."""
    X, Y = rng.standard_normal((110, 6)), 10 + rng.standard_normal((110, q))
    model, alone, off = DPRidge(epsilon=0.5, target_bounds=(2, 20)), 0, []
    for seed in range(60):
        with seeded_entropy(seed):
            said = " ".join(messages_of(model.fit, X, Y))
        if "are one released number" in said:
            alone += "'target_bounds' close to the targets" in said
            assert not model.coef_.any() and np.abs(np.subtract(model.intercept_, 11)).max() < 9
            low, high = model.target_bounds_
            assert (low >= 2.0).all() and (low < high).all() and (high <= 20.0).all()
        off.append(math.sqrt(np.mean((model.predict(X) - Y.mean(axis=0).squeeze()) ** 2)))
    assert alone >= 40 and np.median(off) < 0.5 and np.quantile(off, 0.9) < 2


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_few_records_predict_no_worse_than_about_their_mean():
    """In all cases: an answer below the noise ends near the middle of the targets."""
    X, y = load_iris(return_X_y=True)[0][:, :3], load_iris(return_X_y=True)[0][:, 3]
    scores = []
    for seed in range(40):
        with seeded_entropy(seed):
            scores.append(DPRidge().fit(X, y).score(X, y))
    assert np.median(scores) > -0.25
    assert np.quantile(scores, 0.1) > -1  # a target of two bumps has its median a deviation off


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_few_groups_predict_the_mean_of_their_means(rng):
    """Means of groups vary less than rows, so a search for the mean of all ends nearer to it."""
    X, y = rng.standard_normal((1200, 3)), 50 + 4 * rng.standard_normal(1200)
    off = []
    for seed in range(12):
        with seeded_entropy(seed):
            model = DPRidge(privacy_unit="group").fit(X, y, groups=np.repeat(np.arange(60), 20))
        assert not model.coef_.any()
        off.append(abs(model.intercept_ - 50) / 4)
    assert np.median(off) < 0.12


def test_many_targets_and_bounds_for_each():
    X, Y = data(20000, q=3)
    Y = Y * [1.0, 100.0, 0.01]
    bounds = [0.0, 0.0, 0.0], [4.0, 400.0, 0.04]
    model = DPRidge(epsilon=4.0, clip_norm=3.0, target_bounds=bounds).fit(X, Y)
    assert model.coef_.shape == (3, 5)
    assert model.score(X, Y) > 0.9  # each target in its own units
    low, high = np.divide(model.target_bounds_, bounds[1])
    assert np.all(low >= 0) and np.all(high <= 1) and np.all(high - low > 0.9)


@pytest.mark.deep
def test_a_far_intercept_costs_nothing_if_the_bounds_are_known():
    X, y = data(20000)
    with seeded_entropy(0):
        near = DPRidge(clip_norm=3.0, target_bounds=(-1, 5)).fit(X, y)
    with seeded_entropy(0):
        far = DPRidge(clip_norm=3.0, target_bounds=(1e6 - 1, 1e6 + 5)).fit(X, y + 1e6)
    np.testing.assert_allclose(far.coef_, near.coef_, rtol=1e-5)
    assert far.intercept_ - 1e6 == pytest.approx(near.intercept_, abs=1e-4)


def test_records_with_other_labels_count_as_zeros():
    X, y = load_digits(return_X_y=True)
    X, known = normalize(X), y < 3
    with seeded_entropy(0):
        some = DPRidgeClassifier(classes=[0, 1, 2], clip_norm=1.0, epsilon=8.0).fit(
            X[known], y[known]
        )
    with seeded_entropy(0):
        all_ = DPRidgeClassifier(classes=[0, 1, 2], clip_norm=1.0, epsilon=8.0).fit(X, y)
    np.testing.assert_array_equal(some.coef_, all_.coef_)


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_classes_of_y_are_made_public_with_a_warning():
    X, y = load_digits(return_X_y=True)
    with pytest.warns(PrivacyWarning, match="took the classes from y"):
        DPRidgeClassifier(clip_norm=20.0).fit(X, y)
    few = [np.arange(n) % 11 for n in (21, 22)]  # scikit-learn warns if most of 21 rows differ
    said = [messages_of(DPRidgeClassifier(clip_norm=20.0).fit, X[: len(y)], y) for y in few]
    assert not any("number of samples" in text for text in said[0] + said[1])


def test_what_does_not_fit_the_targets():
    X, Y = data(20, q=3)
    assert_refused(DPRidge(target_bounds=([0, 0], [1, 1])), "2 bounds, but there are 3 tar", X, Y)
    for bounds in ([(0, 1)], {"a": (0, 1)}):
        assert_refused(DPRidge(bounds=bounds), "bounds", X, Y)
    assert_refused(DPRidgeClassifier(), "one class", X, np.zeros(20))
    assert_refused(DPRidgeClassifier(), "or mixed", X, np.array(10 * ["a", 1], object))
    refuses(TypeError, "y is sparse", DPRidge().fit, X, sp.csr_array(Y))
    assert_refused(DPRidgeClassifier(classes=[0]), "classes", X, np.zeros(20))


BOUNDS = [(-1.0, 2.0)] * 4 + [(-100.0, 200.0)]


@pytest.mark.parametrize("ends", [(0.0, 1000.0), (-1000.0, 1000.0), (-1e9, 3.0)])
def test_target_bounds_far_wider_than_the_targets_cost_little(ends):
    """Half of the range was the scale of the noise: coefficients were nothing else."""
    X, y = data(3000)
    model = DPRidge(clip_norm=3.0, target_bounds=ends).fit(X, y)
    low, high = model.target_bounds_
    assert model.score(X, y) > 0.9 and low >= ends[0] and high <= ends[1]


@pytest.mark.deep
@pytest.mark.parametrize("centered", [True, False])
def test_less_noise_truncates_fewer_targets(centered):
    """Each by itself: at three scales a third of amounts were cut at any epsilon, others hardly."""
    X = np.random.default_rng(4).standard_normal((1500, 2))
    Y, cut = np.column_stack([np.exp(2 * X[:, 0]) - 2 * (not centered), X[:, 1]]), []
    for epsilon in (2.0, 20.0, 200.0):
        low, high = DPRidge(epsilon=epsilon, fit_intercept=centered).fit(X, Y).target_bounds_
        cut.append(np.mean((low > Y) | (high < Y), axis=0))
        assert high[1] - low[1] < 15
    assert cut[0][0] > cut[1][0] > cut[2][0] and cut[1][0] < 0.02 and cut[2][1] < 0.002


@pytest.mark.deep
@pytest.mark.parametrize("loose", [1.0, 100.0])
@pytest.mark.parametrize("centered", [True, False])
def test_public_bounds_are_where_entries_are_cut_and_do_not_set_the_noise(loose, centered):
    """Columns are learnt inside of them, so that bounds a hundred times too wide cost little."""
    X, y = data(40_000)
    X, y = X * [1, 1, 1, 1, 100], y if centered else y - 2.0  # the intercept of the data
    bounds = loose * np.asarray(BOUNDS)
    low, high = bounds.T
    options = {"bounds": list(map(tuple, bounds)), "fit_intercept": centered}
    model = DPRidge(target_bounds=(-3, 5), **options).fit(X, y)
    assert model.score(X, y) > 0.97
    assert np.all(model.target_bounds_[0] >= -3) and np.all(model.target_bounds_[1] <= 5)
    cut = model.feature_bounds_
    assert np.all(cut[0] >= low * (1 + 1e-9)) and np.all(cut[1] <= high * (1 + 1e-9))
    assert np.all(cut[1] - cut[0] > 4 * X.std(axis=0))  # of even numbers: all of them
    assert model.center_.any() == centered == (model.intercept_ != 0.0)
    labels = y > np.median(y)
    classes = DPRidgeClassifier(classes=[False, True], **options).fit(X, labels)
    assert classes.score(X, labels) > 0.9


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_columns_that_fill_their_bounds_or_are_not_found_keep_them(rng):
    """What is learnt replaces public bounds only where it is narrower; they guess the scale."""
    X = np.column_stack([rng.choice([-4.0, 6.0, 6.0], 20_000), rng.normal(1.0, 0.5, 20_000)])
    model = DPRidge(bounds=(-4, 6)).fit(X, X[:, 1])
    np.testing.assert_allclose([end[0] for end in model.feature_bounds_], [-4.0, 6.0])
    assert 0.3 < model.scale_[1] < 1.0 and 3.0 <= model.scale_[0] <= 10.0
    few = DPRidge(epsilon=0.1, bounds=(30, 40), target_bounds=(-4, 6)).fit(X[:50], X[:50, 1])
    np.testing.assert_allclose(few.center_, 35.0)
    np.testing.assert_allclose(few.scale_, 5 / math.sqrt(3))
    scales = []
    for unit in (1.0, 2.0**20):
        with seeded_entropy(1):
            few = DPRidge(epsilon=0.5, bounds=(-4 * unit, 6 * unit)).fit(unit * X[:99], X[:99, 1])
        scales.append(few.scale_ / unit)
    np.testing.assert_allclose(*scales)
    beyond = DPRidge(bounds=[(-4, 6), (3, 4)]).fit(X, X[:, 1])
    assert 3 <= beyond.feature_bounds_[0][1] <= beyond.feature_bounds_[1][1] <= 4


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_dummies_are_no_wider_because_of_bounds(rng):
    """Those that were not found were as wide as even numbers in them, and hardly counted."""
    X = (rng.random((400, 12)) < 0.07).astype(float)
    y = X @ rng.standard_normal(12) + 0.1 * rng.standard_normal(400)
    without, wide, exact = (DPRidge(epsilon=3.0, bounds=b) for b in (None, (-30, 30), (0, 1)))
    for model in (without, wide, exact):
        with seeded_entropy(1):
            model.fit(X, y)
    assert wide.score(X, y) > 0.45 and without.score(X, y) > 0.45
    assert exact.score(X, y) > 0.45 and exact.feature_bounds_[1].max() <= 1


@pytest.mark.deep
@pytest.mark.parametrize(("linear", "epsilon"), [(False, 3.0), (True, 30.0)])
def test_slopes_go_as_far_as_long_rows_say(linear, epsilon):
    """Predictions clip large entries if effects are not linear, and do not if they are."""
    X = np.exp(1.5 * np.random.default_rng(0).standard_normal((27_000, 3)))
    y = (X / 4 if linear else np.log1p(X)) @ [1.0, 0.5, -0.7]
    y += np.random.default_rng(1).standard_normal(27_000)
    model = DPRidge(epsilon=epsilon).fit(sp.csr_array(X), y)
    assert ((model.feature_bounds_[1] - model.center_) / model.scale_ > 6.1).all() == linear
    assert model.score(X, y) > (0.7 if linear else 0.1) and model.releases_[-1].name == "cut_gain"
    within = DPRidge(epsilon=epsilon, bounds=(0, 3)).fit(X, y)  # where no entry lies farther out
    assert within.releases_[-1].name == "target_sums"
    far, cut = np.where(np.arange(3) == 2, 1e12, X[:9]), model.feature_bounds_
    np.testing.assert_allclose(model.predict(far), model.predict(np.clip(far, *cut)))


def test_rows_that_the_fit_weighs_down_are_shortened_in_predictions():
    """Rows of large norm have little weight: they are predicted as rows of twice the clip norm."""
    X, y = data(20_000)
    model = DPRidge(clip_norm=3.0, target_bounds=(-1, 5)).fit(X, y)
    small = DPRidge(clip_norm=0.5, target_bounds=(-1, 5))
    assert "clip_norm=0.5. Use" in messages_of(small.fit, X, y)[0]
    lengths = 2 * model.clip_norm_ * np.linspace(0.1, 0.99, len(X))
    X = X * (lengths / np.linalg.norm(X, axis=1))[:, None]
    np.testing.assert_allclose(model.predict(X), X @ model.coef_ + model.intercept_, rtol=1e-9)
    longest = model.predict(X * (2 * model.clip_norm_ / np.linalg.norm(X, axis=1))[:, None])
    for rows in (100.0 * X, 1e300 * X, 100.0 * sp.csr_array(X), 1e300 * sp.csr_array(X)):
        np.testing.assert_allclose(model.predict(rows), longest, rtol=1e-3, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("bounds", [None, (-1e60, 1e60), (-1e-40, 1e-40)])
def test_predictions_of_numbers_that_a_dtype_hardly_holds_are_finite(bounds):
    """Neither they nor the public bounds overflow: no warning, and no NaN."""
    X, y = data(200)
    for rows in (X.astype(np.float32), X):
        model = DPRidge(clip_norm="auto" if bounds else 1e60, bounds=bounds).fit(rows, y)
        for times in (1.0, 0.1 * np.finfo(rows.dtype).max):
            found = model.predict(rows * times)
            assert np.isfinite(found).all() and found.dtype == model.coef_.dtype


def texts(n=6000, d=4096, words=15, seed=0):
    """Rows of hashed words of two classes, 13% of the second."""
    rng = np.random.default_rng(seed)
    y = rng.random(n) < 0.13
    common = 1 / np.arange(1, d + 1)
    tilted = common * np.exp(1.3 * rng.standard_normal(d))
    laws = [law / law.sum() for law in (common, tilted)]
    columns = np.array([rng.choice(d, words, p=laws[int(label)]) for label in y])
    places = np.repeat(np.arange(n), words), columns.ravel()
    return normalize(sp.csr_array((np.ones(columns.size), places), shape=(n, d))), y


@pytest.mark.deep
@pytest.mark.parametrize("categories", [4, 40])
def test_sparse_tables_of_numbers_and_dummies_are_learnt(categories, rng):
    """Few columns as dense rows; more stay sparse, those in other units than most in theirs."""
    n, d = 8000, 3 * categories
    codes = rng.integers(0, categories, (n, 3))
    dummies = np.hstack([np.eye(categories)[column] for column in codes.T])
    numbers = rng.lognormal(10, 0.5, n), np.where(rng.random(n) < 0.2, rng.lognormal(8, 1, n), 0.0)
    X = sp.csr_array(np.column_stack([dummies, *numbers]))
    y = dummies @ rng.standard_normal(d) + np.log(numbers[0]) + (numbers[1] > 0)
    y += 0.5 * rng.standard_normal(n)
    model = DPRidge(epsilon=2.0).fit(X[:6000], y[:6000])
    assert model.score(X[6000:], y[6000:]) > 0.6
    found = model.predict(X[6000:])
    np.testing.assert_allclose(model.predict(X[6000:].toarray()), found, rtol=1e-9)
    units = model.scale_ / np.median(model.scale_)
    assert (units[d:] > 500).all() and (model.center_[d] == 0) == (categories == 40)


@pytest.mark.deep
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_predictions_keep_the_mean_where_long_rows_have_large_targets(form, rng):
    """Counts of words, and the length of the text: rows of large norm have small weights."""
    length = np.exp(rng.normal(4, 1, 8000))
    X = form(rng.poisson(length[:, None] * rng.dirichlet(np.full(20, 0.5))).astype(float))
    model = DPRidge(epsilon=10.0).fit(X, length)
    assert abs(model.predict(X).mean() / length.mean() - 1) < 0.15
    assert model.score(X, length) > 0.965


def both_sides(model, X, y):
    return np.mean([np.mean(model.predict(X[y == label]) == label) for label in (False, True)])


@pytest.mark.deep
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_wide_rows_and_rare_classes_are_learnt(adjacency):
    X, y = texts()
    options = {"class_weight": "balanced", "clip_norm": 1.0, "adjacency": adjacency}
    model = DPRidgeClassifier(classes=[False, True], **options).fit(X[:4000], y[:4000])
    assert both_sides(model, X[4000:], y[4000:]) > 0.75


@pytest.mark.thorough
@pytest.mark.parametrize("apart", [0.5, 1.0, 1.5])
def test_one_class_is_said_where_less_than_a_tenth_of_the_other_is_found(apart, rng):
    """The mean of the rare class gets the other label in all cases, some of its rows do not."""
    y = rng.random(50_000) < 0.2
    X = rng.standard_normal((50_000, 2))
    X[:, 0] += apart * y
    model = DPRidgeClassifier(classes=[False, True], epsilon=5.0)
    with seeded_entropy(0):
        said = " ".join(messages_of(model.fit, X, y))
    found = np.mean(model.predict(X[y]))
    assert model.predict(X[y].mean(axis=0, keepdims=True)) == [False]
    assert ("predict one class" in said) == (found < 0.1)
    assert (found < 0.1) == (apart < 1.5)


def test_how_much_more_right_than_one_class_is_enough():
    """.15 of what it gets wrong (.03, .075), or two standard errors (.015, .040 under weights)."""
    for n, most, gain, said in (60, 8, 2, 1), (60, 8, 4, 0), (3000, 8, 2, 0), (1000, 5, 3.5, 1):
        found = ClassMoments(np.zeros((2, 1)), n * np.array([0.8, 0.2]), *np.zeros((3, 1)))
        public = found, np.array([most, 10 - most]) / 10, np.full(2, most / 10 + gain / 100)
        assert bool(messages_of(DPRidgeClassifier()._warn_one_class, *public)) == said


def test_how_many_columns_are_kept_follows_from_the_count_over_the_noise():
    sizes = [moment_size(n, 0.7, 1.0) for n in (900, 9000)]
    assert sizes[1] / sizes[0] == pytest.approx(10 ** (2 / 3), rel=0.02)


def topics(n, d, n_classes, seed):
    """Rows of words, of which each class has some of middle frequency more often."""
    rng = np.random.default_rng(seed)
    labels, own = rng.integers(0, n_classes, n), rng.integers(0, n_classes, d)
    lift = np.where((rng.random(d) < 0.3) & (np.arange(d) > 20), 2.2, 1.0)
    laws = np.where(own == np.arange(n_classes)[:, None], lift, 1.0) / (np.arange(d) + 2.0)
    laws /= laws.sum(axis=1, keepdims=True)
    words = np.concatenate([rng.choice(d, 60, p=laws[label]) for label in labels])
    X = sp.csr_array((np.ones(60 * n), (np.repeat(np.arange(n), 60), words)), shape=(n, d))
    return normalize(X), labels


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize(("n_classes", "least"), [(2, 0.76), (4, 0.43)])
def test_classes_that_differ_a_little_in_many_columns(n_classes, least):
    """Each column alone explains almost nothing: .73 and .40 by columns of the largest sums."""
    X, y = topics(5000, 2500, n_classes, 1)
    train, test = slice(0, 3500), slice(3500, None)
    model = DPRidgeClassifier(epsilon=1.0, classes=range(n_classes)).fit(X[train], y[train])
    assert model.score(X[test], y[test]) > least
    target = 3 * (y % 2) + np.random.default_rng(0).standard_normal(len(y)) + 100
    model = DPRidge(epsilon=3.0).fit(X[train], target[train])
    assert model.score(X[test], target[test]) > (0.28 if n_classes == 2 else 0.07)
    assert np.count_nonzero(model.coef_) > 2000


@pytest.mark.thorough("epsilon")
@pytest.mark.filterwarnings("ignore::skdp.exceptions.PartialSignalWarning")
@pytest.mark.parametrize("epsilon", [1.0, 30.0])
@pytest.mark.parametrize("wide", [False, True])
def test_targets_that_rows_do_not_explain_warn(wide, epsilon, rng):
    """Products of the same records agree by chance, also where noise is small next to that."""
    X = topics(600, 2500, 2, 0)[0] if wide else rng.uniform(-1, 1, (300, 15))
    y = rng.random(X.shape[0]) < 0.3
    classifier = DPRidgeClassifier(classes=[False, True], epsilon=epsilon)
    regressor = DPRidge(epsilon=epsilon, target_bounds=(0, 1))
    for seed, model in enumerate((classifier, regressor), 1):
        with seeded_entropy(seed), pytest.warns(NoSignalWarning, match="learnt nothing about"):
            model.fit(X, y)
    assert np.mean(classifier.predict(X) == y) >= np.mean(~y) - 0.02
    with pytest.warns(NoSignalWarning, match="learnt nothing about .* 3 classes"):
        classifier.set_params(classes=[0, 1, 2]).fit(X, rng.integers(0, 3, y.size))
    with pytest.warns(NoSignalWarning, match="are one released number"):
        blind = DPRidge(epsilon=0.1).fit(X, 0.0 * y)
    assert blind.privacy_spent_.epsilon == 0.1  # the charge does not depend on it


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.NoSignalWarning")
def test_classes_of_few_wide_rows_are_not_lost_where_noise_is_small(rng):
    """Chance grows with the columns that stand clear of noise, and is guessed too large of counts.

    What exceeds it, by however little, keeps its model: the label of half of all was taken.
    """
    F, loadings = rng.standard_normal((600, 10)), rng.standard_normal((10, 1800))
    Z = F @ (np.exp(-np.arange(10) / 3)[:, None] * loadings) / 4 + rng.standard_normal((600, 1800))
    X, y = 1.0 * rng.poisson(np.exp(Z + 1.5 * rng.standard_normal(1800))), F[:, 0] + F[:, 1] > 0
    with seeded_entropy(0):
        model = DPRidgeClassifier(epsilon=30, classes=[False, True]).fit(X[:400], y[:400])
    assert model.score(X[400:], y[400:]) > 0.75


@pytest.mark.deep
def test_wide_rows_far_from_zero_show_no_labels_by_their_mean(rng):
    """Clipped rows show too short a mean; what is left of it moved with the noise of a total."""
    F, waves = rng.standard_normal((900, 3)), np.sin(np.outer([3, 5, 8], np.linspace(0, 1, 1600)))
    X, model, said = 1 + 0.3 * F @ waves, DPRidgeClassifier(epsilon=3, classes=[False, True]), []
    for seed in range(5):
        with seeded_entropy(seed):
            said += messages_of(model.fit, X, rng.random(900) < 0.2)
    assert sum("learnt nothing" in text for text in said) >= 3  # of rows about 0, one in ten is not


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.NoSignalWarning")
@pytest.mark.filterwarnings("ignore::skdp.exceptions.PartialSignalWarning")  # nothing to learn
def test_wide_dense_rows_keep_to_what_they_pay(rng):
    """All attributes follow from releases; one more row changes no release beyond its bound."""
    X, y = 1 + rng.standard_normal((401, 1600)), np.append(1e6, rng.standard_normal(400))
    model, pair = DPRidge(epsilon=30), (FitData(X[1:], y[1:]), FitData(X, y))
    with fixed_noise(1), record_transcript() as answers:
        seen = model.fit(X[1:], y[1:]).coef_
    with fixed_noise(1), replay_answers(answers):
        assert np.array_equal(seen, model.fit(3 - 9 * X, y**2).coef_) and seen.any()
    report = transcript_audit(model, pair, answers).check()
    assert 0.7 < report.realised_mu / report.claimed_mu <= 1


@pytest.mark.deep
@pytest.mark.parametrize("bounds", [None, (0, 1e5)])
def test_rows_of_no_known_length_leave_the_budget_to_the_most_frequent_label(bounds):
    """With columns in units of a guess, a third of such fits took the label of a quarter."""
    X = np.random.default_rng(0).lognormal(0, 3, (100, 8))
    y, unseen, wrong = np.arange(100) % 4 == 0, 0, 0
    for seed in range(75):
        model = DPRidgeClassifier(epsilon=0.4, classes=[False, True], bounds=bounds)
        with seeded_entropy(seed):
            said = " ".join(messages_of(model.fit, X, y))
        if "scale of the rows" in said:
            assert not model.coef_.any()
            unseen, wrong = unseen + 1, wrong + model.predict(X[:1])[0]
    assert 30 <= unseen >= 6 * wrong


def test_labels_of_no_class_are_named_where_nothing_is_seen():
    X = np.random.default_rng(0).uniform(-1, 1, (500, 2))
    model = DPRidgeClassifier(classes=[7, 8], bounds=(-1, 1))
    said = messages_of(model.fit, X, np.arange(500) % 2)
    assert "Labels outside 'classes' do not count: check their spelling." in " ".join(said)


@pytest.mark.thorough
def test_classes_of_wide_rows_that_lie_across_common_factors():
    """Directions hold the factors too: .71 by columns of the largest sums next to them."""
    rng = np.random.default_rng(1)
    n, d = 3000, 2500
    y = rng.integers(0, 2, n)
    factors = rng.standard_normal((6, d)) * np.exp(rng.standard_normal((6, 1)))
    own = rng.standard_normal((2, d)) * (rng.random(d) < 0.1)
    X = rng.standard_normal((n, 6)) @ factors + rng.standard_normal((n, d)) + 0.6 * own[y]
    model = DPRidgeClassifier(epsilon=10.0, classes=[0, 1]).fit(X[:2000], y[:2000])
    assert model.score(X[2000:], y[2000:]) > 0.9


@pytest.mark.thorough("n_classes")
@pytest.mark.filterwarnings("ignore:.*no noise|.*classes from y:skdp.exceptions.PrivacyWarning")
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_weights_without_noise(fit_intercept, n_classes):
    """Weights from totals are those of the labels; of equal size they change nothing."""
    X, y = load_digits(return_X_y=True)
    X, y = normalize(X), np.minimum(y, n_classes - 1)

    def fitted(weight):
        model = DPRidgeClassifier(fit_intercept=fit_intercept, class_weight=weight, **NO_NOISE)
        return model.fit(X, y)

    one, plain = fitted(dict.fromkeys(range(n_classes), 7.0)), fitted(None)
    np.testing.assert_allclose(one.coef_, plain.coef_, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(one.intercept_, plain.intercept_, rtol=1e-7, atol=1e-9)
    balanced = fitted("balanced")
    given = fitted({label: 1 / np.sum(y == label) for label in range(n_classes)})
    np.testing.assert_allclose(balanced.coef_, given.coef_, rtol=1e-7, atol=1e-9)
    if fit_intercept and n_classes == 2:
        scores = balanced.decision_function(X)
        assert scores[y == 0].mean() == pytest.approx(-scores[y == 1].mean(), abs=1e-9)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_skewed_columns_and_targets_lose_little(rng):
    """R2 and the total of predictions are about those without noise and cuts."""
    X = np.exp(rng.standard_normal((20_000, 3)))
    y = (X / X.std(axis=0)).sum(axis=1) + np.exp(1.5 * rng.standard_normal(20_000))
    best = LinearRegression().fit(X, y).score(X, y)
    for epsilon in (1.0, 10.0, 1000.0):
        model = DPRidge(epsilon=epsilon).fit(X, y)
        assert abs(model.predict(X).sum() / y.sum() - 1) < 0.1
        assert model.score(X, y) > best - 0.02


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_many_columns_of_which_few_entries_differ_from_zero_are_learnt(rng):
    """Their moments are known up to a factor where noise covers them; entries lie far out."""
    X = (rng.random((4000, 100)) < 0.1) * rng.exponential(1.0, (4000, 100))
    y = X @ rng.standard_normal(100) + rng.standard_normal(4000)
    for epsilon, least in ((1.0, 0.45), (10.0, 0.75)):
        assert DPRidge(epsilon=epsilon).fit(X, y).score(X, y) > least


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_rare_dummies_are_learnt(rng):
    """No scale of 200 columns is found, but the scale of the rows is."""
    y = rng.integers(0, 5, 5000)
    X = np.zeros((5000, 200))
    X[np.arange(5000), 40 * y + rng.integers(0, 40, 5000)] = 1.0
    assert DPRidgeClassifier(classes=range(5)).fit(X, y).score(X, y) > 0.85


@pytest.mark.deep
@pytest.mark.parametrize("bounds", [None, (0, 1)])
def test_effects_of_rare_dummies_are_not_overstated(bounds, rng):
    """Ones lie 6 scales out: the fit sees 3.5 of them, and predictions went on to 5."""
    X = np.eye(40)[rng.integers(0, 40, 20_000)]
    y = X @ (np.arange(40.0) % 7) + rng.standard_normal(20_000)
    model = DPRidge(epsilon=3.0, bounds=bounds).fit(X, y)
    assert np.polyfit(model.predict(X), y, 1)[0] > 0.93


@pytest.mark.thorough
def test_fits_that_lose_more_than_half_say_so(rng):
    """All but two in a hundred fits, as the criterion has an error too."""
    X = rng.standard_normal((300, 4)) + 10.0
    y = X @ [1.0, -0.5, 2.0, 0.0]
    y += y.std() * rng.standard_normal(300)
    best = LinearRegression().fit(X, y).score(X, y)
    known = r"learnt nothing about the target|may miss up to \d+% of the variance|are one released"
    lost = []
    for _ in range(300):
        model = DPRidge(epsilon=1.0)
        said = " ".join(messages_of(model.fit, X, y))
        if model.score(X, y) < 0.4 * best:
            lost.append(re.search(known, said) is not None)
    assert len(lost) > 30 and lost.count(False) <= 6


@pytest.mark.deep
@pytest.mark.parametrize("public", [{"clip_norm": 2.0}, {}, {"bounds": (-3.0, 4.0)}], ids=str)
def test_a_released_number_of_rows_says_how_far_rows_and_targets_count(public):
    """The budget lets 40 records go through all releases, those of the model included."""
    check_null_release("DPRidge", DPRidge(epsilon=60.0, **public))

"""DPPCA: limits, utility, parameters, errors; synthetic rows of what was released."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.preprocessing import normalize

from skdp import DPPCA, DPIncrementalPCA, DPTruncatedSVD, UtilityWarning
from skdp.exceptions import NoSignalWarning
from skdp.testing import seeded_entropy
from tools.outcomes import fitted_attributes, messages_of, refuses

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(no noise|random_state):skdp.exceptions.PrivacyWarning"
)

X = load_digits().data[:, 1:20]


def exact(*, data=X, **kwargs):
    return DPPCA(epsilon=math.inf, **{"clip_norm": math.inf} | kwargs).fit(data)


def seeded(*args, data=X, **kwargs):
    return DPPCA(*args, random_state=0, **kwargs).fit(data)


def test_whitening_does_not_divide_by_a_variance_that_noise_hides():
    pca = DPPCA(2, clip_norm=60.0, whiten=True).fit(X)
    plain = (X - pca.mean_) @ pca.components_.T
    for released, scale in (([4.0, 0.0], 2.0), ([0.0, 0.0], 1.0)):
        pca.explained_variance_ = np.array(released)
        np.testing.assert_allclose(pca.transform(X), plain / scale, atol=1e-9)
        back = pca.inverse_transform(pca.transform(X)) - pca.mean_
        np.testing.assert_allclose(back, plain @ pca.components_, atol=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("n_components", [None, 1, 5, 0.8, 0.999, "mle"])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("whiten", [False, True])
def test_equals_scikit_learn_without_noise(n_components, adjacency, whiten):
    clip_norm = "auto" if n_components == 5 else math.inf  # which cuts nothing then
    params = {"adjacency": adjacency, "whiten": whiten, "clip_norm": clip_norm}
    ours = exact(n_components=n_components, **params)
    assert ours.clip_norm_ == math.inf
    theirs = PCA(n_components, svd_solver="full", whiten=whiten).fit(X)
    for name in filter(lambda name: name.endswith("_"), fitted_attributes(theirs)):
        assert np.allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-6, atol=1e-6), name
    assert np.allclose(ours.transform(X), theirs.transform(X), atol=1e-6)
    assert np.allclose(ours.get_covariance(), theirs.get_covariance(), atol=1e-6)
    assert np.allclose(ours.get_precision(), theirs.get_precision(), atol=1e-6)
    assert np.allclose(ours.score_samples(X), theirs.score_samples(X), atol=1e-6)
    assert np.isclose(ours.score(X), theirs.score(X))
    Z = theirs.transform(X)
    assert np.allclose(ours.inverse_transform(Z), theirs.inverse_transform(Z), atol=1e-6)


def test_public_centre_and_no_centre():
    centre = X.mean(axis=0)
    given = exact(n_components=4, center=centre)
    assert np.allclose(given.components_, exact(n_components=4).components_, atol=1e-7)
    assert np.array_equal(given.mean_, centre)
    none = exact(n_components=4, center="none", data=X - centre)
    assert np.allclose(none.components_, given.components_, atol=1e-7)
    assert not none.mean_.any()


def captured(pca, rows):
    return np.sum((rows @ pca.components_.T) ** 2) / np.sum(rows**2)


def test_automatic_clip_norm():
    rows = np.random.default_rng(1).standard_normal((5000, 6)) * 37.0
    pca = seeded(data=rows)
    median = np.median(np.linalg.norm(rows, axis=1))
    assert median / 1.5 < pca.clip_norm_ < median * 3
    spent = [entry.loss.value**2 for entry in pca.releases_ if entry.name == "norm_centered_rank"]
    assert sum(spent) == pytest.approx(0.8 * 0.06 * pca.privacy_spent_.mu**2)
    far = seeded(data=rows + 1000.0)  # searched once more
    spent = [entry.loss.value**2 for entry in far.releases_ if entry.name == "norm_centered_rank"]
    assert sum(spent) == pytest.approx((0.8 * 0.06 + 0.8 * 0.05 / 2) * far.privacy_spent_.mu**2)


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("n", [20, 150])
def test_a_scale_that_is_not_found_warns(n):
    rows = np.random.default_rng(1).standard_normal((n, 4)) * 1e9
    with pytest.warns(UtilityWarning, match=r"scale of the rows, and used a guess. About \d+"):
        pca = DPPCA(2, epsilon=0.3).fit(rows)
    assert pca.clip_norm_ < 1e11
    with pytest.warns(UtilityWarning, match="scale of the groups, and used a guess"):
        DPPCA(2, epsilon=0.3, privacy_unit="group").fit(rows, groups=np.arange(n) // 2)


def test_auto_components_count_what_rises_above_the_noise(rng):
    rows = rng.standard_normal((50_000, 30)) * 0.002
    rows[:, :3] += rng.standard_normal((50_000, 3))
    assert seeded("auto", data=rows, clip_norm=3.0).n_components_ == 3


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("kind", [DPPCA, DPIncrementalPCA, DPTruncatedSVD])
def test_more_components_than_rows_of_groups(kind):
    """Under replace the number of groups is public, and that of their rows private."""
    for method in {"fit", "partial_fit"} & set(dir(kind)):
        model = kind(4, privacy_unit="group", adjacency="replace")
        with pytest.warns(UtilityWarning):
            getattr(model, method)(X[:3], groups=np.arange(3))
        assert model.components_.shape == (4, 19)


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("kind", [DPPCA, DPTruncatedSVD])
def test_more_components_than_public_rows(kind):
    units = ({"adjacency": "replace"}, *[{"privacy_unit": "entry"}] * (kind is DPTruncatedSVD))
    for public in units:
        refuses(ValueError, r"min\(n_samples, n_features\)(=3|\(3\))", kind(4, **public).fit, X[:3])
    with pytest.warns(UtilityWarning, match="could not find the scale"):
        few = kind(4).fit(X[:3])
    assert few.components_.shape == (4, 19)  # the number of rows is private


def test_budget_split():
    rows = sp.hstack([sp.csr_array(X), sp.csr_array((len(X), 100))], format="csr")
    pca = seeded(data=rows, epsilon=3, budget_split={"clip_norm": 1, "moment": 3})
    spent = [entry.loss.value**2 for entry in pca.releases_ if entry.name == "norm_centered_rank"]
    assert sum(spent) == pytest.approx(0.8 * pca.privacy_spent_.mu**2 / 4)


def constant(n, d):
    return np.full((n, d), 7.0)


def far_column(n, d):
    rows = np.random.default_rng(1).standard_normal((n, d))
    rows[:, 0] += 1e5
    return rows


@pytest.mark.deep
@pytest.mark.parametrize("n_components", [2, None])
@pytest.mark.parametrize("rows", [constant, far_column])
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
def test_the_error_of_the_mean_is_no_component(kind, rows, n_components):
    """Of rows that share a direction, most fits had it for a component."""
    X, said = kind(rows(150, 8)), 0
    for _ in range(20):
        said += any("learnt nothing" in text for text in messages_of(DPPCA(n_components).fit, X))
    assert said >= 15  # two wrong claims are expected, at most


def test_the_middle_of_public_bounds_is_a_centre_for_free(rng):
    rows = 1e6 + rng.uniform(-1, 1, (20_000, 4)) * [1.0, 3.0, 0.5, 0.1]
    pca = seeded(2, data=rows, bounds=[(1e6 - width, 1e6 + width) for width in (2, 4, 2, 1)])
    assert 1.0 < pca.clip_norm_ < 5.0  # half of the diagonal: rows are shorter
    assert abs(pca.components_[0] @ PCA(2).fit(rows).components_[0]) > 0.99
    np.testing.assert_allclose(pca.mean_, rows.mean(axis=0), atol=0.1)
    about = seeded(2, data=rows - 1e6, bounds=(-4, 4), center="none")
    np.testing.assert_array_equal(about.mean_, np.zeros(4))


@pytest.mark.thorough
@pytest.mark.parametrize("width", [1.0, 30.0, 1000.0])
def test_bounds_far_wider_than_the_rows_cost_little(width, rng):
    """The noise depends on the norms of rows, and not on the norm that their bounds allow."""
    rows = rng.uniform(-1, 1, (5000, 6)) * [1.0, 0.8, 0.6, 0.1, 0.1, 0.1] + 0.3
    pca = seeded(2, data=rows, bounds=(-1.5 * width, 1.5 * width))
    best = PCA(2).fit(rows)
    assert np.linalg.norm(pca.components_ @ best.components_.T) ** 2 > 2 * 0.95
    np.testing.assert_allclose(pca.explained_variance_, best.explained_variance_, rtol=0.4)
    np.testing.assert_allclose(pca.mean_, rows.mean(axis=0), atol=0.1)


@pytest.mark.thorough
@pytest.mark.parametrize("far", [1.0, 30.0, 1000.0])
@pytest.mark.parametrize(
    "estimator", [DPPCA(2), DPPCA(2, center="none"), DPPCA(5), DPTruncatedSVD(2)], ids=repr
)
def test_a_clip_norm_far_too_large_costs_little(estimator, far, rng):
    """A number is an upper bound: variances that are read under it would be noise."""
    X = rng.standard_normal((20_000, 6)) * [5, 3, 2, 1, 1, 0.5] + [0, 0, 0, 0, 2, 0]
    model = clone(estimator).set_params(clip_norm=20 * far).fit(X)
    assert 9 < model.clip_norm_ <= 20
    lengths = (X @ model.components_[:2].T) ** 2
    np.testing.assert_allclose(model.explained_variance_[:2], lengths.mean(axis=0), rtol=0.15)
    assert np.sum(lengths) > 0.98 * np.sum(X[:, :2] ** 2)


def test_a_clip_norm_that_rows_have_stays():
    X = normalize(np.random.default_rng(0).standard_normal((4000, 6)))
    for estimator in (DPPCA(2, center="none"), DPTruncatedSVD(2)):
        assert estimator.set_params(clip_norm=1.0, epsilon=0.5).fit(X).clip_norm_ == 1.0


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize(
    "estimator", [DPPCA(1, epsilon=0.15), DPTruncatedSVD(1, epsilon=0.3)], ids=repr
)
def test_a_clip_norm_far_too_large_costs_too_few_rows_little(estimator, rng):
    """They cannot tell their scale: a low guess in its place shortens signal and noise alike."""
    X, found = rng.standard_normal((300, 6)) * [5, 1, 1, 1, 1, 1], []
    for seed in range(8):
        model = clone(estimator).set_params(clip_norm=1000.0, random_state=seed).fit(X)
        found.append(model.components_[0, 0] ** 2)
    assert np.mean(found) > 0.6


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_entries_are_cut_to_the_bounds(form, rng):
    """Rows far outside are one corner: they have no variance, also where they are sparse."""
    rows = np.abs(rng.standard_normal((2000, 3))) * [9.0, 1.0, 1.0]
    for k in (1, 3):
        cut = seeded(k, data=form(rows), bounds=(-2.0, -1.0), epsilon=1e4)
        np.testing.assert_allclose(cut.mean_, -1.0, atol=1e-3)
        assert cut.explained_variance_.max() < 1e-3
        some = seeded(k, data=form(rows), bounds=(0.0, 2.0), epsilon=1e4, center="none")
        same = seeded(
            k, data=form(np.minimum(rows, 2.0)), bounds=(0.0, 2.0), epsilon=1e4, center="none"
        )
        np.testing.assert_allclose(some.explained_variance_, same.explained_variance_, rtol=1e-6)
    wide = seeded(1, data=form(rows), bounds=[(-2.0, -1.0)] + [(-99.0, 99.0)] * 2, epsilon=0.1)
    assert -2.0 <= wide.mean_[0] <= -1.0  # noise is that of all columns
    pairs = DPPCA(1, bounds=(-2.0, -1.0), epsilon=100.0, privacy_unit="group")
    pairs.fit(form(rows), groups=np.arange(2000) // 2)
    assert pairs.explained_variance_.max() < 1e-2


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_nothing_is_found_in_nothing(form):
    """Rows of zeros have no component, nor has the noise of their mean, but for a chance of 1%."""
    rows, found = form(np.zeros((2000, 6))), 0
    for seed in range(30):
        pca = DPPCA("auto", clip_norm=1.0)
        with seeded_entropy(seed):
            said = messages_of(pca.fit, rows)
        found += pca.n_components_ > 0
        assert any("learnt nothing" in text for text in said) == (pca.n_components_ == 0)
        assert (pca.inverse_transform(0 * pca.transform(np.zeros((3, 6)))) == pca.mean_).all()
    assert found <= 3


@pytest.mark.deep
@pytest.mark.parametrize("kind", [DPPCA, DPTruncatedSVD])
def test_ratios_sum_to_what_is_kept_also_of_noise(kind):
    """Eigenvalues of noise that are cut one by one summed to many times what was captured."""
    rng, sums, captured, said = np.random.default_rng(0), [], [], 0
    X = rng.standard_normal((1500, 40))
    X /= np.linalg.norm(X, axis=1)[:, None]
    for _ in range(30):
        model = kind(12, clip_norm=1.0, epsilon=0.1)
        said += any("learnt nothing" in text for text in messages_of(model.fit, X))
        sums.append(model.explained_variance_ratio_.sum())
        basis = np.linalg.qr(model.components_.T)[0]
        captured.append(np.sum((X @ basis) ** 2) / np.sum(X**2))
    assert np.mean(sums) < 2 * np.mean(captured)
    assert said >= 24


def test_without_noise_zero_is_a_number_like_others():
    pca = DPPCA(epsilon=math.inf, clip_norm=math.inf)
    assert "above the noise" not in " ".join(messages_of(pca.fit, np.ones((9, 3))))


@pytest.mark.deep
@pytest.mark.parametrize("kind", [DPPCA, DPIncrementalPCA, DPTruncatedSVD])
def test_components_of_noise_are_said_and_others_are_not(kind, rng):
    """A column next to some below the noise: it is said where these hold half of all squares."""
    X = rng.standard_normal((300, 20)) * [1.6, *[0.35] * 19]

    def said_of(model, rows):
        return " ".join(messages_of(model.fit, rows))

    with seeded_entropy(0):
        said = [said_of(kind(2, clip_norm=3.0), X) for _ in range(8)]
    assert any("the others do not exceed" in text for text in said)
    X = rng.standard_normal((20_000, 8)) * [1.0, *[1e-9] * 7]
    assert all(said_of(kind(k, clip_norm=3.0), X) == "" for k in (1, 2) for _ in range(4))
    if kind == DPPCA:
        assert "Use the first 1 of this fit" in " ".join(said)
        assert said_of(DPPCA(clip_norm=3.0), X) == ""  # of a whole spectrum some lies below
    Y = rng.standard_normal((20_000, 8)) * [3, 2, 1, 1, 1, 1, 1, 1]
    assert all(said_of(kind(2), Y) == "" for _ in range(5))


@pytest.mark.parametrize(
    ("n", "shift"), [(400, 5.0), (400, 500.0), (2000, 50.0), (2000, 300.0), (2000, 5000.0)]
)
def test_rows_far_from_zero_lose_little_by_default(n, shift, rng):
    """The error of one mean about zero alone took .15 to .6 of what two components hold."""
    rows = rng.standard_normal((n, 5)) * [3.0, 2.0, 1.0, 1.0, 1.0]
    best = PCA(2).fit(rows)
    centred, found = rows - best.mean_, DPPCA(2, epsilon=3.0).fit(rows + shift)
    assert captured(found, centred) > 0.97 * captured(best, centred)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_rows_far_from_zero_have_a_second_mean_and_the_same_receipt(adjacency):
    rows = np.random.default_rng(0).standard_normal((2000, 4))
    means = {}
    for shift in (0.0, 0.2, 1e3):
        pca = DPPCA(2, adjacency=adjacency, epsilon=3.0).fit(rows + shift)
        means[shift] = sum(release.name == "row_sum" for release in pca.releases_)
        spent = math.fsum(release.loss.value**2 for release in pca.releases_)
        assert spent == pytest.approx(pca.privacy_spent_.mu**2)
        assert len(pca.releases_) <= 40 or shift > 1
    assert means[0.0] == means[0.2] == 2 < means[1e3] <= 4


# -- synthetic rows follow the released model, and nothing else ------------------------------------

N = 200_000


def rows(n=4000, d=4):
    return np.random.default_rng(0).standard_normal((n, d)) * [3.0, 2.0, 1.0, 0.5] + [5, 0, 0, 1]


@pytest.mark.thorough
@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("k", [None, 2])
def test_they_have_the_released_mean_and_covariance(k, whiten):
    pca = DPPCA(k, epsilon=3.0, clip_norm=15.0, whiten=whiten).fit(rows())
    X = pca.sample(N, random_state=0)
    plain = DPPCA(whiten=False)
    plain.__dict__.update({**vars(pca), "whiten": False})
    covariance = plain.get_covariance()
    deviation = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(X.mean(axis=0) - pca.mean_) < 6 * deviation / np.sqrt(N))
    error = np.cov(X.T) - covariance
    assert np.all(np.abs(error) < 6 * np.sqrt(2) * np.outer(deviation, deviation) / np.sqrt(N))


def test_they_lie_in_public_bounds():
    bounds = [(0.0, 8.0), (-1.0, 1.0), (-2.0, 2.0), (0.0, 2.0)]
    X = DPPCA(epsilon=3.0, bounds=bounds).fit(rows()).sample(1000)
    low, high = np.array(bounds).T
    assert np.all((low <= X) & (high >= X)) and np.any(low == X)


def test_they_are_drawn_from_released_values_alone(rng):
    pca = DPPCA(2, epsilon=3.0, clip_norm=15.0).fit(rows())
    first, again, other = (pca.sample(5, random_state=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.all(first != other)
    assert np.all(pca.sample(2) != pca.sample(2))
    assert not pca.privacy_spent_.seeded
    assert np.all(pca.sample(2, rng) != pca.sample(2, rng))


def test_their_dtype_and_shape():
    pca = DPIncrementalPCA(2, epsilon=3.0, clip_norm=15.0).fit(rows().astype(np.float32))
    assert pca.sample().shape == (1, 4) and pca.sample(3).dtype == np.float32
    pca.set_params(clip_norm=1.5e21).fit((1e20 * rows()).astype(np.float32))
    assert 1e39 < pca.explained_variance_.min() < 1e43  # which no float32 holds
    for bad in (0, 2.0, True, None):
        refuses(ValueError, "'n_samples' must be an int", pca.sample, bad)


@pytest.mark.deep
@pytest.mark.parametrize(("n", "below"), [(50, 1.0), (3000, 0.0)])
def test_a_small_spectrum_below_its_noise_is_zero_and_said(n, below, rng):
    """Four columns show all eigenvalues: without a threshold noise had ratios of .9."""
    rows = rng.standard_normal((n, 4)) * [0.3, 0.1, 0.06, 0.04] - [0.6, -0.2, 0.8, 0.7]
    with seeded_entropy(0):
        for _ in range(8):
            model = DPPCA(2, clip_norm=2.0)
            said = "".join(messages_of(model.fit, rows))
            nothing = not model.explained_variance_.any()
            assert nothing == ("learnt nothing" in said)
            used = np.count_nonzero(model.explained_variance_)
            enough = model.explained_variance_ratio_.sum() > 0.7  # then no more is missed
            assert ("could use only 1" in said) == (used == 1) or (enough and used and not said)
            assert not (said and used == 2)
            below -= nothing / 8
    assert abs(below) <= 0.25


def test_a_fit_that_learns_nothing_warns_about_the_given_bounds():
    X = np.random.default_rng(0).standard_normal((3000, 5))
    said = "Also check 'clip_norm': bounds far too small or too large hide the data"
    with seeded_entropy(0), pytest.warns(NoSignalWarning, match=said):
        DPIncrementalPCA(2, clip_norm=1e3, epsilon=0.01).partial_fit(X)

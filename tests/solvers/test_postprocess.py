"""Free post-processing, against scikit-learn's formulas."""

import math

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA

from skdp.answer import Answer
from skdp.solvers import postprocess
from skdp.solvers.linalg import top_eigenpairs

RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 8)) @ RNG.standard_normal((8, 8)) + np.arange(8.0)
ATTRIBUTES = ["explained_variance_", "explained_variance_ratio_", "singular_values_",
              "noise_variance_", "n_components_"]  # fmt: skip


def moment_of(X, noise_scale=0.0):
    mean = X.mean(axis=0)
    return postprocess.ReleasedMoment((X - mean).T @ (X - mean), mean, float(len(X)), noise_scale)


# -- from moments to attributes ----------------------------------------------------------------


def test_subspace_attributes():
    for k in (1, 3, 8):
        moment = moment_of(X)
        values, V = top_eigenpairs(moment.scatter, k)
        total = Answer(np.trace(moment.scatter), 0.0)
        ours = postprocess.subspace_attributes(values, V, total, 300.0, 8)
        theirs = PCA(k, svd_solver="full").fit(X)
        for name in ATTRIBUTES:
            assert np.allclose(ours[name], getattr(theirs, name)), name


@pytest.mark.parametrize(
    ("values", "found"), [([30, 20, 0], 2), ([10, 8, 0], 1), ([10, 0, 0], 0), ([30, 8, 0], 1)]
)
def test_one_direction_may_be_the_error_of_the_mean(values, found):
    """It may add 15 here: of the components above the noise, the last one may be it."""
    bias = Answer(np.array(15.0), 0.0)
    scatter = np.diag(np.array(values, float))
    moment = postprocess.ReleasedMoment(scatter, np.zeros(3), 9.0, 0.1, bias)
    assert postprocess.pca_attributes(moment, None, 3, 3)[1] == found


def test_attributes_of_nonsense_are_sane():
    """Noise may make a total negative or smaller than its parts."""
    noisy = postprocess.ReleasedMoment(-np.eye(4), np.zeros(4), 1.0, 5.0)
    for rule in (None, 2, 0.5, "mle", "auto"):
        out, found = postprocess.pca_attributes(noisy, rule, 4, 1.0)
        assert found == 0
        assert (out["explained_variance_"] >= 0).all()
        assert out["explained_variance_ratio_"].sum() <= 1 and out["noise_variance_"] >= 0
        assert 0 <= out["n_components_"] <= 4
    out = postprocess.subspace_attributes(
        np.array([3.0, 1.0]), np.eye(4)[:, :2], Answer(-7.0, 0.0), 10.0, 4
    )
    assert out["explained_variance_ratio_"].sum() == pytest.approx(1.0)
    assert out["noise_variance_"] == 0.0
    out = postprocess.subspace_attributes(np.zeros(2), np.eye(4)[:, :2], Answer(0.0, 3.0), 10.0, 4)
    assert np.array_equal(out["explained_variance_ratio_"], [0.0, 0.0])
    assert out["noise_variance_"] == pytest.approx(3.0 / 9.0 / 2)  # not 0: rows are possible
    out = postprocess.svd_variances(np.zeros(2), np.eye(3)[:2], np.full(3, 9.0), -5.0, 1.0, 1.0)
    assert np.array_equal(out["explained_variance_"], [0.0, 0.0])
    assert np.isfinite(out["explained_variance_ratio_"]).all()


@pytest.mark.parametrize("bias", [0.3, 2.0])
def test_split_moment(bias):
    Y = np.column_stack([X, np.full(300, bias)])
    for n in (None, 300.0):
        released = postprocess.split_moment(Y.T @ Y, bias, 0.0, math.inf, n)
        assert released.n == pytest.approx(300.0)
        assert np.allclose(released.mean, X.mean(axis=0))
        assert np.allclose(released.scatter, moment_of(X).scatter)


def test_split_moment_of_few_rows():
    """n stays above two deviations of its noise, the mean inside the ball of all rows."""
    moment = np.zeros((3, 3))
    moment[:2, 2] = moment[2, :2] = 50.0
    moment[2, 2] = -9.0
    released = postprocess.split_moment(moment, 0.5, 4.0, 2.0, None)
    assert released.n == 2 * 4.0 / 0.25
    assert np.linalg.norm(released.mean) <= 2.0 + 1e-12


@pytest.mark.parametrize("spikes", [[], [100.0, 60.0, 30.0], [30.0, 30.0, 29.0]])
@pytest.mark.parametrize("d", [4, 40])
def test_eigenvectors_hold_what_is_said_without_the_noise(d, spikes, rng):
    """Read off as they are their values are 2 to 15 noise scales too large."""
    true = np.diag(np.append(spikes, np.linspace(5.0, 1.0, d - len(spikes))))
    errors, raw, said = [], [], []
    for _ in range(100):
        N = rng.standard_normal((d, d)) * 5.0
        values, V = top_eigenpairs(true + (N + N.T) / 2)
        held, error = postprocess.held_by_eigenvectors(values, 3, 5.0)
        kept = float(np.sum(V[:, :3] * (true @ V[:, :3])))
        errors.append(held.sum() - kept)
        raw.append(values[:3].sum() - kept)
        said.append(error)
    assert abs(np.mean(errors)) < 0.35 * abs(np.mean(raw))
    assert np.sqrt(np.mean(np.square(errors))) < 1.1 * np.mean(said) < 30.0
    everything, _ = postprocess.held_by_eigenvectors(values, d, 5.0)
    assert everything.sum() == pytest.approx(values.sum())


# -- the number of components ------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(12))
def test_mle_is_scikit_learns(seed):
    rng = np.random.default_rng(seed)
    d, n = int(rng.integers(2, 15)), int(rng.integers(60, 500))
    rank = int(rng.integers(1, d + 1))
    rows = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, d))
    rows = rows * rng.uniform(0.5, 3.0) + 0.3 * rng.standard_normal((n, d))
    theirs = PCA("mle", svd_solver="full").fit(rows)
    variances = PCA(svd_solver="full").fit(rows).explained_variance_
    assert postprocess.infer_dimension(variances, float(n)) == theirs.n_components_
    assert postprocess.infer_dimension(1e-9 * variances, float(n)) == theirs.n_components_


def test_mle_of_redundant_columns(rng):
    """Variances that are rounding errors are not components."""
    one = rng.standard_normal((200, 1)) @ rng.standard_normal((1, 9))
    variances = np.linalg.eigvalsh(np.cov(one, rowvar=False))[::-1]
    assert postprocess.infer_dimension(np.maximum(variances, 0.0), 200.0) == 1
    assert PCA("mle", svd_solver="full").fit(one).n_components_ == 1
    for degenerate in ([1.0], [0.0] * 4, [1.0, 0.0, 0.0]):
        assert postprocess.infer_dimension(np.array(degenerate), 10.0) == 1


def test_count_components():
    variances = np.array([5.0, 3.0, 1.0, 1.0])
    assert postprocess.count_components("auto", variances, 10.0, 4) == 4
    assert postprocess.count_components("auto", 0 * variances, 10.0, 4) == 0
    assert postprocess.count_components("auto", variances, 10.0, 3) == 3
    assert postprocess.count_components(0.999, np.zeros(3), 10.0, 3) in (1, 2, 3)


@pytest.mark.parametrize("index", range(3))
def test_a_share_of_exactly_some_components_asks_for_one_more(index):
    """As scikit-learn: the share of the first i components is not above itself."""
    rows = load_iris().data
    whole = postprocess.pca_attributes(moment_of(rows), None, 4, 4)[0]
    rule = float(np.cumsum(whole["explained_variance_ratio_"])[index])
    assert postprocess.pca_attributes(moment_of(rows), rule, 4, 4)[0]["n_components_"] == index + 2


# -- the probabilistic model -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("k", "variances", "noise", "covariance", "precision"),
    [(0, [], 2.0, [2, 2, 2], [0.5, 0.5, 0.5]), (2, [2.0, 5.0], 0.0, [2, 5, 0], [0.5, 0.2, 0]),
     (2, [4.0, 0.1], 1.0, [4, 1, 1], [0.25, 1, 1])],
    ids=["without components", "without noise", "a variance below the noise"],
)  # fmt: skip
def test_precision_of_models_at_the_edge(k, variances, noise, covariance, precision):
    """Without noise the pseudoinverse; a released variance may lie below that of the noise."""
    model = (np.eye(3)[:k], np.array(variances), noise)
    assert np.allclose(postprocess.model_covariance(*model), np.diag(covariance))
    assert np.allclose(postprocess.model_precision(*model), np.diag(precision))


# -- the truncated decomposition ---------------------------------------------------------------


def test_svd_variances_take_off_the_noise_of_the_means(rng):
    means = np.full(500, 0.2)
    totals = []
    for _ in range(50):
        noisy = means + 0.1 * rng.standard_normal(500)
        out = postprocess.svd_variances(np.array([10.0]), np.eye(500)[:1], noisy, 100.0, 10.0, 0.1)
        totals.append(out["explained_variance_"][0] / out["explained_variance_ratio_"][0])
    assert np.mean(totals) == pytest.approx(100.0 - means @ means, rel=0.01)


@pytest.mark.parametrize("n_items", [1, 3, 6, 40])
@pytest.mark.parametrize("floor", [1, 2, 5, 60])
def test_user_level_mu_covers_each_release(n_items, floor):
    """All interactions of a user against what the noise was sized for, release by release."""
    mu = postprocess.user_level_mu(1.0, n_items, floor, 0.0)
    most = min(n_items, floor)
    trace = most  # a row has square norm most/floor at most; one interaction was 1/floor
    sums = math.sqrt(most)  # a row of norm sqrt(most/floor); one interaction was sqrt(1/floor)
    product = floor * math.sqrt(n_items / (2 * most - 1))
    assert mu == pytest.approx(max(trace, sums, product))
    both = math.hypot(0.8 * mu, 0.6 * n_items)  # and all of the user's items are counted
    assert postprocess.user_level_mu(1.0, n_items, floor, 0.36) == pytest.approx(both)


def test_a_mean_that_is_mostly_noise_is_shrunk(rng):
    """Its entries are drawn to their mean as far as they scatter by noise."""
    noise, ends = rng.standard_normal(1000), np.repeat([-1.0, 1.0], 500) / np.sqrt(1000)
    for common, length in ((0, 0.0), (100, 0.0), (1, 10.0), (0, 300.0), (100, 300.0)):
        sums = common + length * ends + noise
        mean, kept = postprocess.shrunk_mean(sums, 1.0, 50, 1e4)
        error = np.linalg.norm(mean - (common + length * ends) / 50)
        assert error <= min(np.linalg.norm(noise), length + 6) / 50 + 1e-12
        assert kept == 1.0 if length == 300.0 else kept < 0.2
    exact, kept = postprocess.shrunk_mean(np.ones(4), 0.0, 2, 0.5)
    assert kept == 1.0 and np.allclose(exact, 0.25)
    assert postprocess.shrunk_mean(np.zeros(4), 1.0, 2, 0.5)[1] == 0.0


def test_a_released_count_can_be_divided_by():
    counts = (80.0, 3.0, 80.0), (np.float64(-5), 3.0, 6.0), (np.array(0.2), 0.0, 1.0)
    for value, noise_scale, n in (*counts, (0.2, 0.4, 1.0)):
        assert postprocess.released_count(*Answer(value, noise_scale)) == n

"""The solution of a regression, and totals and means of classes, from noisy moments."""

import math

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from skdp.answer import Answer
from skdp.regression._ridge_classifier import label_codes
from skdp.solvers.linear_regression import (
    NormalEquations,
    class_moments,
    error_of_forms,
    normal_equations,
    reweighted,
    right_labels,
    solve_normal_equations,
    steadied,
    true_forms,
)
from skdp.solvers.postprocess import denoised
from skdp.solvers.spectral import product_directions

RNG = np.random.default_rng(0)


def problem(n, d, noise, seed=0, spread=0.7):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * np.arange(1, d + 1) ** -spread / math.sqrt(d)
    w = rng.standard_normal(d)
    y = X @ w + 0.1 * rng.standard_normal(n)
    G = noise * math.sqrt(2) * rng.standard_normal((d, d))
    e = noise * rng.standard_normal((d, 1))
    A, b = X.T @ X, (X.T @ y)[:, None]
    zero = np.zeros(d), np.zeros(1)
    exact = NormalEquations(A, b, *zero, 0.0, np.zeros(1))
    return exact, NormalEquations(A + (G + G.T) / 2, b + e, *zero, noise, np.array([noise])), w


def test_without_noise_and_penalty_it_has_least_norm():
    X = RNG.standard_normal((30, 3))
    X = np.column_stack([X, X[:, 0]])
    released = NormalEquations(X.T @ X, X.T @ X[:, :1], np.zeros(4), np.zeros(1), 0.0, np.zeros(1))
    found = solve_normal_equations(released, 0.0)[0][:, 0]
    np.testing.assert_allclose(found, [0.5, 0, 0, 0.5], atol=1e-12)
    nothing = released._replace(scatter=np.zeros((4, 4)), cross=np.zeros((4, 1)))
    np.testing.assert_array_equal(solve_normal_equations(nothing, 0.0)[0], 0.0)


@pytest.mark.deep
@pytest.mark.parametrize("noise", [3.0, 10.0, 30.0])
def test_it_beats_the_plain_solution_and_its_usual_repairs(noise):
    """Against the noisy normal equations, clipped, and with the noise edge as a penalty."""
    losses = np.zeros(4)
    for seed in range(20):
        exact, noisy, w = problem(20000, 40, noise, seed)
        values, W = np.linalg.eigh(noisy.scatter)
        edge = 2 * noise * math.sqrt(40)
        repaired = values + 1, np.maximum(values, 0) + 1, np.maximum(values, 0) + edge
        for i, m in enumerate(repaired):
            found = W @ (W.T @ noisy.cross / m[:, None]) - w[:, None]
            losses[i] += np.sum(found * (exact.scatter @ found))
        found = solve_normal_equations(noisy, 1.0)[0][:, 0] - w
        losses[3] += found @ exact.scatter @ found
    assert losses[3] < 0.9 * min(losses[0], losses[1])
    # A penalty at the edge is at times a little better where hardly anything can be learnt.
    assert losses[3] < (1.0 if noise < 30 else 1.15) * losses[2]


def test_true_forms_are_those_of_the_matrix_without_noise(rng):
    """Averages of w'A w over thirds of the spectrum of a large matrix, to a few percent."""
    d, noise = 400, 1.0
    A = np.diag(np.linspace(0, 60.0, d))
    G = math.sqrt(2) * noise * rng.standard_normal((d, d))
    values, W = np.linalg.eigh(A + (G + G.T) / 2)
    truth = np.einsum("ij,ik,kj->j", W, A, W)
    found = true_forms(values, noise)
    for part in np.array_split(np.arange(d), 3):
        assert abs(found[part].mean() - truth[part].mean()) < 1.0
        assert abs(values[part].mean() - truth[part].mean()) > 2.0 or 130 < part[0] < 140
    np.testing.assert_array_equal(true_forms(np.array([-1.0, 2.0]), 0.0), [0.0, 2.0])
    rest = np.sum((W.T @ A @ W) ** 2) / d - np.sum(truth**2) / d
    assert error_of_forms(values, found, noise) == pytest.approx(rest + 3, rel=0.1)
    alike = np.linalg.eigvalsh(30 * np.eye(d) + (G + G.T) / 2)
    assert 3 <= error_of_forms(alike, true_forms(alike, noise), noise) < 8 < d * noise**2


@pytest.mark.thorough
@pytest.mark.parametrize("noise", [0.0, 3.0, 30.0, 100.0])
def test_the_share_that_is_kept_is_known(noise):
    """About what the map explains of what could be explained, over random problems."""
    said, kept = [], []
    for seed in range(25):
        exact, noisy, w = problem(20_000, 10, noise, seed, spread=0.5)
        noisy = noisy if noise else exact
        found = solve_normal_equations(noisy, 1e-9)
        off = found.coefficients[:, 0] - w
        kept.append(1 - (off @ exact.scatter @ off) / (w @ exact.scatter @ w))
        said.append(1 - found.lost[0])
    assert np.mean(said) == pytest.approx(np.mean(kept), abs=0.12)


@pytest.mark.parametrize("flat", [False, True])
def test_noise_alone_gives_nothing(flat):
    for seed in range(10):
        _, noisy, _ = problem(0, 20, 1.0, seed)
        found, length = solve_normal_equations(noisy, 1.0, flat=flat), np.linalg.norm(noisy.cross)
        assert np.linalg.norm(found.coefficients) < (length / math.sqrt(40) if flat else 1.0)
        assert not found.above_noise.any()


@pytest.mark.parametrize("unit", [1e-200, 1.0, 1e200])
def test_means_of_targets_under_two_bounds_count_by_their_noise(unit, rng):
    """The moments about 0 stay what they are; without noise nothing moves."""
    A, B = rng.standard_normal((5, 5)), unit * rng.standard_normal((5, 2))
    means = rng.standard_normal(5), unit * np.array([3.0, -3.0])
    released = NormalEquations(A @ A.T, B, *means, 2.0, unit * np.array([2.0, 200.0]), 10.0, 0.5)
    wide = Answer(unit * np.array([3.5, 2.0]), unit * np.array([0.8, np.inf]))
    near, far = (steadied(released, wide._replace(value=v)) for v in (wide.value, 2 * means[1]))
    cross = near.cross + 10 * np.outer(near.row_mean, near.target_mean)
    np.testing.assert_allclose(cross, B + 10 * np.outer(*means))
    np.testing.assert_allclose(near.target_mean, unit * np.array([3.1, -3.0]))
    # A gap that is no noise is of targets beyond the bounds, which products do not hold either:
    # along columns that add up to a constant they would turn into coefficients.
    np.testing.assert_allclose(far.target_mean, unit * np.array([3 + 3 * 37.25 / 41.25, -3.0]))
    np.testing.assert_allclose(far.cross, B - 6 * np.outer(means[0], unit * np.array([1.0, 0.0])))
    assert steadied(exact := released._replace(noise=0.0), wide) is exact
    assert steadied(released, None) is released


def test_a_mean_counts_as_far_as_noise_does_not_explain_it():
    """A gap of noise is mostly nothing, and never makes more error than to leave it out by half."""
    noise = np.random.default_rng(0).standard_normal(20_000)
    chance = denoised(noise, 1.0)
    assert abs(np.mean(chance != 0) - math.erfc(math.sqrt(0.5))) < 6 * math.sqrt(0.25 / len(noise))
    assert np.mean(chance**2) < 0.5
    for gap in (1.0, 2.0, 5.0):
        assert np.mean((denoised(gap + noise, 1.0) - gap) ** 2) < min(1.5 * gap**2, 1.5)
    np.testing.assert_allclose(denoised(np.array([1e200, 0.0, 3.0]), 1.0), [1e200, 0.0, 3 - 1 / 3])


@pytest.mark.parametrize("alpha", [1e300, 1.7e308])
def test_the_share_that_is_kept_is_a_share_under_any_penalty(alpha):
    for seed in range(4):
        released = problem(50, 1 + seed, 1.0, seed)[1]
        with np.errstate(over="raise"):
            lost = solve_normal_equations(released, alpha).lost
        assert np.all((lost >= 0) & (lost <= 1))


def test_hopeless_moments_stay_finite():
    public = {"bias": 0.3, "clip_norm": 1.0, "target_norm": 0.6}
    for scale in (1e-60, 1.0, 1e60):
        moment = scale * RNG.standard_normal((6, 6))
        moment[-1, -1] = -scale
        released = normal_equations(moment + moment.T, scale, np.ones(2), **public)
        assert np.linalg.norm(released.row_mean) <= 1 + 1e-12
        assert np.isfinite(np.vstack(solve_normal_equations(released, 1.0)[:2])).all()


# -- columns -------------------------------------------------------------------------------------


@pytest.mark.deep
def test_what_the_noise_of_an_intercept_takes_is_known(rng):
    """Over draws of the noise: the squares that a wrong mean adds, and nothing without a bias."""
    n, bias, noise = 400, 2.0, 60.0
    X = rng.standard_normal((n, 3)) + [1.0, 0.0, -1.0]
    y = X @ [1.0, -1.0, 0.5]
    Z = np.column_stack([X, y, np.full(n, bias)])
    took, said, public = [], [], {"bias": bias, "clip_norm": 9.0, "target_norm": 9.0}
    for _ in range(400):
        G = np.triu(noise / math.sqrt(2) * rng.standard_normal((5, 5)))
        G = G + np.triu(G, 1).T + np.diag((math.sqrt(2) - 1) * np.diag(G))
        released = normal_equations(Z.T @ Z + G, noise, np.ones(1), **public)
        found = solve_normal_equations(released, 1e-9)
        off = X.mean(axis=0) @ found.coefficients[:, 0] + found.intercepts[0] - y.mean()
        took.append(off**2 / y.var())
        without = solve_normal_equations(released._replace(bias=0.0), 1e-9)
        said.append((found.lost - without.lost)[0] / 3)
    assert 0.7 < np.median(said) / np.mean(took) < 1.4
    assert not solve_normal_equations(released, 1.0, flat=True).lost.any()


# -- classes ---------------------------------------------------------------------------------------

CORNER, TARGET, CLIP = 0.5, 0.6, 10.0


def released(X, V, noise_scale=0.0, rng=None):
    """The release of rows X and codes V, with symmetric noise if there is any."""
    Z = np.column_stack([X, TARGET * V, np.full(len(X), CORNER)])
    M = Z.T @ Z
    if rng is not None:
        G = noise_scale * rng.standard_normal(M.shape)
        M = M + (G + G.T) / 2
    public = {"bias": CORNER, "clip_norm": CLIP, "target_norm": TARGET}
    return normal_equations(M, noise_scale, np.full(V.shape[1], 1 / TARGET), **public)


def data(n_classes, n=600, d=4):
    rng = np.random.default_rng(0)
    y = rng.choice(n_classes, n, p=np.arange(1, n_classes + 1) / sum(range(n_classes + 1)))
    return rng.standard_normal((n, d)) + 0.5 * y[:, None] * np.arange(d), y


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case", [(0, 0, 0, 36, 40), (0, 1, 0, 0, 8), (0, 1, 1, 0, 8), (1, 1, 0, 36, 40)]
)
def test_what_products_have_by_chance_is_no_evidence(case):
    """Of forty fits of records that tell nothing of a target, near 0 or far, hardly one sees it."""
    rng, seen, (slope, square, far, few, most) = np.random.default_rng(0), 0, case
    for _ in range(40):
        X, y = rng.standard_normal((200, 30)), rng.standard_normal((200, 1))
        moments = released(X, y + slope * X[:, :1] + far, 2.0 + 38 * far, rng)
        seen += solve_normal_equations(moments._replace(square=square), 1.0).above_noise.all()
    assert few <= seen <= most


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("n_classes", [2, 3, 5])
def test_totals_and_means_are_those_of_the_classes(n_classes, centered):
    X, y = data(n_classes)
    codes, _ = label_codes(n_classes, centered=centered)
    found = class_moments(released(X, codes[y]), codes)
    np.testing.assert_allclose(found.totals, np.bincount(y), rtol=1e-9)
    means = [X[y == k].mean(axis=0) for k in range(n_classes)]
    np.testing.assert_allclose(found.means, means, rtol=1e-9, atol=1e-12)
    assert found.shown.all()


@pytest.mark.parametrize("n_classes", [2, 3, 5])
def test_products_apart_say_what_one_moment_says(n_classes):
    """With the noise of a bound U T, which is that of U, what a record adds, on sums of classes."""
    X, y = data(n_classes)
    codes, _ = label_codes(n_classes, centered=True)
    t, bias = CORNER * math.sqrt(n_classes - 1), np.full((len(X), 1), CORNER)
    products = np.hstack([X, bias]).T @ np.hstack([t * codes[y], bias])
    moment = np.pad(X.T @ X, (0, codes.shape[1]))
    public = {"bias": CORNER, "clip_norm": CLIP, "target_norm": t}
    unit, together = np.full(codes.shape[1], 1 / t), released(X, codes[y])
    apart = normal_equations(moment, 0.0, unit, products=Answer(products, 0.0), **public)
    for one, other in zip(apart, together, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8)
    noisy = Answer(products, math.hypot(t, CORNER))
    noisy = normal_equations(moment, 5.0, unit, products=noisy, **public)
    noise = class_moments(noisy, codes).noise
    np.testing.assert_allclose(np.linalg.norm(noise, axis=0), 1.0)
    assert noisy.noise == 5.0 / math.sqrt(2)


@pytest.mark.thorough
@pytest.mark.parametrize("noise", [0.0, 1.0, 3.0, 10.0])
def test_the_penalty_of_a_flat_solution_does_not_shorten_it(noise):
    """Least squares along what it finds, by the moments without noise, have a slope of about 1."""
    slopes = []
    for seed in range(20):
        exact, noisy, _ = problem(4000, 20, noise, seed)
        found = solve_normal_equations(noisy if noise else exact, 0.0, flat=True).coefficients[:, 0]
        slopes.append(float(found @ exact.cross[:, 0]) / float(found @ exact.scatter @ found))
    assert 0.85 < np.median(slopes) < 1.05


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_weighted_products_are_those_of_weighted_rows(n_classes, centered):
    X, y = data(n_classes)
    codes, _ = label_codes(n_classes, centered=centered)
    weights = np.array([5.0, 1.0, 0.5])[:n_classes]
    w = weights[y] * len(y) / weights[y].sum()
    plain = released(X, codes[y])
    got = reweighted(plain, class_moments(plain, codes), weights, centered=centered)
    shift = (w @ X / len(y), w @ codes[y] / len(y)) if centered else (0.0, 0.0)
    expected = ((X - shift[0]) * w[:, None]).T @ (codes[y] - shift[1])
    np.testing.assert_allclose(got.cross, expected, rtol=1e-8, atol=1e-8)
    equal = reweighted(plain, class_moments(plain, codes), np.ones(n_classes))
    ridge = Ridge(2.0).fit(X, codes[y])
    np.testing.assert_allclose(
        solve_normal_equations(equal, 2.0, flat=True).coefficients,
        ridge.coef_.T.reshape(4, -1),
        rtol=1e-7,
    )


@pytest.mark.deep
def test_noise_of_weighted_products_is_as_stated():
    """Within 6 sigma, for classes of unlike size: the error of an entry over its deviation."""
    X, y = data(3, n=20_000)
    codes, _ = label_codes(3, centered=True)
    rng, errors = np.random.default_rng(1), []
    truth = reweighted(released(X, codes[y]), class_moments(released(X, codes[y]), codes),
                       1.0 / np.bincount(y)).cross  # fmt: skip
    for _ in range(200):
        noisy = released(X, codes[y], 2.0, rng)
        got = reweighted(noisy, class_moments(noisy, codes), 1.0 / np.bincount(y))
        errors.append((got.cross - truth)[0] / got.cross_noise)
    assert np.mean(np.square(errors)) == pytest.approx(1.0, abs=6 * np.sqrt(2 / 400))


@pytest.mark.deep
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_noise_in_both_means_and_coefficients_is_no_sign_of_classes(n_classes, weighted, rng):
    """Classes with one mean: most fits find no more than chance, as they would with fresh noise."""
    y = rng.choice(n_classes, 300, p=[0.3, 0.7] if n_classes == 2 else [0.2, 0.3, 0.5])
    X = rng.standard_normal((300, 8))
    X -= np.array([X[y == k].mean(axis=0) for k in range(n_classes)])[y]
    codes, _ = label_codes(n_classes, centered=True)
    gains = {True: [], False: []}
    for _ in range(60):
        noisy = released(X, codes[y], 8.0, rng)
        found = class_moments(noisy, codes)
        if not found.shown.all():
            continue
        weights = 1 / found.totals if weighted else np.ones(n_classes)
        used = reweighted(noisy, found, weights) if weighted else noisy
        solution = solve_normal_equations(used, 1.0, flat=True)
        for taken in gains:
            some = solution._replace(traces=taken * solution.traces)
            right, shares = right_labels(used, found, some, weights), found.shares(weights)
            gains[taken].append(right @ shares - shares.max())
    assert np.median(gains[True]) <= 0.0 < np.median(gains[False])


@pytest.mark.parametrize("n_classes", [2, 3])
def test_parts_of_classes_that_get_their_label(n_classes, rng):
    """Without noise, classes that are normal: what a linear map finds."""
    y = rng.choice(n_classes, 20_000, p=[0.3, 0.7] if n_classes == 2 else [0.2, 0.3, 0.5])
    X = rng.standard_normal((20_000, 4)) + 1.2 * np.eye(4)[y]
    codes, _ = label_codes(n_classes, centered=True)
    moments = released(X, codes[y])
    found = class_moments(moments._replace(clip_norm=9.0), codes)
    solution = solve_normal_equations(moments, 0.0, flat=True)
    right = right_labels(moments, found, solution, np.ones(n_classes))
    scores = X @ solution.coefficients + solution.intercepts
    labels = (scores[:, 0] > 0) if n_classes == 2 else np.argmax(scores, axis=1)
    shares = np.bincount(y) / len(y)
    np.testing.assert_allclose(found.shares(np.ones(n_classes)), shares, rtol=1e-6)
    square = np.var(codes[y], axis=0)
    np.testing.assert_allclose(found.square(np.ones(n_classes)), square, rtol=1e-6)
    parts = [np.mean(labels[y == k] == k) for k in range(n_classes)]
    np.testing.assert_allclose(right, parts, atol=0.1)


def test_a_class_without_records_has_its_noise_as_total():
    X, y = data(3)
    codes, _ = label_codes(4, centered=True)
    noisy = released(X, codes[y], 1.0, np.random.default_rng(2))
    found = class_moments(noisy, codes)
    assert found.shown.tolist() == [True, True, True, False]
    assert found.totals[3] > 1.0
    assert np.isfinite(reweighted(noisy, found, 1 / found.totals).cross).all()


def test_labels_start_from_what_directions_were_made_of():
    """A moment that is noise says at what length: that is one number, which shows."""
    A, N, P = np.random.default_rng(0).standard_normal((3, 4, 4))
    moments = NormalEquations(A + A.T, 2 * P + N, *np.zeros((2, 4)), 1.4, np.ones(4), directions=P)
    found = solve_normal_equations(moments, 1.0, flat=True)
    assert (
        found.above_noise.all() and np.corrcoef(found.coefficients.ravel(), P.ravel())[0, 1] > 0.95
    )


def test_squares_about_a_mean_have_its_noise_too():
    """Else a direction that all rows share has next to no squares, and the longest slope."""
    square, product, zero, one = np.array([-30.0, 150.0, 0.0, 1.0])[:, None, None]
    plain = NormalEquations(square, product, *(2 * [zero[0]]), 13.0, 25 * one[0], 900.0, 0.4)
    plain = plain._replace(directions=one)
    shared = plain._replace(row_mean=np.array([0.5]))
    empty = plain._replace(cross=zero, cross_noise=1e9 * one[0])  # no overflow
    found = [solve_normal_equations(a, 1.0).coefficients[0, 0] for a in (plain, shared, empty)]
    assert found[2] == 0 < found[1] < 0.5 * found[0]


def test_columns_that_hold_nothing_take_nothing_from_the_share_of_directions():
    filled, empty = 3 * np.random.default_rng(0).standard_normal((2, 200, 2))
    few = np.vstack([np.abs(4 * filled[:20]) + [0.0, 60.0], [[0.0, 180.0]]])
    plain, more = ((each, 3.0, 1.0, 0.3, 1.0, False) for each in (few, np.vstack([empty, few])))
    shares = product_directions(*plain).share, product_directions(*more).share
    assert shares[0] > 0.8 and shares[0] - shares[1] < 0.15


@pytest.mark.parametrize("alpha", [0.0, 1.0, 1e300])
def test_directions_are_the_same_in_any_unit(alpha):
    """Of rows and targets; a penalty above everything leaves a direction of some length."""
    products = np.random.default_rng(0).standard_normal((41, 3)) * 50
    products[:, -1] = 100.0
    plain = product_directions(products, 3.0, alpha, 0.3, 1.0, True)
    assert np.all(plain.near > 0)
    for unit in (2.0**-200, 2.0**200):
        units = 3.0 * unit**2, alpha if alpha > 1 else alpha * unit**2, 0.3 * unit, unit
        scaled = product_directions(products * unit**2, *units, True)
        np.testing.assert_allclose(scaled.share, plain.share)
        np.testing.assert_allclose(scaled.near, plain.near * unit)

"""Local fits, shared structure and head rules, on public arrays."""

import itertools
import math
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from skdp.answer import Answer
from skdp.solvers import local_fits as fits
from skdp.solvers import personalization as shared
from skdp.solvers import user_heads as heads
from skdp.solvers.scaling import ScaledUsers

RNG = np.random.default_rng(0)


class Batch(NamedTuple):
    X: np.ndarray
    Y: np.ndarray
    x_exponent: np.ndarray
    y_exponent: np.ndarray

    def keep(self, key, make, *, large=False):
        return make()


def batch_of(X, Y):
    zeros = np.zeros(len(X), np.intc)
    return Batch(X, Y, zeros, zeros)


def users(n=400, d=8, k=2, m=9, noise=0.3, seed=1):
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.standard_normal((d, k)))[0]
    theta = rng.standard_normal((n, k)) @ U.T
    X = rng.standard_normal((n, m, d))
    Y = np.einsum("nmd,nd->nm", X, theta) + noise * rng.standard_normal((n, m))
    return U, theta, batch_of(X, Y[:, :, None])


# -- local fits ------------------------------------------------------------------------------------


def brute_force(X, y, penalty, variance):
    """Ridge with an intercept of given prior variance, each row left out in turn."""
    out = []
    for i in range(len(X)):
        kept = np.arange(len(X)) != i
        x, t = X[kept], y[kept]
        if math.isinf(variance):
            mean, middle = x.mean(0), t.mean(0)
            G = (x - mean).T @ (x - mean) + penalty * np.eye(X.shape[1])
            b = np.linalg.solve(G, (x - mean).T @ (t - middle))
            out.append(y[i] - middle - (X[i] - mean) @ b)
            continue
        x = np.c_[x, np.full(len(x), math.sqrt(variance))]
        b = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ t)
        out.append(y[i] - np.append(X[i], math.sqrt(variance)) @ b)
    return np.array(out)


@pytest.mark.thorough
@pytest.mark.parametrize("q", [3, 12])
@pytest.mark.parametrize("variance", [0.0, 0.3, math.inf])
@pytest.mark.parametrize("penalty", [1e-3, 0.5])
def test_leave_one_out_is_exact(q, variance, penalty):
    F = RNG.standard_normal((4, 7, q)) + 2
    Y = RNG.standard_normal((4, 7, 2)) + 3
    path = fits.RidgePath.of(F)
    fit = path.fit(Y, np.zeros_like(Y), fits.LOSSES["squared"], np.full(4, penalty), variance)
    coefficients = path.coefficients(fit)
    errors = path.errors(Y, penalty, variance)
    for u in range(4):
        size = np.mean(np.sum(F[u] ** 2, axis=1))
        expected = brute_force(F[u], Y[u], penalty * size, variance * size)
        assert np.allclose(Y[u] - fit.left_out[u], expected)
        assert np.isclose(errors[u], np.mean(expected**2, axis=0).sum())
        residuals = penalty * size * fit.dual[u]
        assert np.allclose(F[u] @ coefficients[u] + fit.intercept[u], Y[u] - residuals)


@pytest.mark.parametrize("m", [4, 7, 15])
@pytest.mark.parametrize("part", [1e-6, 0.3, 1.0])
def test_a_path_beside_another_one_is_that_of_mapped_rows(m, part):
    """Rows times UU' + sqrt(r) (I - UU') have the products r XX' + (1 - r) XU (XU)'."""
    X, Y = RNG.standard_normal((5, m, 8)) + 1, RNG.standard_normal((5, m, 2))
    U = np.linalg.qr(RNG.standard_normal((8, 3)))[0]
    B = U @ U.T + math.sqrt(part) * (np.eye(8) - U @ U.T)
    path, mapped = fits.RidgePath.of(X).extended(part, X @ U), fits.RidgePath.of(X @ B)
    assert np.allclose(path.size, mapped.size)
    for given in itertools.product([1e-4, 0.1, 30.0], [0.0, 0.2, math.inf]):
        assert np.allclose(path.errors(Y, *given), mapped.errors(Y, *given), rtol=1e-6)
    pairs = (each.residuals(Y, np.full((5, 1), 0.1), math.inf) for each in (path, mapped))
    assert all(map(np.allclose, *pairs))


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_label_fits_reach_the_minimum(loss):
    F = RNG.standard_normal((5, 40, 3))
    Y = (RNG.random((5, 40, 1)) < 0.5).astype(float)
    if loss == "softmax":
        Y = np.eye(3)[RNG.integers(0, 3, (5, 40))]
    path, penalty, model = fits.RidgePath.of(F), 0.5, fits.LOSSES[loss]
    fit = path.fit(Y, np.zeros_like(Y), model, np.full(5, penalty), 0.0)
    scale = 4.0 if loss == "logistic" else 2.0
    gradient = fits.moments(F, Y - model.mean(F @ path.coefficients(fit)))
    shrink = penalty * path.size[:, None, None] * path.coefficients(fit) / scale
    assert np.allclose(gradient, shrink, atol=1e-2 * np.abs(gradient).max())


@pytest.mark.parametrize("loss", fits.LOSSES.values(), ids=fits.LOSSES)
def test_pseudo_responses_of_a_user_depend_on_no_other_user(loss, rng):
    """Widths of clipped residuals are medians of that user's own, not of a batch."""
    Y, eta = rng.standard_normal((2, 5, 7, 1))
    nearly = np.tile([1e-3, 1e-3 + 3e-16], 2)  # a constant to some, and next to what is larger
    A = np.stack([nearly, np.ones(4), 1 + np.array([0.5, -0.5, 5e-14, -5e-14])])[:, :, None]
    for of, *batch in ((loss.pseudo, Y, eta), (fits.centred, A)):
        alone = [of(*(each[i : i + 1] for each in batch)) for i in range(len(batch[0]))]
        assert np.array_equal(of(*batch), np.concatenate(alone))
    assert fits.centred(A)[0].any()


def local_results(F, Y):
    path = fits.RidgePath.of(F)
    fit = path.fit(Y, 0 * Y, fits.LOSSES["huber"], np.full(len(F), 0.5), math.inf)
    yield from (*fit, path.coefficients(fit), path.s, fits.unit(F), fits.shrunk_means(Y))
    yield path.errors(Y, [0.1, 1.0], [0.5, math.inf])
    yield path.best_dual(Y, shared.PENALTIES, math.inf)
    none = np.zeros(len(F), np.intc)
    rows, *units = ScaledUsers(F, Y, none, none, None, ()).in_own_units(True)
    yield from (rows.X, *units)


@pytest.mark.parametrize("m", [1, 2, 3, 9])
def test_fits_of_a_user_depend_on_no_other_user(m, rng):
    """Neither by the sizes of others, as in what counts as a direction, nor by their number."""
    F, Y = rng.standard_normal((5, m, 4)), rng.standard_normal((5, m, 1))
    F *= 10.0 ** np.array([0, 7, -7, 0, 3])[:, None, None]
    F[0, :, 0] = 0.0
    alone = zip(*(local_results(F[[i]], Y[[i]]) for i in range(5)), strict=True)
    for together, each in zip(local_results(F, Y), alone, strict=True):
        assert np.array_equal(together, np.concatenate(each))


# -- the shared structure --------------------------------------------------------------------------


def test_whitener_inverts_a_clear_moment_and_ignores_noise():
    Q = np.linalg.qr(RNG.standard_normal((6, 6)))[0]
    M = (Q * [9.0, 5.0, 4.0, 2.0, 1.0, 0.5]) @ Q.T
    W = shared.whitener_of(Answer(M, 1e-9))
    assert np.allclose(W @ M @ W, (W @ M @ W)[0, 0] * np.eye(6), atol=1e-6)
    assert np.allclose(shared.whitener_of(Answer(M, 100.0)), np.eye(6))
    for bad in (np.zeros((4, 4)), -np.eye(4)):
        assert np.isfinite(shared.whitener_of(Answer(bad, 1.0))).all()


# -- heads -----------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_election_needs_a_clear_gain_or_a_clear_loss():
    U, theta, batch = users()
    model = shared.GlobalModel(np.zeros((8, 1)), np.zeros(1))
    users_heads = heads.Heads(shared.View(None, True, "squared"), U, model)
    found = [heads.all_rules(shared.Shared(U, x, 1.0), users_heads.view) for x in (0.9, 0.0, 1e-3)]
    rules = found[-1]
    assert [*map(len, found)] == [19] * 3  # their number is public
    votes = heads.HeadVotes(users_heads, rules)(batch)
    assert np.allclose(np.linalg.norm(votes, axis=1), 1)
    undecided, exponents = heads.Choice(rules), batch[2:]
    classes = heads.Heads(shared.View(None, True, "logistic"), U, model)
    both = [heads.HeadVotes(each, rules) for each in (users_heads, classes)]
    for m in range(1, 8):  # bit by bit, whoever else has as many rows
        of_all, alone = (
            np.hstack([*(vote(few) for vote in both), users_heads.fit(few, undecided)[0]])
            for n in (400, 1)
            for few in [Batch(*(A[:n] for A in (batch.X[:, :m], batch.Y[:, :m], *exponents)))]
        )
        assert np.array_equal(of_all[:1], alone)

    ask = SimpleNamespace(noise_scale=1.0)
    ask.sums = lambda *_, share: Answer(votes.sum(axis=0), ask.noise_scale)
    choice = heads.elect(ask, users_heads, rules, 400.0, 1.0)
    rule = choice.rules[0]
    assert choice.rules == rules[:3] and rule.outside < 1e-2 and rule.intercept == 0.0
    assert choice.level == max(rules, key=lambda r: (r.penalty, votes.sum(axis=0)[rules.index(r)]))
    level = heads.HeadRule(0.0, math.inf, 1.0, True)
    for m in (1, 2):
        few = Batch(batch.X[:, :m], batch.Y[:, :m] + 1, batch.x_exponent, batch.y_exponent)
        found = users_heads.fit(few, choice._replace(level=level, lone=level))[0]
        assert np.allclose(found, few.Y.sum(axis=1) / (m + 1) * (np.arange(9) == 8))
        assert heads.HeadVotes(users_heads, rules)(few).any() == (m > 1)
    votes = -votes
    choice = heads.elect(ask, users_heads, rules, 400.0, 1.0)
    assert {rule.penalty for rule in choice.rules} == {math.inf}
    for at, size, lone in ((-2, 99, -2), (-2, 2, -3), (-1, 99, -1), (-1, 2, -3), (0, 99, -1)):
        ask.sums = lambda *_, share: Answer(size * np.eye(19)[at], 1.0)  # noqa: B023
        few = heads.elect(ask, users_heads, rules, 400.0, 1.0)[1:3]
        assert few == (rules[at or -3], rules[lone])
    ask.sums = lambda *_, share: Answer(votes.sum(axis=0), ask.noise_scale)
    ask.noise_scale, votes = 300.0, -votes
    choice = heads.elect(ask, users_heads, rules, 400.0, 1.0)
    assert (choice.rules, choice.lone) == (rules, level)
    gains = heads.HeadVotes(users_heads, rules).gains(batch)
    gaps = votes.sum(axis=0).max() - votes.sum(axis=0)
    weights = np.exp(batch.Y.shape[1] / 2 * gains - gaps**2 / 4 / (9e4 + 400 / len(rules)))
    heads_of = [users_heads.fit(batch, heads.Choice((rule,)))[0] for rule in rules]
    mean = np.einsum("nr,rnd->nd", weights / weights.sum(axis=1, keepdims=True), heads_of)
    np.testing.assert_allclose(users_heads.fit(batch, choice)[0], mean, rtol=1e-6, atol=1e-9)
    errors = [np.mean((x[:, :-1] - theta) ** 2) for x in (mean, heads_of[rules.index(rule)])]
    assert errors[1] < errors[0] < 5 * errors[1]


def test_users_of_two_labels_do_not_elect_what_costs_others_more():
    """Labels that follow the model of all by chance: most have one twice, and gain a little."""
    Y = np.repeat([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]], [64, 32, 4], axis=0)[:, :, None]
    model = shared.GlobalModel(np.zeros((3, 1)), np.log([4.0]))
    theirs = heads.Heads(shared.View(None, True, "logistic"), np.eye(3, 1), model)
    rules = heads.HeadRule(0.0, math.inf, 1.0, True), heads.AS_ALL
    votes = heads.HeadVotes(theirs, rules)(batch_of(np.ones((100, 2, 3)), Y)).sum(axis=0)
    assert votes[0] < -5 and votes[1] > 5


def test_a_shrunk_model_of_labels_is_multiplied():
    """Labels follow 4 times its coefficients, and its intercepts as they are; not what is noise."""
    X, made = RNG.standard_normal((900, 6, 3)), np.random.default_rng(1).gumbel(size=(900, 6, 3))
    model = shared.GlobalModel(np.eye(3) / 2, np.array([0.5, 0.0, -0.5]))
    labels = np.eye(3)[np.argmax(4 * X @ model.coef + model.intercept + made, axis=2)]
    view, ask, batch = shared.View(None, True, "softmax"), SimpleNamespace(), batch_of(X, labels)
    ask.sums = lambda name, vote, *_, share: Answer(vote(batch).sum(axis=0), 1.0)
    for seen, times in ((True, 4.0), (False, 1.0)):
        found = heads.unshrunk(ask, heads.Heads(view, np.eye(3, 1), model._replace(found=seen)), 1)
        assert np.allclose(found, (times, 1.0))


def test_heads_undo_scale_and_whitener():
    """The same head whatever the units of rows and targets."""
    U, _, batch = users(n=20)
    W = np.diag(RNG.uniform(0.5, 2, 8))
    model = shared.GlobalModel(np.zeros((8, 1)), np.zeros(1))
    plain = heads.Heads(shared.View(W, True, "squared"), U, model)
    choice = heads.Choice((heads.HeadRule(0.2, 0.1, 0.5, False),))
    expected = plain.fit(batch, choice)[0]
    scaled = Batch(batch.X * 2.0**-7, batch.Y * 2.0**-3, batch.x_exponent + 7, batch.y_exponent + 3)
    assert np.allclose(plain.fit(scaled, choice)[0], expected)
    predicted = np.einsum("nmd,nd->nm", batch.X, expected[:, :-1]) + expected[:, -1:]
    assert np.mean((predicted - batch.Y[:, :, 0]) ** 2) < 0.5 * np.mean(batch.Y**2)


def test_where_targets_are_not_seen_each_user_has_its_own_mean():
    """Whatever the model of all says; also of one row, and heads lie about that mean."""
    U, _, batch = users(n=20, m=9)
    model = shared.GlobalModel(np.zeros((8, 1)), np.array([1e9]), own_means=True)
    few = Batch(batch.X[:, :1], batch.Y[:, :1] + 512.0, batch.x_exponent, batch.y_exponent)
    theirs = heads.Heads(shared.View(None, True, "squared", model), U, model)
    found = theirs.fit(few, heads.Choice((heads.AS_ALL,)))[0]
    assert np.allclose(found[:, -1], few.Y[:, 0, 0]) and not found[:, :-1].any()
    choice = heads.Choice((heads.HeadRule(1.0, 1e-4, math.inf, True),))
    near, far = (theirs.fit(batch._replace(Y=batch.Y + s), choice)[0] for s in (0.0, 1e6))
    assert np.allclose(far[:, :-1], near[:, :-1], atol=1e-6)
    assert np.allclose(far[:, -1] - near[:, -1], 1e6)


@pytest.mark.parametrize("far", [0.0, 300.0])
def test_kept_decompositions_are_as_good_as_exact_ones(far, rng):
    """They are rounded to 24 bits; rows may lie far from 0."""
    X = rng.standard_normal((40, 8, 12)) + far
    seen = shared.View(None, True, "squared")(batch_of(X, rng.standard_normal((40, 8, 1))))
    grid = np.transpose(list(itertools.product(shared.PENALTIES, [0.0, 0.1, np.inf])))
    given, found = (x.errors(seen.Y, *grid) for x in (fits.RidgePath.of(seen.X), seen.path))
    np.testing.assert_allclose(found, given, rtol=1e-2)
    assert np.median(np.abs(found / given - 1)) < 1e-5


def test_kept_decompositions_hold_features_of_any_scale():
    X = RNG.standard_normal((3, 6, 4))
    X[:, :, 0] = 1.0  # constant, and far larger than the rest after the whitener
    view = shared.View(np.diag([1e30, 1e-10, 1e-10, 1e-10]), True, "squared")
    seen = view(batch_of(X, RNG.standard_normal((3, 6, 1))))
    assert np.isfinite(seen.path.s).all()
    np.testing.assert_allclose(seen.path.s[:, -1], 6 * seen.X[:, 0, 0] ** 2, rtol=1e-6)


def test_prior_outside_the_subspace_follows_its_error():
    def ratio(error, d=10, k=2):
        return heads.outside_variance(shared.Shared(np.eye(d)[:, :k], error, 1.0))

    assert ratio(0.0) == 0.0 < ratio(0.1) < ratio(0.5) < ratio(8.0) == pytest.approx(1.0)
    assert {ratio(8.0, d, 1) for d in range(2, 30)} == {1.0}  # clients refuse larger ones
    assert ratio(0.5, 3, 3) == 1.0  # equal rules count once
    for x, kept in ((4.0, 1), (9.0, 2)):  # 9 is not clear of the noise
        votes = Answer(np.diag([90.0, x] + 8 * [0.0]), 1.0)
        ask = SimpleNamespace(grams=lambda *_, votes=votes, **share: votes)
        view = shared.View(None, True, "squared")
        assert shared.direction_start(ask, view, 10, 2, 1.0).U.shape[1] == kept
    ask.grams = lambda *_, **share: Answer(np.array([[90.0]]), 1.0)
    assert shared.direction_start(ask, view, 1, 1, 1.0).error == 0.0  # nothing is outside


@pytest.mark.parametrize(("lead", "alone"), [(9.0, True), (2.0, False)])
def test_one_class_leads_by_more_than_rows_move_scores(lead, alone):
    coef = np.full((2, 1), 0.5)
    assert heads.predicts_one_class(shared.GlobalModel(coef, np.array([-lead]))) is alone
    three = shared.GlobalModel(np.hstack([coef, -coef, 0 * coef]), np.array([lead, 0.0, 0.0]))
    assert heads.predicts_one_class(three) is alone


def test_a_model_of_which_noise_hides_most_is_not_found():
    """All products are clearly more than noise together, in the second case by a little each."""
    moments, unit = np.diag([100.0] * 60 + [1e3]), shared.TargetUnit(np.zeros(1), 1.0, True)
    ask = SimpleNamespace(grams=lambda *_, share: Answer(moments, 1.0))
    for product, found in ((1.1, True), (0.76, False)):
        moments[:-1, -1] = moments[-1, :-1] = product
        model, _ = shared.pooled_model(ask, np.ones(60, bool), unit, 1.0, intercept=False)
        assert model.found == found and model.coef.any()

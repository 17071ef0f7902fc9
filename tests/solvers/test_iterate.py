"""Power iterations on noisy products, against toy answers."""

import math

import numpy as np
import pytest

from skdp.answer import Answer
from skdp.solvers import iterate
from skdp.solvers.linalg import orthonormal
from tools.gate import Matrix


def symmetric(n, values, seed=0):
    Q = orthonormal(np.random.default_rng(seed).standard_normal((n, len(values))))
    return (Q * values) @ Q.T, Q


def overlap(A, B):
    """Mean squared cosine between two subspaces of the same dimension."""
    return np.sum((orthonormal(A).T @ orthonormal(B)) ** 2) / A.shape[1]


def transcript(sent, wanted=1):
    out = iterate.PosteriorMean(wanted)
    for step in sent:
        out.steps.append(step)
    return out


def start(n, k, seed=5):
    return np.random.default_rng(seed).choice([-1.0, 1.0], (n, k))


# -- the pieces --------------------------------------------------------------------------------


def test_shorten_rows_leaves_flat_queries_and_none():
    flat = orthonormal(np.random.default_rng(0).standard_normal((400, 3)))
    assert iterate.shorten_rows(flat, math.inf) is flat
    assert np.allclose(iterate.shorten_rows(np.full((9, 1), 1 / 3), 1.0), 1 / 3)
    assert np.array_equal(iterate.shorten_rows(np.zeros((4, 2)), 0.25), np.zeros((4, 2)))


@pytest.mark.parametrize("c", [0.25, 1.0, 4.0])
def test_shorten_rows_cuts_the_longest(c, rng):
    X = orthonormal(rng.standard_t(2, (500, 3)))
    Q = iterate.shorten_rows(X, c)
    assert np.linalg.norm(Q) == pytest.approx(math.sqrt(3))  # the norm of X
    longest = [np.linalg.norm(Y, axis=1).max() for Y in (X, Q)]
    assert longest[1] < longest[0]
    cosines = np.sum(X * Q, axis=1) / np.linalg.norm(X, axis=1) / np.linalg.norm(Q, axis=1)
    assert np.allclose(cosines, 1.0)  # rows are scaled, not turned


def test_the_posterior_is_the_regression_of_a_matrix_on_its_answers(rng):
    """Against the mean of a Gaussian row given all its answers, computed without shortcuts."""
    A = 2 * rng.standard_normal((300, 6))
    sent = []
    for scale in (1.0, 0.5, 3.0):
        query = rng.standard_normal((6, 2))
        noisy = A @ query + scale * rng.standard_normal((300, 2))
        sent.append((query, Answer(noisy, scale)))
    known = transcript(sent, wanted=2)
    prior = 0.03 * known.signal()
    Q, Y = (np.hstack(part) for part in zip(*((q, a.value) for q, a in sent), strict=True))
    noise = np.diag(np.repeat([1.0, 0.25, 9.0], 2))
    mean = Y @ np.linalg.inv(prior * Q.T @ Q + noise) @ Q.T * prior
    X = rng.standard_normal((6, 2))
    assert np.allclose(known.times(X), mean @ X)
    assert abs(known.leading()[:, 0] @ np.linalg.svd(mean)[0][:, 0]) == pytest.approx(1.0)


def test_without_noise_the_posterior_is_exact_on_what_was_asked(rng):
    A = rng.standard_normal((40, 30))
    queries = [rng.standard_normal((30, 2)) for _ in range(4)]
    queries.append(queries[0])  # a query that repeats
    for scale in (0.0, 1e-9):
        known = transcript([(Q, Answer(A @ Q, scale)) for Q in queries], wanted=2)
        X = np.hstack(queries[:4]) @ rng.standard_normal((8, 3))
        assert np.allclose(known.times(X), A @ X, atol=1e-5)
        Q = orthonormal(np.hstack(queries[:4]))
        assert overlap(known.leading(), np.linalg.svd(A @ Q)[0][:, :2]) > 1 - 1e-8
        assert known.noise_fraction() < 1e-12


@pytest.mark.parametrize(("sigma", "share"), [(0.0, 1.0), (5.0, None), (1000.0, 0.0)])
def test_the_share_of_the_noise(sigma, share, rng):
    """The signal is the mean of a direction and of one that is all noise."""
    U = orthonormal(rng.standard_normal((2000, 2)))
    answer = U * [0.0, sigma] + 0.1 * rng.standard_normal((2000, 2))
    found = transcript([(np.eye(5)[:, :2], Answer(answer, 0.1))], wanted=2).noise_fraction()
    expected = 0.01 / (0.01 + sigma**2 / 4000) if share is None else share
    assert found == pytest.approx(expected, abs=0.06)


# -- the iterations ----------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [3.0, 1e-2, 1e-6])
def test_queries_are_shortened_as_far_as_answers_are_noise(noise):
    A, _ = symmetric(300, [50.0, 40.0, 30.0], seed=4)
    ask = Matrix(A, noise)
    options = {"law": "gaussian", "n_iter": 8}
    X = iterate.iterate_symmetric(ask, start(300, 5), 3, 1.0, **options)[1]
    assert {query.shape[1] for query in ask.queries} == {5}
    assert X.shape[1] == 3
    longest = [(query**2).sum(axis=1).max() * 300 / query.shape[1] for query in ask.queries]
    assert longest[0] < 1.5  # where nothing is known yet
    assert (longest[-1] < 2.0) == (noise == 3.0)


@pytest.mark.deep
def test_slow_spectra_are_resolved_as_noise_vanishes():
    """Eigenvalues that fall slowly: sixteen steps of the power method alone stay behind."""
    values = 50 / np.sqrt(np.arange(1, 201))
    A, _ = symmetric(200, values, seed=1)

    def captured(noise):
        options = {"law": "gaussian", "n_iter": 16}
        X = iterate.iterate_symmetric(Matrix(A, noise), start(200, 8), 4, 1.0, **options)[1]
        return np.sort(np.linalg.eigvalsh(X.T @ A @ A @ X))[-4:].sum() / np.sum(values[:4] ** 2)

    found = [captured(noise) for noise in (0.3, 0.03, 1e-4)]
    assert found == sorted(found)
    assert found[0] > 0.97 and found[2] > 0.999


@pytest.mark.parametrize("along", [0.0, 1.0])
def test_symmetric_power_across_a_direction(along):
    """Also from a start along it: a query of zeros has no sensitivity, and ends a fit."""
    A, Q = symmetric(60, [10.0, 6.0, 1.0])
    out = Q[:, :1]

    def project(Y):
        return Y - out @ (out.T @ Y)

    ask = Matrix(A)
    first = 1e-30 * (along * out + (1 - along) * start(60, 1))  # of any length
    options = {"law": "gaussian", "n_iter": 30, "project": project}
    X = iterate.iterate_symmetric(ask, first, 1, 1.0, **options)[1]
    assert overlap(X, Q[:, 1:2]) > 1 - 1e-8
    assert abs(out.T @ X).max() < 1e-10
    for query in ask.queries:
        assert abs(out.T @ query).max() < 1e-10 < 0.5 < np.linalg.norm(query)


def test_half_steps_across_a_found_pair(rng):
    """Deflation: the second pair, orthogonal to the public first one."""
    U, V = (orthonormal(rng.standard_normal((size, 3))) for size in (40, 60))
    A, first = (U * [9.0, 5.0, 0.5]) @ V.T, (U[:, :1], V[:, :1])
    for noise in (0.0, 0.01):
        ask = Matrix(A, noise)
        u, v = iterate.half_steps(ask, start(60, 1), 20, 1.0, 1, first)
        assert abs(first[0].T @ u).max() < 1e-10
        assert abs(first[1].T @ v).max() < 1e-10
        assert overlap(v, V[:, 1:2]) > 0.9
        for query in ask.queries:
            basis = first[1] if len(query) == 60 else first[0]
            assert abs(basis.T @ query).max() < 1e-10


def test_ritz_values_are_signed_and_sorted_by_magnitude():
    A, Q = symmetric(30, [4.0, -9.0, 2.0, 6.0])
    ask = Matrix(A)
    first = Q @ orthonormal(np.ones((4, 4)) + np.eye(4))[:, :3]
    values, vectors, noise = iterate.iterate_symmetric(
        ask, first, 3, 0.3, law="exact", n_iter="auto"
    )
    assert np.allclose(values, [-9.0, 6.0, 4.0])
    assert np.allclose(A @ vectors, vectors * values)
    assert ask.shares[-1] == 0.02 * 0.3
    assert noise == 0.0

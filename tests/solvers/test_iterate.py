"""Power iterations on noisy products, against toy answers."""

import math
from typing import NamedTuple

import numpy as np
import pytest

from skdp.solvers.iterate import (
    Sent,
    back_project,
    back_project_laplace,
    half_steps,
    ritz_values,
    shorten_rows,
    symmetric_power,
)
from skdp.solvers.linalg import orthonormal


class Answer(NamedTuple):
    value: np.ndarray
    noise_scale: float


class Matrix:
    """Products with A; the noise grows with the longest row of the query, as for one entry."""

    def __init__(self, A, noise=0.0, seed=0):
        self.A, self.noise = A, noise
        self.rng = np.random.default_rng(seed)
        self.shares, self.queries = [], []

    def _answer(self, A, X, share):
        self.shares.append(share)
        self.queries.append(X)
        value = A @ X
        scale = self.noise * np.linalg.norm(X, axis=1).max() / math.sqrt(share)
        return Answer(value + scale * self.rng.standard_normal(value.shape), scale)

    def right(self, X, *, share):
        return self._answer(self.A, X, share)

    def left(self, U, *, share):
        return self._answer(self.A.T, U, share)

    def ritz(self, X, *, share):
        self.shares.append(share)
        return Answer(X.T @ self.A @ X, 0.0)


def low_rank(m, n, values, seed=0):
    rng = np.random.default_rng(seed)
    U = orthonormal(rng.standard_normal((m, len(values))))
    V = orthonormal(rng.standard_normal((n, len(values))))
    return (U * values) @ V.T, U, V


def symmetric(n, values, seed=0):
    Q = orthonormal(np.random.default_rng(seed).standard_normal((n, len(values))))
    return (Q * values) @ Q.T, Q


def overlap(A, B):
    """Mean squared cosine between two subspaces of the same dimension."""
    return np.sum((orthonormal(A).T @ orthonormal(B)) ** 2) / A.shape[1]


def last_answer(sent, X, agreement):
    """The plain power step."""
    return sent[-1].answer


def start(n, k, seed=5):
    return np.random.default_rng(seed).choice([-1.0, 1.0], (n, k))


# -- the pieces --------------------------------------------------------------------------------


def test_shorten_rows_leaves_flat_queries_and_none():
    flat = orthonormal(np.random.default_rng(0).standard_normal((400, 3)))
    assert shorten_rows(flat, None) is flat
    assert np.allclose(shorten_rows(np.full((9, 1), 1 / 3), 1.0), 1 / 3)


@pytest.mark.parametrize("c", [0.25, 1.0, 4.0])
def test_shorten_rows_cuts_the_longest(c):
    rng = np.random.default_rng(0)
    X = orthonormal(rng.standard_t(2, (500, 3)))
    Q = shorten_rows(X, c)
    assert np.linalg.norm(Q) == pytest.approx(math.sqrt(3))  # the norm of X
    longest = [np.linalg.norm(Y, axis=1).max() for Y in (X, Q)]
    assert longest[1] < longest[0]
    cosines = np.sum(X * Q, axis=1) / np.linalg.norm(X, axis=1) / np.linalg.norm(Q, axis=1)
    assert np.allclose(cosines, 1.0)  # rows are scaled, not turned


def test_shorten_rows_of_zeros():
    assert np.array_equal(shorten_rows(np.zeros((4, 2)), 0.25), np.zeros((4, 2)))


def test_back_project_is_the_weighted_estimate():
    """sum_i Y_i Q_i' / s_i^2, times X."""
    rng = np.random.default_rng(0)
    sent = [
        Sent(rng.standard_normal((6, 2)), rng.standard_normal((9, 2)), scale)
        for scale in (1.0, 0.5, 3.0)
    ]
    X = rng.standard_normal((6, 2))
    estimate = sum(s.answer @ s.query.T / s.noise_scale**2 for s in sent)
    assert np.allclose(back_project(sent, X, None), estimate @ X)


def test_back_project_averages_the_noise():
    """The same question nine times: a third of the noise."""
    A, _, V = low_rank(300, 200, [50.0])
    rng = np.random.default_rng(1)
    sent = [Sent(V, A @ V + 2.0 * rng.standard_normal((300, 1)), 2.0) for _ in range(9)]
    signal = (A @ V)[:, 0]

    def error(Y):
        direction = Y[:, 0] * (signal @ Y[:, 0]) / (Y[:, 0] @ Y[:, 0])
        return np.linalg.norm(direction - signal)

    assert error(back_project(sent, V, None)) < 0.45 * error(last_answer(sent, V, None))


def test_answers_that_do_not_agree_are_left_out():
    """In symmetric iterations an answer that points elsewhere is of no use."""
    rng = np.random.default_rng(0)
    good = Sent(np.eye(50)[:, :1], 10 * np.eye(50)[:, :1], 1.0)
    stray = Sent(
        np.eye(50)[:, :1], rng.standard_normal((50, 1)) * [[0.0]] + np.eye(50)[:, 7:8], 1.0
    )
    X = np.eye(50)[:, :1]
    assert np.allclose(back_project([stray, good], X, 0.1), good.answer)
    assert np.allclose(back_project([stray, good], X, None), good.answer + stray.answer)
    assert np.allclose(back_project([good, good], X, 0.1), 2 * good.answer)


@pytest.mark.parametrize(("signal", "gain"), [(5.0, 1.2), (15.0, 1.1), (40.0, 1.0)])
def test_laplace_step_beats_the_mean_under_laplace_noise(signal, gain):
    """Most of the information of a Laplace answer on a weak signal is in its sign."""
    query = np.ones((1, 1))
    cosines = {"laplace": [], "mean": []}
    for seed in range(5):
        rng = np.random.default_rng(seed)
        truth = orthonormal(rng.standard_normal((4000, 1)))
        noise = rng.laplace(0, 1 / math.sqrt(2), (4, 4000, 1))
        sent = [Sent(query, signal * truth + part, 1.0) for part in noise]
        for name, step in (("laplace", back_project_laplace), ("mean", back_project)):
            Y = step(sent, query, None)
            cosines[name].append(abs(Y[:, 0] @ truth[:, 0]) / np.linalg.norm(Y))
    assert np.mean(cosines["laplace"]) > gain * np.mean(cosines["mean"])


def test_laplace_step_minimises_its_objective():
    rng = np.random.default_rng(0)
    query = np.ones((1, 1))
    sent = [Sent(query, 3 * rng.standard_normal((20, 1)), s) for s in (0.8, 1.5, 1.0)]
    u = back_project_laplace(sent, query, None)[:, 0]
    b = np.array([s.noise_scale / math.sqrt(2) for s in sent])
    power = np.mean(sent[-1].answer ** 2) - 2 * b[-1] ** 2
    a = np.full(3, math.sqrt(max(power, 1e-3 * b[-1] ** 2)))
    Y = np.hstack([s.answer for s in sent])

    def objective(v):
        return v**2 / 2 + np.sum(np.abs(Y - v[:, None] * a) / b, axis=1)

    for move in (-1e-3, 1e-3):
        assert (objective(u) <= objective(u + move) + 1e-9).all()


# -- the iterations ----------------------------------------------------------------------------


@pytest.mark.parametrize("step", [last_answer, back_project])
@pytest.mark.parametrize("shorten", [None, 0.25])
def test_symmetric_power_converges_without_noise(step, shorten):
    A, Q = symmetric(60, [10.0, -8.0, 0.5])
    ask = Matrix(A)
    X = symmetric_power(ask, start(60, 2), 25, 0.8, step=step, shorten=shorten)
    assert overlap(X, Q[:, :2]) > (1 - 1e-8 if step is last_answer and shorten is None else 0.999)
    assert ask.shares == pytest.approx([0.8 / 25] * 25)


def test_symmetric_power_across_a_direction():
    A, Q = symmetric(60, [10.0, 6.0, 1.0])
    out = Q[:, :1]

    def project(Y):
        return Y - out @ (out.T @ Y)

    ask = Matrix(A)
    X = symmetric_power(ask, start(60, 1), 30, 1.0, step=last_answer, shorten=None, project=project)
    assert overlap(X, Q[:, 1:2]) > 1 - 1e-8
    assert abs(out.T @ X).max() < 1e-10
    assert all(abs(out.T @ query).max() < 1e-10 for query in ask.queries)


def test_symmetric_power_averages_all_answers():
    A, Q = symmetric(400, [60.0], seed=2)
    averaged, plain = [], []
    for seed in range(5):
        for found, step in ((averaged, back_project), (plain, last_answer)):
            X = symmetric_power(Matrix(A, 6.0, seed), start(400, 1), 12, 1.0, step=step)
            found.append(overlap(X, Q))
    assert np.mean(averaged) > np.mean(plain) + 0.1


@pytest.mark.parametrize("shape", [(40, 60), (60, 40), (50, 50)])
def test_half_steps_converge_without_noise(shape):
    A, U, V = low_rank(*shape, [9.0, 5.0, 0.5])
    ask = Matrix(A)
    left, right = half_steps(ask, start(shape[1], 2), 20, 0.6, shorten=None, step=last_answer)
    assert overlap(left, U[:, :2]) > 1 - 1e-8
    assert overlap(right, V[:, :2]) > 1 - 1e-8
    assert ask.shares == pytest.approx([0.6 / 40] * 40)


def test_half_steps_under_noise():
    A, U, V = low_rank(500, 300, [60.0, 50.0], seed=3)
    ask = Matrix(A, 0.8)
    left, right = half_steps(ask, start(300, 2), 6, 1.0)
    assert overlap(left, U) > 0.8
    assert overlap(right, V) > 0.8


def test_half_steps_across_a_found_pair():
    """Deflation: the second pair, orthogonal to the public first one."""
    A, U, V = low_rank(40, 60, [9.0, 5.0, 0.5])
    first = (U[:, :1], V[:, :1])
    for noise in (0.0, 0.01):
        ask = Matrix(A, noise)
        u, v = half_steps(ask, start(60, 1), 20, 1.0, shorten=None, step=last_answer, across=first)
        assert abs(first[0].T @ u).max() < 1e-10
        assert abs(first[1].T @ v).max() < 1e-10
        assert overlap(v, V[:, 1:2]) > 0.9
        for query in ask.queries:
            basis = first[1] if len(query) == 60 else first[0]
            assert abs(basis.T @ query).max() < 1e-10


def test_half_steps_across_nothing_is_plain():
    A, _, _ = low_rank(20, 30, [9.0, 5.0])
    nothing = (np.zeros((20, 0)), np.zeros((30, 0)))
    plain = half_steps(Matrix(A), start(30, 1), 5, 1.0)
    across = half_steps(Matrix(A), start(30, 1), 5, 1.0, across=nothing)
    assert all(np.allclose(a, b) for a, b in zip(plain, across, strict=True))


def test_ritz_values_are_signed_and_sorted_by_magnitude():
    A, Q = symmetric(30, [4.0, -9.0, 2.0, 6.0])
    ask = Matrix(A)
    values, vectors = ritz_values(ask, Q @ orthonormal(np.ones((4, 4)) + np.eye(4)), 3, 0.3)
    assert np.allclose(values, [-9.0, 6.0, 4.0])
    assert np.allclose(A @ vectors, vectors * values)
    assert ask.shares == [0.3]

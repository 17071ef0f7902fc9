"""Degrees, directions and scalings of a graph."""

from typing import NamedTuple

import numpy as np
import pytest

from skdp.solvers.graphs import ScaledGraph, angular_rows, degree_direction, released_degrees


class Answer(NamedTuple):
    value: np.ndarray
    noise_scale: float


class Graph:
    def __init__(self, A, noise=0.0, seed=0):
        self.A = A
        self.noise = noise
        self.rng = np.random.default_rng(seed)
        self.shares = []

    def _answer(self, value, share):
        self.shares.append(share)
        return Answer(value + self.noise * self.rng.standard_normal(value.shape), self.noise)

    def right(self, X, *, share):
        return self._answer(self.A @ X, share)

    def left(self, U, *, share):
        raise AssertionError("a symmetric graph is asked from the right only")

    def ritz(self, X, *, share):
        return self._answer(X.T @ self.A @ X, share)


def symmetric(n=40, seed=0):
    A = np.triu(np.random.default_rng(seed).random((n, n)), 1)
    return A + A.T


def test_degrees_without_noise_are_exact():
    A = symmetric()
    ask = Graph(A)
    assert np.allclose(released_degrees(ask, 40, 0.2), A.sum(axis=1))
    assert ask.shares == [0.2]


def test_degrees_of_a_regular_graph():
    """No spread at all: the mean is all there is."""
    A = np.ones((10, 10)) - np.eye(10)
    assert np.allclose(released_degrees(Graph(A), 10, 1.0), 9.0)


@pytest.mark.parametrize(("noise", "share_of_plain"), [(0.1, 1.0), (0.3, 0.6), (3.0, 0.02)])
def test_degrees_are_shrunk_as_far_as_they_are_noise(noise, share_of_plain):
    A = symmetric(300)
    true = A.sum(axis=1)
    loss, plain = [], []
    for seed in range(10):
        raw = Graph(A, noise, seed).right(np.full((300, 1), 300**-0.5), share=1.0).value[:, 0]
        plain.append(np.mean((raw * 300**0.5 - true) ** 2))
        loss.append(np.mean((released_degrees(Graph(A, noise, seed), 300, 1.0) - true) ** 2))
    assert np.mean(loss) < share_of_plain * np.mean(plain)


def test_degree_direction():
    degrees = np.array([3.0, 0.0, 4.0])
    assert np.allclose(degree_direction(degrees), [0.6, 0.0, 0.8])
    assert np.allclose(degree_direction(np.zeros(4)), 0.5)


def test_scaled_graph_answers_for_the_scaled_matrix():
    A, scale = symmetric(12), np.linspace(0.5, 2.0, 12)
    S = np.diag(scale)
    X = np.random.default_rng(1).standard_normal((12, 3))
    ask = ScaledGraph(Graph(A), scale)
    assert np.allclose(ask.right(X, share=0.1).value, S @ A @ S @ X)
    assert np.allclose(ask.left(X, share=0.1).value, S @ A @ S @ X)
    assert np.allclose(ask.ritz(X, share=0.1).value, X.T @ S @ A @ S @ X)


def test_scaled_graph_reports_the_noise_of_its_answers():
    scale = np.linspace(0.5, 2.0, 400)
    ask = ScaledGraph(Graph(np.zeros((400, 400)), 3.0), scale)
    answer = ask.right(np.eye(400)[:, :50], share=0.1)
    assert answer.value.std() == pytest.approx(answer.noise_scale, rel=0.03)
    assert ask._ask.shares == [0.1]


def test_angular_rows_do_not_depend_on_size():
    """A node with twice the degree has rows twice as long: the same angle."""
    rng = np.random.default_rng(0)
    X, direction = rng.standard_normal((8, 2)), rng.random(8) + 0.1
    size = rng.uniform(0.5, 4.0, 8)
    assert np.allclose(
        angular_rows(X, direction), angular_rows(X * size[:, None], direction * size)
    )
    lengths = np.hypot(direction, np.linalg.norm(X, axis=1))
    assert np.allclose(angular_rows(X, direction), X / lengths[:, None])
    assert np.isfinite(angular_rows(np.zeros((3, 2)), np.zeros(3))).all()

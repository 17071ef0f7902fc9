"""Degrees, directions and scalings of a graph."""

import numpy as np
import pytest

from skdp.solvers import graphs
from tools.gate import Matrix


class Graph(Matrix):
    def left(self, U, *, share):
        raise AssertionError("a symmetric graph is asked from the right only")


def symmetric(n=40, seed=0):
    A = np.triu(np.random.default_rng(seed).random((n, n)), 1)
    return A + A.T


@pytest.mark.parametrize(("noise", "share_of_plain"), [(1.7, 1.0), (5.2, 0.6), (52.0, 0.02)])
def test_degrees_are_shrunk_as_far_as_they_are_noise(noise, share_of_plain):
    A = symmetric(300)
    true = A.sum(axis=1)
    loss, plain = [], []
    for seed in range(10):
        raw = Graph(A, noise, seed).right(np.ones((300, 1)), share=1.0).value[:, 0]
        plain.append(np.mean((raw - true) ** 2))
        found = graphs.released_degrees(Graph(A, noise, seed), 300, 1.0).value
        loss.append(np.mean((found - true) ** 2))
    assert np.mean(loss) < share_of_plain * np.mean(plain)


def test_scaled_graph_reports_the_noise_of_its_answers():
    scale = np.linspace(0.5, 2.0, 400)
    ask = graphs.ScaledGraph(Graph(np.zeros((400, 400)), 3.0), scale[:, None])
    answer = ask.right(np.eye(400)[:, :50], share=0.1)
    assert answer.value.std() == pytest.approx(answer.noise_scale, rel=0.03)
    assert ask.ask.shares == [0.1]


def across(A, k=1, noise=0.0, seed=0):
    """Embed across the degrees, with noise in the graph itself: all is released."""
    n = len(A)
    Z = np.random.default_rng(seed).standard_normal((n, n)) * noise
    ask = Graph(A + np.triu(Z, 1) + np.triu(Z, 1).T)
    degrees = graphs.released_degrees(ask, n, 1.0)._replace(noise_scale=noise * n**0.5)

    def pairs(graph, project):
        M = project(project(graph.right(np.eye(n), share=1.0).value).T)
        values, vectors = np.linalg.eigh((M + M.T) / 2)
        order = np.argsort(-np.abs(values))[:k]
        return values[order], vectors[:, order]

    return graphs.embed_across(ask, degrees, 1.0, pairs, 0.0)[1]


def expected(sizes, inside, outside, size=None):
    """The expected graph of groups: no chance of edges."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    A = np.where(labels[:, None] == labels, inside, outside)
    return (A if size is None else A * np.outer(size, size)), labels


def test_degrees_tell_more_than_a_direction_below_the_noise():
    A, labels = expected((250, 50), 0.3, 0.06)
    found = across(A, noise=0.7)[:, 0]
    assert abs(np.corrcoef(found, labels)[0, 1]) > 0.5
    A, labels = expected((150, 150), 0.2, 0.18)  # equal degrees tell nothing, and take nothing
    degrees = A.sum(axis=1) + 12 * np.random.default_rng(1).standard_normal(300)
    found = across(A, noise=0.7)[:, 0]
    assert abs(np.corrcoef(found, degrees)[0, 1]) < 0.3


def test_columns_have_the_norm_of_their_signal():
    """A second direction of two groups is noise; a graph without edges has positions, too."""
    seen, noise = np.linalg.norm(across(expected((150, 150), 0.5, 0.1)[0], 2, 0.7), axis=0)
    assert 0.9 * 300**0.5 < seen < 300**0.5
    assert noise < 0.8**0.5 * seen
    assert np.isfinite(across(np.zeros((10, 10)))).all()


@pytest.mark.parametrize("rounding", [0.0, 1e-14])
def test_degrees_that_are_all_the_same_tell_nothing(rounding):
    """Shrunk to their mean, they differ by rounding alone: the direction stays as it is."""
    A, labels = expected((50, 50), 0.5, 0.1)
    ask, degrees = Graph(A), np.full(100, 30.0)
    degrees[::2] *= 1 + rounding
    vector = np.where(labels == 0, 0.1, -0.1) + 0.02 * np.random.default_rng(0).standard_normal(100)
    pairs = lambda graph, project: (np.array([20.0]), vector[:, None])  # noqa: E731
    noisy = graphs.released_degrees(ask, 100, 1.0)._replace(value=degrees, noise_scale=30.0)
    found = graphs.embed_across(ask, noisy, 1.0, pairs, 0.68)[1][:, 0]
    assert abs(np.corrcoef(found, vector)[0, 1]) > 0.999
    assert abs(found.mean()) < 0.1 * found.std()

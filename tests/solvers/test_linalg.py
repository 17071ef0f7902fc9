"""Linear algebra on public arrays."""

import numpy as np
import pytest

from skdp.answer import Answer
from skdp.solvers import linalg, sketching

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(7, 3), (7, 1), (5, 5), (6, 0)])
def test_orthonormal_keeps_the_span(shape):
    Y = RNG.standard_normal(shape)
    Q = linalg.orthonormal(Y)
    assert Q.shape == shape
    assert np.allclose(Q.T @ Q, np.eye(shape[1]))
    assert np.allclose(Q @ (Q.T @ Y), Y)


def test_orthonormal_of_zeros_is_still_orthonormal():
    Q = linalg.orthonormal(np.zeros((5, 2)))
    assert np.allclose(Q.T @ Q, np.eye(2))


def test_fix_signs():
    components = np.array([[1.0, -3.0, 2.0], [0.5, 0.1, -0.2], [0.0, 0.0, 0.0]])
    fixed = linalg.fix_signs(components)
    assert np.array_equal(fixed, [[-1.0, 3.0, -2.0], [0.5, 0.1, -0.2], [0.0, 0.0, 0.0]])
    assert np.array_equal(linalg.fix_signs(-fixed), fixed)
    assert components[0, 0] == 1.0  # a new array
    U, signed = linalg.with_signs(np.eye(3), components.T)  # the product U V' stays the same
    assert np.array_equal(signed, fixed)
    assert np.array_equal(U @ signed, components)


@pytest.mark.parametrize(
    ("d", "k"),
    [(1, None), (1, 1), (2, 1), (2, 2), (5, 1), (5, 4), *((12, k) for k in (1, 2, 3, 11, 12))],
)
@pytest.mark.parametrize("fails", [None, np.linalg.inv, np.linalg.eigh])
def test_top_eigenpairs(d, k, fails, monkeypatch):
    if fails:  # or finds too few, as LAPACK does for a part of many values that are alike
        of_none = np.zeros((2, 2)) if fails is np.linalg.inv else np.zeros((0, 0))
        monkeypatch.setattr("scipy.linalg.eigh", lambda *_, **__: fails(of_none))
    M = RNG.standard_normal((d, d))
    M = M + M.T
    values, vectors = linalg.top_eigenpairs(M, k)
    expected = np.linalg.eigvalsh(M)[::-1][:k]
    assert np.allclose(values, expected)
    assert vectors.shape == (d, len(expected))
    assert np.allclose(M @ vectors, vectors * values)
    assert np.allclose(vectors.T @ vectors, np.eye(len(expected)))


def test_symmetric_noise_edge():
    """The largest eigenvalue of (G + G')/2 lies at the edge, up to a few percent."""
    G = np.random.default_rng(1).standard_normal((600, 600)) * 3.0
    largest = np.linalg.eigvalsh((G + G.T) / 2)[-1]
    assert largest == pytest.approx(linalg.symmetric_noise_edge(3.0, 600), rel=0.04)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["noise", "spiked", "diagonal", "zero"])
@pytest.mark.parametrize(("n", "k"), [(499, 10), (600, 10), (600, 24), (600, 100)])
def test_leading_pairs_are_those_of_a_decomposition(kind, n, k, rng):
    G = rng.standard_normal((n, n))
    Q = np.linalg.qr(rng.standard_normal((n, 5)))[0]
    M = {"diagonal": np.diag(G[0]), "zero": np.zeros((n, n))}.get(kind, (G + G.T) / 2)
    M = M + (Q * [900, 700, 500, 300, 200]) @ Q.T if kind == "spiked" else M
    values, vectors = linalg.leading_pairs(M, k)
    expected = np.linalg.eigvalsh(M)[::-1][:k]
    np.testing.assert_allclose(values, expected, atol=1e-5 * max(1.0, expected[0]))
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(k), atol=1e-8)
    captured = np.einsum("ij,ij->j", vectors, M @ vectors)
    np.testing.assert_allclose(captured, expected, atol=1e-5 * max(1.0, expected[0]))


# -- shrunk eigenpairs against simulation: values and cosines of spiked matrices ------------------


def noisy_square(rng, V):
    G = rng.standard_normal((500, 500)) * 0.3 * np.sqrt(2)  # (G + G')/2 has .3 off the diagonal
    theta = np.array([40.0, 25.0, 15.0])
    return (V * theta) @ V.T + (G + G.T) / 2, theta, lambda w, W: linalg.wigner(w, W, 0.3)


def noisy_rows(rng, V):
    m, s, values = 3000, 0.7, np.array([80.0, 60.0, 45.0])
    Y = (linalg.orthonormal(rng.standard_normal((m, 3))) * values) @ V.T + s * rng.standard_normal(
        (m, 500)
    )
    excess = Y.T @ Y - m * s**2 * np.eye(500)
    return excess, values**2, lambda w, W: linalg.marchenko_pastur(w, W, m, s**2)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", [noisy_square, noisy_rows])
def test_values_and_cosines_are_found(make, seed):
    rng = np.random.default_rng(seed)
    V = linalg.orthonormal(rng.standard_normal((500, 3)))
    M, theta, shrink = make(rng, V)
    found = shrink(*linalg.top_eigenpairs(M, 10))
    assert len(found.values) == 3
    np.testing.assert_allclose(found.values, theta, rtol=0.1)  # a value has a deviation of 3%
    true = np.sum((V.T @ found.vectors) ** 2, axis=0)
    np.testing.assert_allclose(found.cosines, true, atol=0.08)


def test_without_noise_all_is_read():
    values, vectors = np.array([3.0, 1e-200, -1.0]), np.eye(3)
    read = linalg.wigner(values, vectors, 0.0), linalg.marchenko_pastur(values, vectors, 10, 0.0)
    for found in read:
        np.testing.assert_allclose(found.values, [3.0, 0.0], atol=1e-199)
        np.testing.assert_allclose(found.cosines, 1.0)


def test_eigenvectors_are_orthonormal_where_few_wide_rows_have_unequal_weights(rng):
    """What is left beyond a Krylov basis is small, and has a part in it that has to go."""
    X = rng.standard_normal((30, 1600)) / np.sqrt(rng.integers(1, 6, (30, 1)))
    start = rng.choice([-1.0, 1.0], (1600, 4))
    V = linalg.leading_eigenvectors(lambda Q: X.T @ (X @ Q), start, 2)
    np.testing.assert_allclose(V.T @ V, np.eye(2), atol=1e-10)
    sizes = np.linalg.svd(X, compute_uv=False)[:2]
    np.testing.assert_allclose(np.linalg.norm(X @ V, axis=0), sizes)


def test_sketches_whose_core_is_zero_have_no_factors():
    """Their columns and rows are seen, and nothing between them: no rank, and no division by 0."""
    Y, sides = np.eye(6, 4), [np.eye(6, 4)] * 4
    noisy = [Answer(Y, 0.0), Answer(Y.T, 0.0), Answer(np.zeros((4, 4)), 0.0)]
    found = sketching.factorize(noisy, sides, 2, np.ones((6, 2)))
    assert found.rank == 0 and not found.values.any()


@pytest.mark.parametrize("shape", [(60, 40), (40, 60)])
def test_a_large_matrix_has_the_factors_of_a_small_one(monkeypatch, shape):
    left, right = (RNG.standard_normal((side, 2)) for side in shape)
    M, start = left @ right.T * 3 + RNG.standard_normal(shape), RNG.standard_normal((shape[1], 6))
    small = sketching.factorize([Answer(M, 1.0)], (), 3, start)
    monkeypatch.setattr(sketching, "is_small", lambda *_: False)
    large = sketching.factorize([Answer(M, 1.0)], (), 3, start)
    assert large.rank == small.rank == 2
    products = [(each.left * each.values) @ each.right for each in (small, large)]
    np.testing.assert_allclose(*products, atol=1e-8)

"""Flipped cells as something to ask, and their spectra: unbiased, without what the noise adds."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator

from skdp.solvers import linalg, one_shot
from skdp.solvers.linalg import leading_pairs

RNG = np.random.default_rng(0)


def flipped(R, epsilon=1.0, rng=RNG):
    """Cells, each turned with the probability of this budget."""
    return sp.csr_array(np.abs(R - (rng.random(R.shape) < 1 / (1 + math.exp(epsilon)))))


@pytest.mark.parametrize("n", [2, 3, 30])
def test_pairs_become_a_graph(n):
    A = np.triu(RNG.random((n, n)) < 0.5, 1) * 1.0
    A[0, 1] = 1.0
    row = sp.csr_array(A[np.triu_indices(n, 1)][None])
    assert np.array_equal(one_shot.graph_of_pairs(row, n).toarray(), A + A.T)
    assert one_shot.graph_of_pairs(sp.csr_array(row.shape), n).nnz == 0


@pytest.mark.parametrize("loops", [True, False])
def test_products_are_those_of_the_unbiased_matrix(loops):
    Y = (RNG.random((9, 9)) < 0.4) * 1.0
    if not loops:
        np.fill_diagonal(Y, 0.0)
    p = one_shot.flip_probability(one_shot.flip_deviation(1.0))
    B = 3.0 * (Y - p) / (1 - 2 * p)
    if not loops:
        np.fill_diagonal(B, 0.0)
    ask = one_shot.FlippedMatrix(
        sp.csr_array(Y), one_shot.flip_deviation(1.0), high=3.0, loops=loops
    )
    X = RNG.standard_normal((9, 2))
    assert np.allclose(ask.right(X, share=0.1).value, B @ X)
    assert np.allclose(ask.left(X, share=0.1).value, B.T @ X)


def test_noise_is_as_claimed():
    R, X = (RNG.random((300, 80)) < 0.2) * 1.0, RNG.standard_normal((80, 3))
    answers = [
        one_shot.FlippedMatrix(flipped(R), one_shot.flip_deviation(1.0)).right(X, share=1.0)
        for _ in range(20)
    ]
    errors = np.array([answer.value - R @ X for answer in answers])
    assert np.abs(errors.mean()) < 6 * errors.std() / math.sqrt(errors.size)
    assert math.sqrt(np.mean(errors**2)) == pytest.approx(answers[0].noise_scale, rel=0.03)


def spiked(n, values):
    """A symmetric matrix with known eigenvalues of both signs, and cells of given noise."""
    Q = np.linalg.qr(RNG.standard_normal((n, len(values))))[0]
    noise = RNG.standard_normal((n, n)) / math.sqrt(2)
    return (Q * values) @ Q.T + 0.5 * (noise + noise.T), Q


class Known(one_shot.FlippedMatrix):
    def __init__(self, A, noise_scale):
        self.A, self.noise_scale = A, noise_scale

    def right(self, X, *, share):
        return one_shot.Answer(self.A @ X, self.noise_scale)


def test_eigenvalues_lose_what_the_noise_gave_them(monkeypatch):
    n, values = 400, np.array([60.0, -40.0, 25.0])
    A, Q = spiked(n, values)
    found, V = one_shot.symmetric_pairs(Known(A, 0.5), n, 4)
    assert found[:3] == pytest.approx(values, abs=3.0)  # the edge is 20, the noise of a value .7
    assert found[3] == 0.0  # inside the edge
    assert abs(Q[:, 0] @ V[:, 0]) > 0.97
    monkeypatch.setattr(linalg, "_SMALL", 10)
    iterated, W = one_shot.symmetric_pairs(Known(A, 0.5), n, 4)
    assert np.allclose(iterated, found, rtol=1e-3)
    assert np.allclose(np.abs(np.sum(V * W, axis=0))[:3], 1.0, atol=1e-3)
    zero, V = one_shot.symmetric_pairs(Known(np.zeros((n, n)), 0.0), n, 2)
    assert np.array_equal(zero, [0, 0])
    assert V.shape == (n, 2)


@pytest.mark.deep
@pytest.mark.parametrize("own", [0.0, 1.0])
def test_the_negative_end_of_the_noise_is_no_signal(own):
    """Nor where the matrix has noise next to the released one; what stands out there is."""
    rng, n, wrong = np.random.default_rng(0), 300, []
    for _ in range(8):
        noise = rng.standard_normal((n, n)) * math.sqrt(1 + own)
        spikes = np.linalg.qr(rng.standard_normal((n, 3)))[0]
        A = (noise + noise.T) / math.sqrt(2)
        A += (spikes * [60.0, 50.0, -90.0]) @ spikes.T * math.sqrt(1 + own)
        values, V = one_shot.symmetric_pairs(Known(A, 1.0), n, 9, np.asarray if own else None)
        assert values[0] < 0
        assert np.linalg.norm(V[:, :3].T @ spikes) ** 2 > 2.5
        wrong.append(np.count_nonzero(np.sum(V * (A @ V), axis=0)[1:] < 0))
    assert np.mean(wrong) < 0.5  # of six; by magnitude half of them


@pytest.mark.thorough
@pytest.mark.parametrize("small", [10, 1000])
@pytest.mark.parametrize("shape", [(300, 200), (200, 300)])
def test_triplets_of_flipped_cells(shape, small, monkeypatch):
    def strict(size, multiply, *, rmatvec, dtype):  # as scipy 1.18: a vector for a vector
        assert multiply(np.ones(size[1])).shape == size[:1]
        assert rmatvec(np.ones(size[0])).shape == size[1:]
        return LinearOperator(size, multiply, rmatvec=rmatvec, dtype=dtype)

    monkeypatch.setattr(one_shot, "LinearOperator", strict)
    monkeypatch.setattr(linalg, "_SMALL", small)
    left, right = (RNG.integers(0, 3, size) for size in shape)
    R = (RNG.random(shape) < np.where(left[:, None] == right, 0.7, 0.1)) * 1.0
    exact = one_shot.FlippedMatrix(sp.csr_array(R), 0.0)
    U, values, V = one_shot.singular_triplets(exact, 3)
    assert np.allclose((U.T @ R @ V), np.diag(values), atol=1e-3)
    assert np.allclose(values, np.linalg.svd(R, compute_uv=False)[:3], rtol=1e-4)
    assert exact.square_sum() == R.sum()
    noisy = one_shot.FlippedMatrix(flipped(R), one_shot.flip_deviation(1.0))
    W, found, Z = one_shot.singular_triplets(noisy, 5)
    assert found[:3] == pytest.approx(values, abs=0.1 * values[0])
    nothing = one_shot.FlippedMatrix(flipped(np.zeros(shape)), one_shot.flip_deviation(1.0))
    assert np.array_equal(one_shot.singular_triplets(nothing, 4)[1], np.zeros(4))
    empty = one_shot.FlippedMatrix(sp.csr_array(shape), 0.0)
    assert np.array_equal(one_shot.singular_triplets(empty, 4)[1], np.zeros(4))
    assert np.linalg.norm(Z[:, :3].T @ V) ** 2 > 2.0
    assert W.shape == (shape[0], 5)
    assert noisy.square_sum() == pytest.approx(R.sum(), abs=6 * math.sqrt(R.size))


def test_coins_are_noise_of_known_size():
    """Rounding x to 0 or 3 at random adds x (3 - x) to each square, and noise of that variance."""
    x = 3 * np.outer(RNG.uniform(0.5, 0.9, 200), RNG.uniform(0.5, 0.9, 100))
    Y = flipped((RNG.random(x.shape) < x / 3) * 1.0, 3.0)
    spread = float((x * (3 - x)).mean()) / 9
    scale = one_shot.flip_deviation(3.0)
    plain = one_shot.FlippedMatrix(Y, scale, high=3.0)
    known = one_shot.FlippedMatrix(Y, scale, high=3.0, rounding=spread)
    truth = float((x**2).sum())
    assert known.square_sum() == pytest.approx(truth, rel=0.1)
    assert plain.square_sum() > 1.5 * truth
    seen = known.right(np.eye(100), share=1.0)
    assert np.std(seen.value - x) == pytest.approx(seen.noise_scale, rel=0.03)
    exact = np.linalg.svd(x, compute_uv=False)
    assert one_shot.singular_triplets(known, 3)[1] == pytest.approx(exact[:3], abs=0.06 * exact[0])
    # noise that nobody took off
    assert one_shot.singular_triplets(plain, 3)[1][1] > 0.08 * exact[0]


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 20.0])
def test_probability_and_deviation_belong_together(epsilon):
    p = 1 / (1 + math.exp(epsilon))
    s = one_shot.flip_deviation(epsilon)
    assert s == pytest.approx(math.sqrt(p * (1 - p)) / (1 - 2 * p))
    assert one_shot.flip_probability(s) == pytest.approx(p, rel=1e-6, abs=0)
    assert one_shot.flip_deviation(math.inf) == pytest.approx(0.0, abs=1e-200)


@pytest.mark.thorough
def test_pairs_have_the_claimed_deviation():
    rng, m, epsilon = np.random.default_rng(0), 400, 1.0
    R = np.zeros((m, 2))
    R[:100] = 1.0
    p, s = 1 / (1 + math.e), one_shot.flip_deviation(epsilon)
    B = [(flipped(R, epsilon, rng).toarray() - p) / (1 - 2 * p) for _ in range(2000)]
    pairs = np.array([b[:, 0] @ b[:, 1] for b in B])
    assert abs(pairs.mean() - 100) < 6 * pairs.std() / math.sqrt(2000)
    # The deviation of a product of cells that are ones is s^2 + 1 + 1, which this leaves out.
    assert pairs.std() == pytest.approx(one_shot.pair_deviation(s, m, 100), rel=0.06)


def blocks(m, n, rng):
    factor = rng.integers(0, 3, m)
    return (rng.random((m, n)) < np.where(np.arange(n) % 3 == factor[:, None], 0.3, 0.03)) * 1.0


def test_the_operator_is_the_dense_moment(monkeypatch, rng):
    R = blocks(2000, 80, rng)
    Y, s = flipped(R, math.log(9), rng), one_shot.flip_deviation(math.log(9))
    moment = one_shot.history_pairs(Y, s, 8.0)
    assert len(moment.shrink(*leading_pairs(moment.off, 4)).values) >= 3
    dense, v = one_shot._weighted_moment(Y, s, 8.0).value, rng.standard_normal(80)
    monkeypatch.setattr(one_shot, "MOST_DENSE", 10)
    operator = one_shot._weighted_moment(Y, s, 8.0).value
    np.testing.assert_allclose(operator @ v, dense @ v, rtol=1e-9)
    monkeypatch.undo()
    monkeypatch.setattr(one_shot.linalg, "MOSTLY_ZERO", 0.9)
    np.testing.assert_allclose(one_shot._weighted_moment(Y, s, 8.0).value, dense, rtol=1e-9)


@pytest.mark.deep
@pytest.mark.parametrize(("epsilon", "least"), [(2.0, 0.95), (3.0, 0.95), (10.0, 0.9999)])
def test_the_noise_of_counts_is_not_that_of_pairs(epsilon, least):
    """Where few columns are popular, counts of flips scatter by more than pairs do, or by less.

    Of few flips what is seen goes to all: users are no noise.
    """
    rng, k = np.random.default_rng(0), 10
    law = 1 / (np.arange(300) + 3.0) ** 1.2
    tastes = rng.standard_normal((1500, 5)) @ rng.standard_normal((5, 300)) / math.sqrt(5)
    odds = law * np.exp(0.8 * tastes)
    R = (rng.random(odds.shape) < 5 * odds / odds.sum(axis=1, keepdims=True)) * 1.0
    X = R / np.sqrt(np.maximum(R.sum(axis=1, keepdims=True), 5))
    best = np.sum(np.linalg.svd(X, compute_uv=False)[:k] ** 2)
    captured = []
    for _ in range(4):
        Y = flipped(R, epsilon, rng)
        V = one_shot.normalised_pairs(Y, one_shot.flip_deviation(epsilon), 5, k)[1]
        captured.append(np.sum((X @ V) ** 2) / best)
    assert np.mean(captured) > least


def test_two_cells_have_a_spectrum():
    for seed in range(8):
        Y = flipped(np.zeros((1, 2)), 0.1, np.random.default_rng(seed))
        squares = one_shot.normalised_pairs(Y, one_shot.flip_deviation(0.1), None, 1)[0]
        assert np.all(squares >= 0)


def test_normalised_pairs_are_those_of_the_normalised_rows():
    """Without noise exactly; with it, the total and the sums within what is claimed."""
    rng, floor = np.random.default_rng(3), 6.0
    R = blocks(2000, 50, rng)
    rows = R / np.sqrt(np.maximum(R.sum(axis=1), floor))[:, None]
    exact, V, exact_total, exact_sums = one_shot.normalised_pairs(sp.csr_array(R), 0.0, floor, 3)
    values, vectors = np.linalg.eigh(rows.T @ rows)
    assert np.allclose(exact, values[:-4:-1])
    assert np.allclose(np.abs(np.sum(V * vectors[:, :-4:-1], axis=0)), 1.0)
    assert exact_total == pytest.approx(np.sum(rows**2))
    assert np.allclose(exact_sums.value, rows.sum(axis=0))
    assert exact_sums.noise_scale == 0.0
    epsilon = 6.0
    Y = flipped(R, epsilon, rng)
    deviation = one_shot.flip_deviation(epsilon)
    squares, _, total, sums = one_shot.normalised_pairs(Y, deviation, floor, 5)
    assert squares[:3] == pytest.approx(exact, rel=0.05)
    assert squares.shape == (5,)
    assert (np.diff(squares) <= 0).all()
    assert total == pytest.approx(exact_total, rel=0.05)
    error = sums.value - exact_sums.value
    assert np.abs(error - error.mean()).max() < 6 * sums.noise_scale  # weights move them together


def test_normalised_pairs_of_many_items_are_those_of_few(monkeypatch):
    """Of many the moment is never formed: products with it give the same pairs."""
    R = sp.csr_array(blocks(400, 30, np.random.default_rng(3)))
    few = one_shot.normalised_pairs(R, 0.0, 6, 2)
    monkeypatch.setattr(one_shot, "MOST_DENSE", 1)
    many = one_shot.normalised_pairs(R, 0.0, 6, 2)
    assert np.allclose(many[0], few[0], rtol=1e-3) and many[2] == pytest.approx(few[2])
    assert np.allclose(np.abs(np.sum(many[1] * few[1], axis=0)), 1.0, atol=1e-3)


def test_what_is_inside_the_edge_counts_as_nothing(rng):
    Y = sp.csr_array((rng.random((300, 40)) < 0.5) * 1.0)
    squares, V, *_ = one_shot.normalised_pairs(Y, one_shot.flip_deviation(0.05), 5.0, 3)
    assert np.array_equal(squares, np.zeros(3))
    assert np.allclose(V.T @ V, np.eye(3))
